"""Text and arguments as pieces of HTML, for the page on which a person decides.

Everything that is shown is marked up here or refused by `finalize`: each value stands in a ``<bdi>``, so that it cannot
reorder what surrounds it, and each hidden character is an escape that can be seen. The text of a piece (its
``textContent``) is what `hitl_guard.render.arguments` and `escape` return, so that a script can compare what is shown
with what was signed. Nothing is ever cut.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from markupsafe import escape as html

from .. import canonical
from .characters import escape, visible
from .layout import LONG_TEXT, pieces
from .secrets import MAX_PLACES, Place, Tree, below, printed, tree

MAX_INDENT = 24
"""Spaces in front of a line at most: deeper ones would leave a telephone no room for the value."""

_CLOSING = ("}", "]")
_PUNCTUATION = (",", *_CLOSING)
# A backslash that somebody typed is doubled, so that a run of the first group was hidden characters.
_ESCAPES = re.compile(r"((?:\\u[0-9a-f]{4}|\\[bf])+)|(\\n)|(\\[rt])|(\\.)")
_HIDDEN = re.compile(r"\\u[dD][89abAB][0-9a-f]{2}\\u[0-9a-f]{4}|\\u[0-9a-f]{4}|\\[bf]")


@dataclass(frozen=True, slots=True)
class Laid:
    """Arguments laid out as HTML.

    Attributes:
        lines: One element for each line.
        raw: The canonical text on one line.
        hidden: How many characters are shown as escapes because nobody would see them (breaks and tabs aside).
        folds: How many values are so long that a page may fold them.
        masked: JSON pointers of the values that a mask stands for.
    """

    lines: Markup
    raw: Markup
    hidden: int
    folds: int
    masked: tuple[str, ...]


def text(value: str) -> Markup:
    """Return any text on one line: isolated, hidden characters as escapes, backslashes doubled."""
    return Markup("<bdi>{}</bdi>").format(_escaped(escape(value)))


def shown(escaped: str) -> Markup:
    """Return a text of this package that has its escapes already (`warnings`, `requirement_text`)."""
    return Markup("<bdi>{}</bdi>").format(_escaped(visible(escaped)))


def value_text(value: Any) -> Markup:
    """Return plain JSON data on one line, as canonical JSON."""
    return shown(canonical.canonicalize(value).decode())


def finalize(value: Any) -> Any:
    """Return what a template may print: markup as it is, and of any other text no hidden character."""
    if isinstance(value, Markup):
        return value
    return "none" if value is None else visible(value) if isinstance(value, str) else value


def laid(data: bytes, *, masks: Collection[str] = frozenset()) -> Laid:
    """Lay canonical arguments out as HTML, complete but for the masks.

    Args:
        data: The bytes that were signed.
        masks: JSON pointers of the values that stay masked (see `secrets.secret_pointers`).

    Raises:
        CanonicalizationError: these bytes are no canonical JSON text.
    """
    canonical.decode(data)
    layout = _Layout(data, tree(masks))
    return Laid(
        Markup("").join(map(_line, layout.lines)), Markup("").join(layout.raw), layout.hidden, layout.folds,
        tuple(layout.masked),
    )


def _line(line: tuple[str, list[Markup]]) -> Markup:
    return Markup('<div class="line"><span class="indent">{}</span><div class="rest">{}</div></div>').format(
        line[0], Markup("").join(line[1])
    )


class _Layout:
    """Follows the tokens of well-formed JSON and knows the place of each."""

    def __init__(self, data: bytes, masks: Tree | str) -> None:
        self.lines: list[tuple[str, list[Markup]]] = [("", [])]
        self.raw: list[Markup] = []
        self.hidden = self.folds = 0
        self.masked: list[str] = []
        self._pieces = pieces(data)
        self._value(*next(self._pieces), masks, shown=True)

    def _value(self, space: str, token: str, masks: Tree | str | None, *, shown: bool) -> None:
        if isinstance(masks, str):
            self.masked.append(masks)
            self._put(space, Markup('<span class="mask">masked</span>'))
            masks, shown = None, False  # the tokens inside are followed, not written
        if token in ("{", "["):
            self._plain(space, token, shown)
            self._members(token, masks, shown)
        elif shown:
            self._put(space, self._scalar(token))

    def _members(self, opening: str, masks: Tree | None, shown: bool) -> None:
        index = 0
        for space, token in self._pieces:
            if token in _PUNCTUATION:
                self._plain(space, token, shown)
                if token in _CLOSING:
                    return
                continue
            name: str | int = index
            if opening == "{":
                name = json.loads(token) if masks else ""
                if shown:
                    self._put(space, self._scalar(token, "key"))
                self._plain(*next(self._pieces), shown)  # the colon
                space, token = next(self._pieces)
            index += 1
            self._value(space, token, below(masks, name), shown=shown)

    def _plain(self, space: str, token: str, shown: bool) -> None:
        if shown:
            self._put(space, html(token))

    def _put(self, space: str, piece: Markup) -> None:
        if space.startswith("\n"):
            self.lines.append((space[1 : MAX_INDENT + 1], []))
            space = ""
        self.lines[-1][1].append(html(space) + piece)
        self.raw.append(piece)

    def _scalar(self, token: str, kind: str = "text") -> Markup:
        shown = visible(token)
        long = Markup(' data-long="{}"').format(len(shown)) if len(shown) >= LONG_TEXT else Markup("")
        self.folds += bool(long)
        if not token.startswith('"'):
            return Markup('<bdi class="plain"{}>{}</bdi>').format(long, shown)
        self.hidden += sum(len(_HIDDEN.findall(run[1] or "")) for run in _ESCAPES.finditer(shown))
        kind += " several" if kind == "text" and "\\n" in shown else ""
        return Markup('<span class="{}"{}>"<bdi>{}</bdi>"</span>').format(kind, long, _escaped(shown[1:-1]))


def _escaped(shown: str) -> Markup:
    """Mark the escapes up in a text whose hidden characters are escapes already; each line break also breaks a line."""
    if "\\" not in shown:
        return html(shown)
    parts: list[str] = []
    end = 0
    for found in _ESCAPES.finditer(shown):
        parts.append(html(shown[end : found.start()]))
        kind = "hidden-character" if found[1] else "escape"
        parts.append(Markup('<span class="{}">{}</span>').format(kind, found[0]))
        if found[2]:
            parts.append(Markup("<br>"))
        end = found.end()
    parts.append(html(shown[end:]))
    return Markup("").join(parts)


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that two calls do not share. ``before`` or ``after`` is None where there is none."""

    place: Markup
    before: Markup | None
    after: Markup | None


def differences(before: Any, after: Any, *, masks: Collection[str] = frozenset()) -> list[Difference]:
    """Return the places where two JSON values differ, in the order of the first and then of the second.

    From `secrets.MAX_PLACES` characters of places on the last one says how many are left out.

    Args:
        masks: JSON pointers of values that are named as different, not shown.
    """
    found: list[Difference] = []
    shown = more = 0
    for place, old, new, hidden in _differing(before, after, tree(masks)):
        name = "" if more else printed(place)
        shown += len(name)
        if more or shown > MAX_PLACES:
            more += 1
        else:
            found.append(Difference(text(name or "(everything)"), _side(old, hidden), _side(new, hidden)))
    if more:
        left = f"(too many differences: {more} more {'is' if more == 1 else 'are'} not named here)"
        found.append(Difference(text(left), None, None))
    return found


_NOTHING: Any = object()
_Sides = tuple[Place, Any, Any, bool]


def _differing(before: Any, after: Any, masks: Tree | str) -> Iterator[_Sides]:
    """Yield the place of each difference, the sides, of which one may be `_NOTHING`, and whether they are masked."""
    for place, old, new, part in _leaves(before, after, masks):
        if new is _NOTHING or canonical.canonicalize(old) != canonical.canonicalize(new):
            yield place, old, new, isinstance(part, str)
    for place, new, old, part in _leaves(after, before, masks):
        if old is _NOTHING:
            yield place, old, new, isinstance(part, str)


def _leaves(
    value: Any, other: Any, masks: Tree | str | None, place: Place = ()
) -> Iterator[tuple[Place, Any, Any, Tree | str | None]]:
    """Yield each value without members, what the other side has in its place, and what is masked there."""
    if type(value) not in (dict, list) or not value:
        yield place, value, _NOTHING if type(other) in (dict, list) and other else other, masks
        return
    for step, item in value.items() if type(value) is dict else enumerate(value):
        inside = masks if isinstance(masks, str) else below(masks, step)
        beside = _member(other, step) if type(other) is type(value) else _NOTHING
        yield from _leaves(item, beside, inside, (place, step))


def _member(value: Any, step: Any) -> Any:
    if type(value) is dict:
        return value.get(step, _NOTHING)
    return value[step] if step < len(value) else _NOTHING


def _side(side: Any, hidden: bool) -> Markup | None:
    if side is _NOTHING or hidden:
        return None if side is _NOTHING else Markup('<span class="mask">masked</span>')
    return value_text(side)
