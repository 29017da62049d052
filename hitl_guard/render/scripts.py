"""Which alphabets the letters and digits of a text are of, and where that may deceive the eye.

Python knows no scripts, so the first word of a character's Unicode name stands for its script. Honest text of one
language passes: Japanese mixes three scripts and Latin words without a space, Thai and Chinese put addresses between
their words, Arabic has digits of its own. What does not pass are letters that look like another alphabet's in one word
with it, digits of a script that is not the text's, and letters that turn the order of an otherwise left-to-right text.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator

_SAME = {
    "ARABIC-INDIC": "ARABIC", "BOPOMOFO": "EAST-ASIAN", "CJK": "EAST-ASIAN", "EXTENDED": "ARABIC",
    "HALFWIDTH": "EAST-ASIAN", "HANGUL": "EAST-ASIAN", "HIRAGANA": "EAST-ASIAN", "IDEOGRAPHIC": "EAST-ASIAN",
    "KATAKANA": "EAST-ASIAN", "KATAKANA-HIRAGANA": "EAST-ASIAN",
}
"""First words of names that stand for one script; ``EXTENDED`` is of ``EXTENDED ARABIC-INDIC DIGIT``."""

_UNSPACED = frozenset({"EAST-ASIAN", "KHMER", "LAO", "MYANMAR", "THAI", "TIBETAN"})
"""Scripts that put no spaces between words, so that a Latin word or address stands right among their letters."""

_FALSE_SLASH = re.compile("[A-Za-z0-9][\u30ce\u4e36\u4e3f]")
"""Letters of such scripts that look like the slash after a host name."""

_LOOKALIKES = frozenset({
    "ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "FULLWIDTH", "GREEK", "LATIN", "LISU", "MATHEMATICAL",
})
"""Scripts with letters that look like those of another one of these."""

_UNLIKE = frozenset("\u0393\u0394\u0398\u039b\u039e\u03a0\u03a3\u03a6\u03a8\u03a9\u03b4\u03b8\u03bb\u03bc\u03be\u03c0"
                    "\u03c6\u03c8")
"""Greek letters that stand in Latin words as symbols (\u03bcm, k\u03a9, \u0394t) and look like no Latin letter."""

_HOST = re.compile(r"(?<![\w-])[\w-]++(?:[.\u3002\uff0e\uff61][\w-]++)++")
_WORD = re.compile(r"[^\W_]{2,}+")
_NUMBER = re.compile(r"\d(?:[.,\u066b\u066c]?\d)*+")


@functools.lru_cache(maxsize=4096)
def script(character: str) -> str:
    """Return the script of a letter or digit (see the module)."""
    word = unicodedata.name(character, "UNKNOWN").split(" ")[0]
    return _SAME.get(word, word)


def hosts_in(text: str) -> list[str]:
    """Return what looks like a host name in a text."""
    return _HOST.findall(text)


def host_scripts(host: str) -> list[str]:
    """Return the scripts of a host name (decoded) that count; more than one is a mixture.

    Scripts without spaces do not count: the name ends, unseen by a program, where the next word begins.
    """
    scripts = {script(one) for one in set(host) if one.isalpha()}
    return sorted(scripts - _UNSPACED | ({"EAST-ASIAN"} if _FALSE_SLASH.search(host) else set()))


def mixed_words(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the words in which letters of several alphabets stand that look alike, each with its scripts.

    Host names are left out: they are looked at more strictly (see `host_scripts`). Marks belong to no alphabet, and
    nothing unseen ends a word.
    """
    if text.isascii():
        return
    plain = _HOST.sub(" ", text)
    distinct = set(plain)
    changed: dict[int, str | None] = {ord(one): " " for one in distinct if script(one) in _UNSPACED}
    changed |= {ord(one): None for one in distinct if unicodedata.category(one) in ("Cf", "Me", "Mn")}
    for word in _WORD.findall(plain.translate(changed)):
        if not word.isascii():
            scripts = sorted({script(one) for one in set(word) - _UNLIKE if one.isalpha()} & _LOOKALIKES)
            if len(scripts) > 1:
                yield word, scripts


def odd_numbers(text: str) -> list[str]:
    """Return the numbers of a text with digits that are not ASCII and that its own letters do not explain."""
    if text.isascii():
        return []
    letters = {script(one) for one in set(text) if one.isalpha()}
    if "EAST-ASIAN" in letters:
        letters.add("FULLWIDTH")
    return [
        number for number in _NUMBER.findall(text)
        if not number.isascii() and not _is_explained({script(one) for one in number if one.isdecimal()}, letters)
    ]


def _is_explained(scripts: set[str], letters: Iterable[str]) -> bool:
    """Whether digits are of one script, and that of the text around them."""
    return len(scripts) == 1 and scripts <= set(letters)


def in_ascii(number: str) -> str:
    """Return a number with each digit as the ASCII digit of its value, and Arabic separators as a point and a comma."""
    plain = number.replace("\u066b", ".").replace("\u066c", ",")
    return "".join(str(unicodedata.decimal(one)) if one.isdecimal() else one for one in plain)


def turned(text: str) -> int:
    """Return how many right-to-left letters stand in a text that begins and mostly goes from left to right.

    There they reorder the numbers and signs around them. In a text that is mostly right to left, readers expect it.
    """
    if text.isascii():
        return 0
    ways = [unicodedata.bidirectional(one) for one in text]
    strong = [way != "L" for way in ways if way in ("L", "R", "AL")]
    count = sum(strong)
    return count if strong and not strong[0] and count * 2 < len(strong) else 0
