"""What the repository promises about its own shape: layout, size of modules, public names, what the wheel holds."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hitl_guard

ROOT = Path(__file__).resolve().parent.parent
LAYOUT = [
    ".ci/run", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "benchmarks", "docs/adr",
    "hitl_guard", "policies", "pyproject.toml", "requirements.lock", "tests/cli", "tests/contract", "tests/flow",
    "tests/threats", "tests/unit", "tests/vectors",
]
PUBLIC = [
    "ApprovalRequest", "ApprovalRequired", "Assertion", "AsyncGuard", "Challenge", "Credential", "Decision", "Guard",
    "HitlGuardError", "InvalidApprovalError", "InvalidSignatureError", "Keyring", "NoEffect", "Permit", "Policy",
    "Principal", "Registration", "SQLStore", "Settings", "ToolCall", "ToolDefinition", "Verdict",
    "code_policy", "current_permit", "errors", "load_policy",
]
FRAMEWORKS = {
    "agent_framework", "agents", "alembic", "claude_agent_sdk", "click", "fastapi", "fastmcp", "flask", "google.adk",
    "jinja2", "langchain", "langchain_core", "langgraph", "mcp", "openai", "psycopg", "pydantic_ai", "pymysql",
    "starlette", "strands", "uvicorn", "yaml",
}
SLEEPERS = {"anyio", "asyncio", "time", "trio"}
MAX_LINES = 400
ADR_PARTS = ["Context", "Options", "Decision", "Consequences"]

# Written in pieces, so that this file does not hold what it looks for.
INDEX_ADDRESSES = re.compile(
    r"--(extra-)?index" r"-url|--find" r"-links|files\.python" r"hosted\.org|registry\.npm" r"js|\bdeb\.deb" r"ian"
    r"|https?://[^\s\"'<>)]*/sim" r"ple\b|registry\s*=\s*.?http" r"s?:"
)
HOME_PATHS = re.compile(r"(?<![\w.~}-])/((home|Users)/[A-Za-z]|ro" r"ot/|wo" r"rk/)|[A-Z]:\\Users\\")


def tracked_files() -> list[Path]:
    """Return the files that git tracks, or would (not ignored), so that a new file is judged before its commit."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in tracked_files():
        text = path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    return found


def ast_is_sleep(node: ast.AST) -> bool:
    """Return whether ``node`` waits for a fixed time, or imports by name what does.

    ``asyncio.sleep(0)`` waits for nothing: it lets others go on.
    """
    if isinstance(node, ast.ImportFrom):
        return node.module in SLEEPERS and any(alias.name == "sleep" for alias in node.names)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("anyio.sleep", "asyncio.sleep"):
        return [ast.unparse(one) for one in (*node.args, *(keyword.value for keyword in node.keywords))] != ["0"]
    return isinstance(node, ast.Attribute) and ast.unparse(node) in ("time.sleep", "trio.sleep")


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_the_top_level_has_what_the_design_names() -> None:
    missing = [name for name in LAYOUT if not (ROOT / name).exists()]

    assert missing == []


@pytest.mark.parametrize("folder", ["hitl_guard", "benchmarks"])
def test_no_module_is_longer_than_a_reader_can_hold(folder: str) -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in modules(folder)}

    assert lengths
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_tracked_file_names_a_package_index() -> None:
    assert lines_matching(INDEX_ADDRESSES) == []


def test_no_tracked_file_names_a_folder_of_one_machine() -> None:
    assert lines_matching(HOME_PATHS) == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (INDEX_ADDRESSES, "--index" + "-url x"),
        (INDEX_ADDRESSES, "--extra-index" + "-url=x"),
        (INDEX_ADDRESSES, "https://mirror.example/pypi/" + "simple/"),
        (HOME_PATHS, "open('/ho" + "me/someone/x')"),
        (HOME_PATHS, "/Us" + "ers/someone/x"),
        (HOME_PATHS, "path = /ro" + "ot/x"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


@pytest.mark.parametrize(
    "lock", [
        "requirements.lock", "requirements-frameworks-a.lock", "requirements-frameworks-b.lock",
        "requirements-mcp-servers.lock",
    ],
)
def test_every_locked_package_has_an_exact_version_and_a_hash(lock: str) -> None:
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / lock).read_text("utf-8"))[1:]

    assert len(entries) > 30
    assert [entry for entry in entries if not re.match(r"[\w.-]+==\S+ .*\n    --hash=sha256:[0-9a-f]{64}", entry)] == []


def test_no_test_sleeps() -> None:
    sleeps = [
        f"{path.relative_to(ROOT)}: {ast.unparse(node)}"
        for path in modules("tests")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if ast_is_sleep(node)
    ]

    assert sleeps == []


@pytest.mark.parametrize(("source", "sleeps"), [
    ("time.sleep(1)", True), ("run(time.sleep)", True), ("from time import sleep", True),
    ("from asyncio import sleep", True), ("asyncio.sleep(0.01)", True), ("asyncio.sleep(wait)", True),
    ("asyncio.sleep(delay=1)", True), ("asyncio.sleep(0)", False), ("asyncio.sleep(delay=0)", False),
    ("anyio.sleep(1)", True), ("from asyncio import timeout", False),
])
def test_a_sleep_is_found_in_every_spelling(source: str, sleeps: bool) -> None:
    assert any(map(ast_is_sleep, ast.walk(ast.parse(source)))) is sleeps


def test_the_public_names_are_exactly_those_of_the_design() -> None:
    assert sorted(hitl_guard.__all__) == sorted(PUBLIC)
    assert set(PUBLIC) <= set(dir(hitl_guard))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_resolves_and_explains_itself(name: str) -> None:
    value = getattr(hitl_guard, name)

    assert inspect.getdoc(value)


@pytest.mark.parametrize("name", ["Guard", "AsyncGuard", "Permit", "Policy", "Keyring", "SQLStore"])
def test_every_public_method_explains_itself(name: str) -> None:
    methods = dict(inspect.getmembers(getattr(hitl_guard, name), inspect.isroutine))

    silent = [attribute for attribute in methods if attribute[0] != "_" and not inspect.getdoc(methods[attribute])]

    assert silent == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Gaurd'"):
        getattr(hitl_guard, "Gaurd")  # noqa: B009  a type checker sees the plain spelling


def loaded_after(statement: str) -> set[str]:
    """Return the names of the modules that a fresh interpreter has loaded after ``statement``."""
    code = f"import sys\n{statement}\nimport json\nprint(json.dumps(sorted(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_importing_the_package_loads_nothing_else_of_ours_and_nothing_of_others() -> None:
    new = loaded_after("import hitl_guard") - loaded_after("")

    assert {name for name in new if name.split(".")[0] not in sys.stdlib_module_names} == {
        "hitl_guard", "hitl_guard.lazy",
    }


def test_resolving_the_core_names_loads_no_framework() -> None:
    names = sorted(set(PUBLIC) - {"Policy", "load_policy"})

    loaded = loaded_after(f"from hitl_guard import {', '.join(names)}")

    assert loaded & FRAMEWORKS == set()


def test_every_threat_of_the_security_page_has_its_test_file() -> None:
    """A threat is a line that starts with T1, T2 … (heading, list, table) and names ``tests/….py`` before the next."""
    parts = re.split(r"^[#|*\-\s]*T(\d+)\b", (ROOT / "SECURITY.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    numbers = [int(number) for number in parts[::2]]
    tests = [re.findall(r"tests/[\w/]+\.py", text) for text in parts[1::2]]

    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 10
    assert [number for number, files in zip(numbers, tests, strict=True) if not files] == []
    assert [name for files in tests for name in files if not (ROOT / name).is_file()] == []


def test_every_decision_record_has_its_four_parts() -> None:
    records = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    headings = {path.name: re.findall(r"^## (.+)$", path.read_text("utf-8"), re.MULTILINE) for path in records}

    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))
    assert {name: found for name, found in headings.items() if found != ADR_PARTS} == {}


def test_the_wheel_holds_migrations_policies_and_the_typing_marker(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")

    names = set(zipfile.ZipFile(wheel).namelist())

    policies = {f"hitl_guard/_policies/{path.name}" for path in (ROOT / "policies").glob("*.yaml")}
    migrations = {str(path.relative_to(ROOT)) for path in modules("hitl_guard/store/migrations")}
    assert policies
    assert migrations
    assert policies | migrations | {"hitl_guard/py.typed"} <= names
    assert {name.split("/")[0] for name in names} == {"hitl_guard", f"hitl_guard-{hitl_guard.__version__}.dist-info"}
