"""The signed arguments, laid out for people and complete, and what in them deserves a second look."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator

from ..errors import CanonicalizationError
from .characters import ascii_only, escape, marked, visible
from .flags import flags
from .scripts import host_scripts, hosts_in, in_ascii, mixed_words, odd_numbers, turned

LONG_TEXT = 1_000
"""Characters from which on a text is pointed out as long."""

_NAMED = 5
_SHOWN = 60
_MAX_LABEL = 63
_MAX_HOST = 253
# Possessive, so that a megabyte without a dot or an ending quote costs one pass.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]|[^\s"{}\[\],:]++')


def arguments(canonical: bytes) -> str:
    """Return the complete canonical arguments, indented for people; never cut.

    It is JSON text that parses to the same value: every token stands as it was signed, but for hidden characters, which
    are escaped (RFC 8259, section 7), and for the white space between tokens.

    Args:
        canonical: The bytes that were signed; anything but tokens of JSON without white space is refused.

    Raises:
        CanonicalizationError: these bytes are no such text.
    """
    return "".join(space + visible(token) for space, token in pieces(canonical))


def pieces(canonical: bytes) -> Iterator[tuple[str, str]]:
    """Yield each token of canonical JSON as it was signed, with the white space that is laid out in front of it.

    Raises:
        CanonicalizationError: these bytes are no such text.
    """
    depth = 0
    before = ""
    for piece in _tokens(canonical):
        space = ""
        if piece in ("}", "]"):
            depth -= 1
        if before and not (before in "{[" and piece in "}]"):
            # Empty brackets stay together; after a bracket or a comma, and before a closing bracket, a line ends.
            if before in "{[," or piece in "}]":
                space = "\n" + "  " * depth
            elif before == ":":
                space = " "
        yield space, piece
        depth += piece in ("{", "[")
        before = piece


def _tokens(canonical: bytes) -> Iterator[str]:
    try:
        text = canonical.decode()
    except UnicodeDecodeError as error:
        raise _not_canonical() from error
    end = 0
    for found in _TOKEN.finditer(text):
        if found.start() != end:
            raise _not_canonical()
        end = found.end()
        yield found[0]
    if end != len(text) or not text:
        raise _not_canonical()


def _not_canonical() -> CanonicalizationError:
    return CanonicalizationError("These bytes are no canonical JSON text; they cannot be shown.", detail="syntax")


def warnings(canonical: bytes) -> tuple[str, ...]:
    """Return what a person should look at twice, as ``slug: sentence`` (at most one for each slug).

    The slugs: ``hidden-characters`` (line breaks and tabs aside), ``non-nfc``, ``big-integer``, ``mixed-script-host``,
    ``mixed-script-word``, ``other-digits``, ``right-to-left``, ``punycode-host``, ``long-text``.

    A word that is wholly of another alphabet and looks like one of ours is not among them, outside of host names.
    """
    texts = [text for text in (_text(piece) for piece in _tokens(canonical)) if text is not None]
    hosts = list(dict.fromkeys(host for text in texts for host in hosts_in(text)))
    found = [
        _hidden_warning(texts), *_flag_warnings(canonical), _mixed_warning(hosts), _word_warning(texts),
        _digit_warning(texts), _turned_warning(texts), _punycode_warning(hosts), _long_warning(texts),
    ]
    return tuple(warning for warning in found if warning is not None)


def _text(token: str) -> str | None:
    if token[0] != '"':
        return None
    try:
        text: str = json.loads(token)
    except ValueError as error:
        raise _not_canonical() from error
    return text


def _hidden_warning(texts: Iterable[str]) -> str | None:
    counts: Counter[str] = Counter()
    for text in texts:
        if not (text.isascii() and text.isprintable()):
            counts.update(one for one, concealed in marked(_without_breaks(text)) if concealed)
    if not counts:
        return None
    kinds = [f"U+{ord(one):04X} {number}x" for one, number in sorted(counts.items())]
    return (
        f"hidden-characters: shown as escapes, since they would be unseen or change how others are seen: "
        f"{counts.total()} in all ({_listed(kinds)})."
    )


def _without_breaks(text: str) -> str:
    """Return ``text`` with plain breaks and tabs replaced: they are escaped too, but nothing to warn of."""
    return text.replace("\r\n", " ").replace("\n", " ").replace("\t", " ")


def _flag_warnings(canonical: bytes) -> Iterator[str | None]:
    found = flags(canonical)
    yield (
        "non-nfc: a text is not in Unicode's composed form (NFC): it can look like another text that has other bytes."
        if "non-nfc" in found else None
    )
    yield (
        "big-integer: a whole number is beyond 2^53: other programs may round it; here every digit counts."
        if "big-integer" in found else None
    )


def _mixed_warning(hosts: Iterable[str]) -> str | None:
    mixed = [(host, scripts) for host in hosts if len(scripts := host_scripts(_decoded(host) or host)) > 1]
    if not mixed:
        return None
    shown = _listed(f"{ascii_only(_host(host))} has {' and '.join(scripts)}" for host, scripts in mixed)
    return f"mixed-script-host: the letters of a host name are of several alphabets ({shown})."


def _word_warning(texts: Iterable[str]) -> str | None:
    mixed = dict(found for text in texts for found in mixed_words(text))
    if not mixed:
        return None
    shown = _listed(f"{_cut(word)} has {' and '.join(scripts)}" for word, scripts in mixed.items())
    return f"mixed-script-word: the letters of a word are of several alphabets that look alike ({shown})."


def _digit_warning(texts: Iterable[str]) -> str | None:
    numbers = list(dict.fromkeys(number for text in texts for number in odd_numbers(text)))
    if not numbers:
        return None
    shown = _listed(f"{_cut(number)} is {in_ascii(number)[:_SHOWN]}" for number in numbers)
    return f"other-digits: a number has digits other than 0 to 9 ({shown})."


def _turned_warning(texts: Iterable[str]) -> str | None:
    count = sum(map(turned, texts))
    if not count:
        return None
    return (
        f"right-to-left: letters that are written from right to left stand in a text that is not ({count} in all): "
        "numbers and signs beside them may be shown in another order than they have."
    )


def _cut(text: str) -> str:
    """Return a text in ASCII, up to a length: a word of a megabyte would hide the other warnings."""
    return ascii_only(escape(text[:_SHOWN])) + ("..." if len(text) > _SHOWN else "")


def _host(host: str) -> str:
    """Return a host name, escaped and of one that is too long the end: that is what says whose it is."""
    return ("..." if len(host) > _SHOWN else "") + escape(host[-_SHOWN:])


def _punycode_warning(hosts: Iterable[str]) -> str | None:
    encoded = [host for host in hosts if "xn--" in host.lower()]
    if not encoded:
        return None
    shown = _listed(f"{ascii_only(_host(host))} reads {_reading(host)}" for host in encoded)
    return f"punycode-host: a host name is spelled in punycode ({shown})."


def _reading(host: str) -> str:
    decoded = _decoded(host)
    return "as nothing valid" if decoded is None else f"{_host(decoded)} = {ascii_only(_host(decoded))}"


def _decoded(host: str) -> str | None:
    """Return a host name with its punycode labels decoded (RFC 3492), or None when one of them is malformed.

    So is one that DNS has no room for (RFC 1035, section 2.3.4). To decode it would take a time that grows with the
    square of its length.
    """
    if len(host) > _MAX_HOST:
        return None
    labels = []
    for label in host.split("."):
        if label.lower().startswith("xn--"):
            if len(label) > _MAX_LABEL:
                return None
            try:
                label = label[4:].encode("ascii").decode("punycode")
            except (ValueError, OverflowError):
                return None
        labels.append(label)
    return ".".join(labels)


def _long_warning(texts: Iterable[str]) -> str | None:
    lengths = [length for length in map(len, texts) if length >= LONG_TEXT]
    if not lengths:
        return None
    return f"long-text: {len(lengths)} of the texts are long, up to {max(lengths)} characters; read each to its end."


def _listed(items: Iterable[str]) -> str:
    every = list(items)
    more = f", and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
