"""The signed formats are what SECURITY.md says: fixed vectors, checked by a program that knows only that page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.vectors.make_formats import FILE, vectors


def test_the_formats_give_exactly_the_published_vectors() -> None:
    published = json.loads(FILE.read_text("utf-8"))

    assert vectors() == published


def test_another_language_verifies_every_format_from_the_security_page_alone() -> None:
    node = shutil.which("node")
    if node is None:
        if "CI" in os.environ:
            pytest.fail("Node is needed here", pytrace=False)
        pytest.skip("Node is not installed")

    script = Path(__file__).with_name("verify_formats.mjs")
    done = subprocess.run([node, str(script), str(FILE)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >= 20
