"""The stage as a fixture for every test of the agent."""

from __future__ import annotations

from .stage import make_stage, stage

__all__ = ["make_stage", "stage"]
