"""Pydantic AI's real package, by the contract and by what only it has."""

from __future__ import annotations

import pytest

pytest.importorskip("pydantic_ai")

from tests.frameworks.contract import Contract
from tests.frameworks.rig_pydantic_ai import PydanticAI


class TestPydanticAI(Contract):
    rig = PydanticAI()
