"""Making characters visible that would be obeyed, reorder their neighbours or stay unseen.

These are control characters (C0, C1, DEL), bidirectional controls, zero-width and other format characters, tags,
variation selectors, unassigned and private-use code points, enclosing marks, and every space but U+0020. Unicode's
categories decide, not a list of known attacks; a list adds what Unicode files under letters and symbols and yet draws
blank. Combining marks are drawn as far as a language may stack them: more would cover the lines around them.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Me", "Zl", "Zp", "Zs"})
_BLANK_RANGES = (
    (0x034F, 0x034F),  # combining grapheme joiner
    (0x115F, 0x1160), (0x3164, 0x3164), (0xFFA0, 0xFFA0),  # Hangul fillers
    (0x17B4, 0x17B5),  # Khmer inherent vowels
    (0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF),  # variation selectors
    (0x16FE4, 0x16FE4),  # Khitan filler
    (0x13441, 0x13442),  # Egyptian blanks, which older Unicode data does not know
    (0x2800, 0x2800), (0x1D159, 0x1D159),  # empty Braille pattern, empty note head
)
MAX_MARKS = 8
"""Marks on one letter, of whatever kind; Burmese has five."""

MAX_STACKED = 3
"""Marks of its own script above or below one letter; vowelled Hebrew and Hindi have three."""

MAX_DIACRITICS = 2
"""Marks of no script on one letter that no single character stands for."""

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
    """Yield each character and whether it is escaped: it is hidden, or a combining mark without a visible base, or one
    mark too many on it.

    Such a mark would be drawn over the quote or the escape in front of it, or over other lines.
    """
    distinct = set(text)
    concealed = {one for one in distinct if is_hidden(one)}
    marks = {one for one in distinct if unicodedata.category(one)[0] == "M"}
    cluster = ""  # a visible letter and the marks on it
    for one in text:
        unseen = one in concealed or (one in marks and (not cluster or _is_stacked(cluster, one)))
        yield one, unseen
        cluster = "" if unseen or one in ' "' else cluster + one if one in marks else one


def _is_stacked(cluster: str, mark: str) -> bool:
    """Return whether a mark is one too many on a letter with its marks."""
    if mark == cluster[-1] or len(cluster) > MAX_MARKS:
        return True
    kind = _kind(mark)
    same = sum(_kind(other) == kind for other in cluster[1:])
    if kind == "diacritic":
        return same >= MAX_DIACRITICS and len(unicodedata.normalize("NFC", cluster + mark)) > 1
    return kind == "own" and same >= MAX_STACKED


@functools.lru_cache(maxsize=1024)
def _kind(mark: str) -> str:
    """Return what a mark is: beside its letter (``beside``), of its own script (``own``) or of none (``diacritic``)."""
    name = unicodedata.name(mark, "")
    if unicodedata.category(mark) == "Mc" or " SUBJOINED " in name:
        return "beside"  # Tibetan stacks whole letters
    return "diacritic" if name.startswith("COMBINING ") else "own"


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
