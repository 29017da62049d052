"""Strict YAML: one small language, and one error for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from hitl_guard.errors import ConfigurationError
from hitl_guard.policy.source import MAX_BYTES, parse, problem, read_bytes


def test_scalars_mean_what_yaml_1_2_says() -> None:
    text = b"""
word: no
quoted: 'true'
clock: 12:30
date: 2001-01-01
octal: 0777
hex: 0x10
whole: -12
long: 12345678901234567890123
decimal: 1.50
exponent: 1e3
yes: true
no: false
nothing: null
tilde: ~
empty:
"""

    data = parse(text, "p.yaml").data

    assert data == {
        "word": "no", "quoted": "true", "clock": "12:30", "date": "2001-01-01", "octal": "0777", "hex": "0x10",
        "whole": -12, "long": 12345678901234567890123, "decimal": 1.5, "exponent": 1000.0, "yes": True, "no": False,
        "nothing": None, "tilde": None, "empty": None,
    }
    assert type(data["whole"]) is int


def test_lists_and_mappings_nest_and_every_place_has_its_line() -> None:
    parsed = parse(b"rules:\n  - id: a\n    tools: [x, y]\n", "p.yaml")

    assert parsed.data == {"rules": [{"id": "a", "tools": ["x", "y"]}]}
    assert parsed.lines["rules", 0, "tools", 1] == 3


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (b"a: &x 1\nb: *x", 2, "aliases"),
        (b"a: 1\nb: 2\na: 3", 3, "'a' stands here twice"),
        (b"a: {b: 1, 'b': 2}", 1, "'b' stands here twice"),
        (b"1: 2", 1, "key must be a string"),
        (b"? [a]\n: 1", 1, "key must be a string"),
        (b"a: !!str 1", 1, "tags"),
        (b"a: ! x", 1, "tags"),
        (b"!!python/object/apply:os.getcwd []", 1, "tags"),
        (b"a: [1, 2", 1, "not valid YAML"),
        (b"'", 1, "not valid YAML"),
        (b"@a", 1, "not valid YAML"),
        (b"a: |9\n x", 2, "not valid YAML"),
        (b"%YAML 9.9\n--- a", 1, "not valid YAML"),
        (b"a: \x01", None, "characters"),
        (b"a: \xff", None, "UTF-8"),
        (b"\xef\xbb\xbfa: 1", 1, "byte order mark"),
        (b'a: "\\ud800"', 1, "surrogate"),
        (b"a: 1e999", 1, "number"),
        (b"a: " + b"9" * 6000, 1, "number"),
        (b"[" * 5000, 1, "nesting"),
        (b"- " * 5000 + b"a", 1, "nesting"),
        (b"", None, "empty"),
        (b"# only a remark\n", None, "empty"),
        (b"--- a\n--- b", None, "more than one"),
        (b"a" * (MAX_BYTES + 1), None, "longer than"),
    ],
)
def test_anything_else_is_refused_with_file_and_line(text: bytes, line: int | None, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        parse(text, "p.yaml")

    assert caught.value.code == "config-error"
    assert str(caught.value).startswith("p.yaml" if line is None else f"p.yaml:{line}: ")


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>'\"#%@ \n\t0?~,1.", max_size=60).map(str.encode))
def test_any_bytes_are_plain_data_or_a_configuration_error(data: bytes) -> None:
    try:
        value = parse(data, "p.yaml").data
    except ConfigurationError as error:
        value = {error.code: str(error).startswith("p.yaml")}

    assert _is_plain(value)
    assert value != {"config-error": False}


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) is str and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    return value is None or type(value) in (str, int, float, bool)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    a: int
    b: str


def test_a_model_that_does_not_fit_names_the_first_places_and_what_to_do() -> None:
    parsed = parse(b"a: x\nc: 1\n", "p.yaml")

    with pytest.raises(ConfigurationError) as caught:
        parsed.validated(_Model)

    message = str(caught.value)
    assert message.startswith("p.yaml:1: a: ")
    assert "p.yaml:1: b: this key is required; add it." in message
    assert "p.yaml:2: c: this key is unknown; correct its spelling or remove it." in message
    assert caught.value.__cause__ is None


def test_a_model_error_shows_at_most_five_places() -> None:
    parsed = parse(b"a: 1\nb: x\n" + b"".join(b"k%d: 1\n" % number for number in range(9)), "p.yaml")

    with pytest.raises(ConfigurationError) as caught:
        parsed.validated(_Model)

    assert str(caught.value).count("is unknown") == 5


def test_a_place_without_a_line_takes_the_one_around_it() -> None:
    parsed = parse(b"a:\n  - 1\n", "p.yaml")

    assert str(parsed.problem("wrong.", ("a", 0, "x"))) == "p.yaml:2: a[0].x: wrong."


def test_a_problem_can_do_without_lines() -> None:
    assert str(problem("p.yaml", "wrong.")) == "p.yaml: wrong."
    assert str(parse(b"a", "p").problem("wrong.")) == "p:1: wrong."


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"a: 1\r\n")

    assert read_bytes(path) == b"a: 1\r\n"


def test_an_unreadable_or_too_long_file_is_a_configuration_error(tmp_path: Path) -> None:
    long = tmp_path / "long.yaml"
    long.write_bytes(b"#" * (MAX_BYTES + 1))

    for path, words in ((tmp_path / "none.yaml", "cannot be read"), (tmp_path, "cannot be read"),
                        ("a\0b", "not a usable path"), (long, "longer than")):
        with pytest.raises(ConfigurationError, match=words):
            read_bytes(path)
