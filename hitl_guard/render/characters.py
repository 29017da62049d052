"""Making characters visible that would be obeyed, reorder their neighbours or stay unseen.

These are control characters (C0, C1, DEL), bidirectional controls, zero-width and other format characters, tags,
variation selectors, unassigned and private-use code points, and every space but U+0020. Unicode's categories decide,
not a list of known attacks; a list adds what Unicode files under letters and symbols and yet draws blank.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})
_BLANK_RANGES = (
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x115F, 0x1160), (0x3164, 0x3164), (0xFFA0, 0xFFA0),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF),  # variation selectors
    (0x16FE4, 0x16FE4),  # Khitan filler
    (0x2800, 0x2800), (0x1D159, 0x1D159),  # empty Braille pattern, empty note head
)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape(text: str) -> str:
    """Return ``text`` on one line with every hidden character as an escape, and each backslash doubled.

    Because of the latter, an escape that is shown is never one that somebody typed.
    """
    return visible(text.replace("\\", "\\\\"))


def quoted(text: str) -> str:
    """Return `escape` of ``text`` between double quotes: a JSON string."""
    return '"' + escape(text).replace('"', '\\"') + '"'


def ascii_only(text: str) -> str:
    """Return ``text`` with everything beyond ASCII as escapes, for places that can show nothing else."""
    return "".join(one if one <= "\x7f" else _escaped(one) for one in text)


def visible(text: str) -> str:
    """Return ``text`` with every hidden character as an escape, and everything else, backslashes too, as it is."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(one) if concealed else one for one, concealed in marked(text))


def marked(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each character and whether it is escaped: it is hidden, or a combining mark without a visible base.

    Such a mark would be drawn over the quote or the escape in front of it.
    """
    distinct = set(text)
    concealed = {one for one in distinct if is_hidden(one)}
    marks = {one for one in distinct if unicodedata.category(one)[0] == "M"}
    based = False
    for one in text:
        unseen = one in concealed or (one in marks and not based)
        yield one, unseen
        based = not unseen and one not in ' "'


def is_hidden(character: str) -> bool:
    """Return whether one character is never drawn as itself."""
    if character == " ":
        return False
    point = ord(character)
    return unicodedata.category(character) in _HIDDEN_CATEGORIES or any(a <= point <= b for a, b in _BLANK_RANGES)


def _escaped(character: str) -> str:
    """Return a character's JSON escape; beyond U+FFFF that is a surrogate pair (RFC 8259, section 7)."""
    if character in _SHORT:
        return _SHORT[character]
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place:place + 2].hex()}" for place in range(0, len(units), 2))
