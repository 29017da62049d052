"""README.md's section on the AI SDK: what is no Python in it holds, too. (`tests.readme` runs the Python.)"""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest

from hitl_guard import Guard, Principal
from hitl_guard.errors import DecisionError
from hitl_guard.models import ToolCall
from hitl_guard.policy.documents import PolicyDocument
from hitl_guard.testing import UnsafeKeyring, UnsafeMemoryStore
from tests.chat.node import HERE, RUN_S, Node
from tests.readme import ROOT

BUNDLE = """\
import { build } from 'esbuild';
import { readFileSync } from 'node:fs';
const stdin = { contents: readFileSync(0, 'utf8'), loader: 'jsx', resolveDir: process.cwd() };
await build({ stdin, bundle: true, write: false, format: 'esm', logLevel: 'error' });
"""


def block(language: str) -> str:
    section = (ROOT / "README.md").read_text("utf-8").partition("### A chat with `useChat`\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(found)


def bundled(node: Node, source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [node.path, "--input-type=module", "-e", BUNDLE], cwd=HERE, input=source, capture_output=True, text=True,
        timeout=RUN_S, check=False,
    )


def test_the_front_end_code_is_made_of_what_the_packages_have(node: Node) -> None:
    source = f"{block('jsx')}\nexport {{ decide, useGuardedChat }};\n"

    good = bundled(node, source)
    bad = bundled(node, source.replace("lastAssistantMessageIs", "lastAssistantMessageWas"))

    assert (good.returncode, good.stderr) == (0, "")
    assert bad.returncode != 0
    assert "lastAssistantMessageWas" in bad.stderr


def test_the_rule_lets_the_chats_own_user_confirm_there_and_nowhere_else() -> None:
    document = f"version: 1\nname: readme\ndefault: deny\nrules:\n{block('yaml')}".encode()
    ana = Principal("ana")
    with UnsafeMemoryStore() as store:
        guard = Guard(policy=PolicyDocument.from_source(document, "readme.yaml"), keyring=UnsafeKeyring(), store=store)
        request = guard.request(ToolCall("cancel_order", {"order": "E-5"}, user=ana, run_id="r", call_id="c1"))
        options: dict[str, Any] = {"approver": ana, "approve": True, "fingerprint": request.fingerprint}

        with pytest.raises(DecisionError):
            guard.decide(request.id, channel="inbox", **options)
        guard.decide(request.id, channel="chat", **options)

        assert guard.get(request.id).state == "approved"
