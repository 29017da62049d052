"""Pieces of HTML: nothing signed is left out or hidden, nothing is obeyed, secrets are masked (AT-58)."""

from __future__ import annotations

import html
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from hitl_guard import canonical
from hitl_guard.errors import CanonicalizationError
from hitl_guard.render import arguments, escape, warnings
from hitl_guard.render.layout import LONG_TEXT
from hitl_guard.render.markup import MAX_INDENT, differences, finalize, laid, shown, text, value_text
from hitl_guard.render.secrets import MASK, MAX_PLACES, MAX_STEPS, left_masked, masked, pointer, secret_pointers
from tests.unit.test_render import UNSEEN, is_plain, json_values

ATTACKS = {
    "script": "</script><script>alert(1)</script>", "attribute": "\" onmouseover=\"alert(1)", "entity": "&lt;b&gt;",
    "comment": "<!-- -->", "fence": "```\n</pre>", "bidi": "\u202egpj.exe", "tags": "\U000e0041\U000e0042",
    "ansi": "\x1b[2J\x9b1m", "zero width": "pay\u200bpal", "many lines": "a\n" * 5_000, "long": "x" * 100_000,
}


def signed(value: Any) -> bytes:
    return canonical.canonicalize(value)


def words(markup: str) -> str:
    """What a browser's ``textContent`` of our markup is: an independent, simpler look."""
    return html.unescape(re.sub(r"<[^>]*>", "", markup))


def tags(markup: str) -> set[str]:
    return set(re.findall(r"<[^>]*>", markup))


# Arguments


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_at58_what_a_page_shows_is_the_one_layout_and_parses_to_the_signed_value(value: dict[str, Any]) -> None:
    raw = signed(value)

    page = laid(raw)

    assert re.sub(r"\s", "", words(page.lines)) == re.sub(r"\s", "", arguments(raw))
    assert is_plain(words(page.lines))
    assert signed(canonical.parse(words(page.raw))) == raw


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_at58_whatever_a_value_or_a_name_holds_the_markup_is_ours_alone(attack: str) -> None:
    allowed = r'</?(div|span|bdi|br)( class="[a-z -]+")?( data-long="\d+")?>'

    for page in (laid(signed({"note": attack})), laid(signed({attack: [attack, {"a": attack}]}))):
        assert all(re.fullmatch(allowed, tag) for tag in tags(page.lines) | tags(page.raw))
        assert signed(canonical.parse(words(page.raw))) == signed(canonical.parse(words(page.lines)))


@pytest.mark.parametrize("character", sorted(set(UNSEEN.values()) - {"\ud800"}), ids=ascii)
def test_at58_a_character_that_nobody_would_see_is_marked_and_counted(character: str) -> None:
    page = laid(signed({"to": f"a{character}b"}))

    assert page.hidden == 1
    assert page.lines.count('<span class="hidden-character">') == 1
    assert character not in page.lines


def test_hidden_characters_are_counted_as_often_as_the_warning_says() -> None:
    raw = signed({"a\u200b": "\u202e\u202e\U000e0041\x08\x00", "b": "line\nline\ttab \\u202e \\n"})

    assert laid(raw).hidden == 6
    assert warnings(raw)[0].startswith("hidden-characters")
    assert "6 in all" in warnings(raw)[0]


def test_breaks_and_typed_escapes_are_no_hidden_characters() -> None:
    page = laid(signed({"a": "one\ntwo\t\\u202e\""}))

    assert page.hidden == 0
    assert "hidden-character" not in page.lines


def test_each_value_and_name_is_isolated() -> None:
    page = laid(signed({"name": "\u05d0\u05d1", "n": 12, "t": True}))

    assert [words(one) for one in re.findall(r"<bdi[^>]*>.*?</bdi>", page.raw)] == [
        "n", "12", "name", "\u05d0\u05d1", "t", "true",
    ]


def test_a_text_of_several_lines_breaks_inside_its_own_block() -> None:
    page = laid(signed({"note": 'x\n"amount": 1', "other": "y"}))

    assert '<span class="text several">"<bdi>x<span class="escape">\\n</span><br>' in page.lines
    assert page.lines.count('class="line"') == 4


def test_every_long_value_name_and_number_may_be_folded_and_is_there_in_full() -> None:
    raw = signed({"k" * LONG_TEXT: "v" * 5_000, "n": 10**999, "short": "v" * (LONG_TEXT - 3)})

    page = laid(raw)

    assert page.folds == page.lines.count("data-long=") == 3
    assert "v" * 5_000 in page.lines


def test_lines_are_indented_by_depth_and_never_off_a_small_screen() -> None:
    value: Any = 1
    for _ in range(40):
        value = [value]

    page = laid(signed({"deep": value}))

    indents = [len(one) for one in re.findall(r'class="indent">( *)<', page.lines)]
    assert indents[:4] == [0, 2, 4, 6]
    assert max(indents) == MAX_INDENT


def test_what_is_no_json_is_refused() -> None:
    for data in (b"", b"{", b'{"a":1,}', b'{"a":1}x', b"\xff"):
        with pytest.raises(CanonicalizationError):
            laid(data)


# Secrets


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "user": {"type": "string"}, "password": {"type": "string", "format": "password"},
        "card": {"writeOnly": True, "type": "object"}, "keys": {"type": "array", "items": {"x-secret": True}},
        "nested": {"properties": {"token": {"$ref": "#/$defs/token"}}},
    },
    "$defs": {"token": {"x-secret": True}},
}
VALUES: dict[str, Any] = {
    "user": "ana", "password": "hunter2", "card": {"number": "4111", "cvc": [1, 2]}, "keys": ["k-1", "k-2"],
    "nested": {"token": "t-1", "plain": "p-1"},
}
SECRETS = ("hunter2", "4111", "cvc", "k-1", "k-2", "t-1")


def test_at67_a_masked_value_is_in_no_piece_of_the_page_and_everything_else_is() -> None:
    places = secret_pointers(SCHEMA, VALUES)

    page = laid(signed(VALUES), masks=places)

    assert places == {"/card", "/keys/0", "/keys/1", "/nested/token", "/password"}
    assert set(page.masked) == places
    assert not any(secret in page.lines + page.raw for secret in SECRETS)
    assert "p-1" in page.lines
    assert "ana" in page.lines
    assert page.lines.count('<span class="mask">') == page.raw.count('<span class="mask">') == 5


def test_at67_a_whole_call_can_be_masked() -> None:
    page = laid(signed(VALUES), masks={""})

    assert words(page.raw) == "masked"


def test_a_name_with_a_slash_or_a_tilde_has_its_own_pointer() -> None:
    value = {"a/b": {"~": 1}, "a": {"b": {"~": 2}}}

    page = laid(signed(value), masks={pointer("a/b", "~")})

    assert page.masked == ("/a~1b/~0",)
    assert words(page.raw) == '{"a":{"b":{"~":2}},"a/b":{"~":masked}}'


def test_plain_data_is_masked_the_same() -> None:
    shown_ = masked(VALUES, secret_pointers(SCHEMA, VALUES))

    assert shown_["card"] == shown_["password"] == shown_["keys"][1] == shown_["nested"]["token"] == MASK
    assert shown_["user"] == "ana"
    assert VALUES["password"] == "hunter2"


@pytest.mark.parametrize(("schema", "places"), [
    ({"anyOf": [{}, {"properties": {"a": {"x-secret": True}}}]}, {"/a"}),
    ({"if": {"properties": {"a": {"writeOnly": True}}}}, {"/a"}),
    ({"dependentSchemas": {"b": {"properties": {"a": {"writeOnly": True}}}}}, {"/a"}),
    ({"patternProperties": {"^never$": {"x-secret": True}}}, {"/a", "/b"}),
    ({"additionalProperties": {"x-secret": True}, "properties": {"a": {}}}, {"/b"}),
    ({"properties": {"b": {"prefixItems": [{"x-secret": True}]}}}, {"/b/0"}),
    ({"properties": {"b": {"items": [{}, {"x-secret": True}]}}}, {"/b/1"}),
    ({"properties": {"b": {"contains": {"x-secret": True}}}}, {"/b/0", "/b/1"}),
    ({"properties": {"a": {"$ref": "https://example.org/s"}, "c": {"x-secret": True}}}, {"/a"}),
    ({"properties": {"a": {"$ref": "#/nowhere"}, "c": {"x-secret": True}}}, {"/a"}),
    ({"properties": {"a": {"$ref": "#/allOf/0"}}, "allOf": [{"x-secret": True}]}, {"", "/a"}),
    ({"properties": {"a": {"$ref": "#/allOf/7"}}, "allOf": [{"not": {"x-secret": True}}]}, {"", "/a"}),
    ({"properties": {"a": {"$ref": "#/type/x"}, "c": {"x-secret": True}}, "type": "object"}, {"/a"}),
    ({"properties": {"a": {"$ref": "#"}, "c": {"x-secret": True}}}, set()),
    ({"properties": {"a": {"$ref": "#a"}}}, set()),
    ({"dependencies": {"b": {"properties": {"a": {"x-secret": True}}}, "a": ["b"]}}, {"/a"}),
    ({"dependencies": ["a"], "properties": {"b": {"x-secret": True}}}, {"/b"}),
    ({"extends": {"properties": {"a": {"x-secret": True}}}}, {"/a"}),
    ({"extends": [{"properties": {"a": {"x-secret": True}}}], "type": ["object"]}, {"/a"}),
    ({"properties": {"a": {"contentSchema": {"properties": {"k": {"x-secret": True}}}}}}, {"/a"}),
    ({"properties": {"a": {"contentSchema": {"$ref": "#/x"}}, "b": {"contentSchema": {"$ref": "#"}}},
      "x": {"x-secret": True}}, {"/a"}),
    ({"properties": {"a": {"contentSchema": {"title": "x"}}, "c": {"x-secret": True}}}, set()),
    ({"properties": {"a": {"$ref": "#/properties/b"}, "b": None, "c": {"x-secret": True}}}, {"/a"}),
    ({"properties": {"a": {"$ref": "#/title/0"}, "c": {"x-secret": True}}, "title": "x"}, {"/a"}),
    ({"x-secret": True}, {""}),
    ({"properties": {"a": {"x-secret": False, "writeOnly": False}}}, set()),
    (None, set()),
])
def test_in_doubt_a_value_is_secret(schema: Any, places: set[str]) -> None:
    assert secret_pointers(schema, {"a": "one", "b": [1, 2]}) == places


SECRET, PLAIN = {"x-secret": True}, {"type": "string"}
RESOURCE = {"$defs": {"s": SECRET}, "properties": {"p": {"$ref": "#/$defs/s"}}}


@pytest.mark.parametrize(("schema", "places"), [
    ({"$defs": {"s": PLAIN}, "properties": {"a": RESOURCE | {"$id": "https://x.example/s"}}}, {"/a/p"}),
    ({"$defs": {"s": PLAIN}, "properties": {"a": RESOURCE | {"id": "https://x.example/s"}}}, {"/a/p"}),
    ({"$defs": {"s": PLAIN}, "properties": {"a": RESOURCE}, "x": SECRET}, set()),
    ({"$defs": {"s": PLAIN, "r": RESOURCE | {"$id": "r"}}, "properties": {"a": {"$ref": "#/$defs/r"}}}, {"/a/p"}),
    ({"$defs": {"s": PLAIN, "r": RESOURCE | {"$id": "r"}},
      "properties": {"a": {"properties": {"p": {"$ref": "#/$defs/r/properties/p"}}}}}, {"/a/p"}),
    ({"$defs": {"s": SECRET}, "properties": {"a": {"$id": "a", "properties": {"p": {"$ref": "#/$defs/s"}}}}}, {"/a/p"}),
    ({"$defs": {"s": SECRET}, "properties": {"a": {"$id": "a", "$defs": {"s": PLAIN},
                                                   "properties": {"p": {"$ref": "#/$defs/s"}}}}}, {"/a/p"}),
])
def test_x21_a_reference_below_an_embedded_id_may_lead_to_a_secret(schema: Any, places: set[str]) -> None:
    assert secret_pointers(schema, {"a": {"p": "hunter2", "q": "plain"}}) == places


def test_x21_a_mask_that_was_left_where_a_secret_belongs_is_told() -> None:
    for place in (("password",), ("card",), ("keys", 1), ("nested", "token")):
        bent = masked(VALUES, {pointer(*place)})
        assert left_masked(SCHEMA, bent)
    assert not left_masked(SCHEMA, VALUES | {"user": MASK})
    assert not left_masked(None, {"password": MASK})


def test_a_value_inside_a_masked_one_needs_no_pointer_of_its_own() -> None:
    for places in (["/card", "/card/number"], ["/card/number", "/card"]):
        assert masked(VALUES, places)["card"] == MASK
        assert laid(signed(VALUES), masks=places).masked == ("/card",)


def test_a_call_with_secrets_in_too_long_places_is_masked_as_a_whole() -> None:
    schema = {"properties": {"pins": {"additionalProperties": {"items": {"x-secret": True}}}}}

    def found(count: int) -> frozenset[str]:
        return secret_pointers(schema, {"pins": {"k" * (MAX_PLACES // 10): [0] * count}})

    assert len(found(9)) == 9
    assert found(10) == {""}


LISTS: dict[str, Any] = {"properties": {"pin": SECRET, "data": {"additionalProperties": {"items": PLAIN}}}}
SECRET_LISTS: dict[str, Any] = {"properties": {"data": {"additionalProperties": {"items": SECRET}}}}
LOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "differences": lambda old, new: differences(old, new),
    "laid": lambda old, new: laid(signed(new), masks={"/pin"}),
    "masked": lambda old, new: masked(new, {"/pin"}),
    "places": lambda old, new: secret_pointers(LISTS, new),
    "secret places": lambda old, new: secret_pointers(SECRET_LISTS, new),
    "masks": lambda old, new: left_masked(LISTS, new),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_at69_a_long_name_of_many_values_takes_memory_as_the_call_does(look: Callable[[Any, Any], Any]) -> None:
    def peak(size: int) -> int:
        old, new = ({"data": {"k" * (50 * size): [number] * size}, "pin": "1"} for number in (1, 2))
        tracemalloc.start()
        look(old, new)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)  # what is imported or cached once

    # A pointer for each value would take 200 MB, and four times as much for twice as long a call.
    assert peak(4_000) < 3 * peak(2_000) + 2_000_000 < 80_000_000


def test_differences_in_too_long_places_are_counted_and_not_named() -> None:
    old, new = ({"k" * (MAX_PLACES // 10): [number] * 20, "z": number} for number in (1, 2))

    *named, rest = differences(old, new)

    assert len(named) == 9
    assert words(rest.place) == "(too many differences: 12 more are not named here)"
    assert (rest.before, rest.after) == (None, None)
    (only,) = differences({"k" * MAX_PLACES: 1}, {"k" * MAX_PLACES: 2})
    assert words(only.place) == "(too many differences: 1 more is not named here)"


def test_a_schema_that_takes_too_long_masks_everything() -> None:
    branches = [{"properties": {"a": {"items": {"not": {"title": str(number)}}}}} for number in range(100)]
    schema = {"anyOf": [*branches, {"properties": {"z": {"x-secret": True}}}]}

    assert secret_pointers(schema, {"a": list(range(MAX_STEPS // 100))}) == {""}


# Texts


@given(st.text())
def test_any_text_is_isolated_plain_and_can_be_read_back(value: str) -> None:
    piece = text(value)

    assert piece.startswith("<bdi>")
    assert piece.endswith("</bdi>")
    assert words(piece) == escape(value)


def test_a_text_with_escapes_of_ours_is_not_escaped_twice() -> None:
    assert words(shown(escape("a\u202e\\"))) == "a\\u202e\\\\"


def test_a_value_is_shown_as_json() -> None:
    assert words(value_text({"a": ["\u200b<b>", 1.5]})) == '{"a":["\\u200b<b>",1.5]}'


def test_a_template_prints_no_hidden_character_that_nobody_marked() -> None:
    assert finalize("a\u202eb") == "a\\u202eb"
    assert finalize(Markup("<b>\u202e</b>")) == "<b>\u202e</b>"
    assert (finalize(None), finalize(7)) == ("none", 7)


# Differences


def test_differences_are_named_by_place_with_both_values() -> None:
    found = differences({"amount": 1500, "to": "ana", "old": 1}, {"amount": 9500, "to": "ana", "new": [True]})

    shown_ = [tuple(side and words(side) for side in (one.place, one.before, one.after)) for one in found]
    assert shown_ == [("/amount", "1500", "9500"), ("/old", "1", None), ("/new/0", None, "true")]


def test_a_number_and_its_text_differ_and_an_empty_list_is_a_value() -> None:
    found = differences({"a": 1, "b": []}, {"a": "1", "b": {}})

    assert [(words(one.before or ""), words(one.after or "")) for one in found] == [("1", '"1"'), ("[]", "{}")]
    assert differences({"a": [1, {}]}, {"a": [1, {}]}) == []
    assert len(differences({"a": [1]}, {"a": {"0": 1}})) == 2
    assert len(differences({"a": [1, 2]}, {"a": 1})) == len(differences({"a": 1}, {"a": [1, 2]})) == 3


def test_at67_a_secret_that_differs_is_named_and_not_shown() -> None:
    found = differences({"card": {"number": "4111"}, "n": 1}, {"card": {"number": "4222"}, "n": 1}, masks={"/card"})

    assert [words(one.place) for one in found] == ["/card/number"]
    assert "4111" not in str(found)
    assert "4222" not in str(found)
    assert differences(1, 2, masks={""})[0].before == Markup('<span class="mask">masked</span>')
