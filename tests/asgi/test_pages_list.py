"""The lines of the list: short arguments are there in full, and an operator reads what helps against damage."""

from __future__ import annotations

import re

import pytest

from hitl_guard.asgi.page_views import LISTED_BYTES
from tests.asgi.conftest import House
from tests.asgi.visitor import Visitor, link, mail, words
from tests.databases import Database


def given(page: str) -> list[str]:
    """Return what each line of the list says of its arguments, as HTML."""
    return re.findall(r'<p class="given">(.*?)</p>', page)


async def test_x10_short_arguments_are_on_the_list_as_they_were_signed(house: House, bob: Visitor) -> None:
    house.ask(arguments={"order": "A-17", "amount": 9007199254740993})

    page = (await bob.go("/")).text

    assert [words(one) for one in given(page)] == ['{"amount":9007199254740993,"order":"A-17"}']


async def test_at58_arguments_on_the_list_are_one_line_and_nothing_in_them_is_obeyed_or_unseen(
    house: House, bob: Visitor
) -> None:
    house.ask(arguments={"<img src=x>": "a\n\u202eb\u200b</code></p>\x1b[2J\U000e0041"})

    (line,) = given((await bob.go("/")).text)

    assert "<img" not in line
    assert line.count("</code>") == 1
    assert words(line) == '{"<img src=x>":"a\\n\\u202eb\\u200b</code></p>\\u001b[2J\\udb40\\udc41"}'
    assert line.isprintable()


async def test_x10_secrets_are_masked_on_the_list(house: House, bob: Visitor) -> None:
    mail(house)

    (line,) = given((await bob.go("/")).text)

    assert words(line) == '{"copies":1,"pin":masked,"to":"kim@example.org"}'
    assert "0000-1111" not in bob.page


@pytest.mark.parametrize("more", [0, 1, 100_000])
async def test_x10_longer_arguments_are_not_cut_but_left_to_the_page_of_the_request(
    house: House, bob: Visitor, more: int
) -> None:
    request = house.ask(arguments={"text": "x" * (LISTED_BYTES - len('{"text":""}') + more)})

    (line,) = given((await bob.go("/")).text)

    assert len(request.canonical) == LISTED_BYTES + more
    assert ("xxx" in line) is (more == 0)
    if more:
        assert line == f"{len(request.canonical)} bytes of arguments: open it to read them"


async def test_x13_an_operator_is_told_what_finds_out_and_what_tidies_up_and_nobody_else_is(
    house: House, place: Database, bob: Visitor, olga: Visitor
) -> None:
    call, request = house.world.grant()
    house.world.guard.authorize(call, request_id=request.id)
    place.execute("UPDATE hitl_guard_requests SET arguments = :x", {"x": b"{}"})

    for path in ("/?state=all", "/control", link(request)):
        page = words((await olga.go(path)).text)
        assert page.count("hitl-guard audit verify") == page.count("hitl-guard requests sweep") == 1, path
        assert "hitl-guard" not in words((await bob.go(path)).text)
    assert "hitl-guard" not in words((await olga.go("/requests/none")).text)
