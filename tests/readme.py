"""README.md's examples: every ```python, ```bash and ```console block is checked by `make lint` and run by the tests.

All blocks run in order, in one empty folder that has ``.venv`` and ``policies`` as the repository has them. Python
blocks share one namespace; shell blocks hand on their folder and variables. In a ``console`` block, lines
after a ``$ command`` are its expected output, in which ``...`` stands for anything. Three commands are checked, not
run, since they would need a network or call these tests again: ``make TARGET`` (the target must exist),
``git clone`` and ``pip install`` (of this very package, with extras that it has).
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LANGUAGES = ("python", "bash", "console")
PAGES = ("README.md", "SECURITY.md", "CHANGELOG.md", "policies/README.md")
COMMAND_SECONDS = 300
"""When a command is given up as hanging; no example is expected to come near."""

_FENCE = re.compile(r"^```(\w*)\s*$")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_NOT_RUN = re.compile(r"^(?:python3? -m )?(?:make|pip install|git clone)\b")


class ReadmeError(Exception):
    """An example does not hold; the message names the line."""


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the number of its first line."""

    language: str
    text: str
    line: int

    def commands(self) -> list[tuple[str, str | None]]:
        """Return ``(command, expected output or None)`` of a shell block; a ``bash`` block is one command."""
        if self.language == "bash":
            return [(self.text, None)]
        commands: list[tuple[str, str | None]] = []
        for line in self.text.splitlines(keepends=True):
            if line.startswith("$ "):
                commands.append((line[2:], None))
            elif line.startswith("> ") and commands:
                commands[-1] = (commands[-1][0] + line[2:], None)
            elif not commands:
                raise ReadmeError(f"line {self.line}: a console block starts with a `$ command`")
            else:
                commands[-1] = (commands[-1][0], (commands[-1][1] or "") + line)
        return commands


def blocks(markdown: str) -> list[Block]:
    """Return the blocks that can be run, in order.

    Raises:
        ReadmeError: a fence is not closed, or there is no block at all.
    """
    found: list[Block] = []
    language, start, lines = None, 0, list[str]()
    for number, line in enumerate(markdown.splitlines(keepends=True), start=1):
        fence = _FENCE.match(line)
        if language is None and fence:
            language, start, lines = fence[1], number + 1, []
        elif language is not None and line.rstrip() == "```":
            if language in LANGUAGES:
                found.append(Block(language, "".join(lines), start))
            language = None
        elif language is not None:
            lines.append(line)
    if language is not None:
        raise ReadmeError(f"line {start - 1}: this fence is not closed")
    if not found:
        raise ReadmeError("there is no example to run")
    return found


def check_command(line: str) -> bool:
    """Check a command that is not run. Return False for one that is to be run.

    Raises:
        ReadmeError: the make target, or the package or extra to install, does not exist.
    """
    line = line.strip()
    if not _NOT_RUN.match(line):
        return False
    words = line.split("#")[0].split()
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        missing = [word for word in words[1:] if not re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE)]
        if missing:
            raise ReadmeError(f"the Makefile has no target {missing}")
    if "install" in words:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        for word in words[words.index("install") + 1 :]:
            wanted = re.fullmatch(r"""["']?([\w.-]+)(?:\[([\w,-]+)\])?["']?""", word)
            extras = set((wanted[2] or "").split(",")) - {""} if wanted else set()
            if not wanted or wanted[1] not in (project["name"], ".") or extras - set(project["optional-dependencies"]):
                raise ReadmeError(f"{word!r} is not this package with extras that it has")
    return True


def _shell(command: str, folder: Path, environment: dict[str, str]) -> tuple[str, Path]:
    """Run ``command`` in bash; update ``environment`` with its variables; return its output and its folder."""
    runnable = "".join(line for line in command.splitlines(keepends=True) if not check_command(line))
    script = f"set -aeuo pipefail\n{runnable}\n{{ pwd; env -0; }} >&3\n"
    with tempfile.TemporaryFile() as state:
        result = subprocess.run(
            ["bash", "-c", f"exec 3>&{state.fileno()}\n{script}"],
            cwd=folder, env=environment, pass_fds=[state.fileno()], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=COMMAND_SECONDS, check=False,
        )
        if result.returncode:
            raise ReadmeError(f"exit code {result.returncode} of `{runnable.strip()}`:\n{result.stdout}")
        state.seek(0)
        where, _, exported = state.read().decode().partition("\n")
    environment.clear()
    for item in filter(None, exported.split("\0")):
        name, _, value = item.partition("=")
        environment[name] = value
    return result.stdout, Path(where)


def _set_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _matches(expected: str, output: str) -> bool:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, output, flags)


def _run_block(block: Block, folder: Path, namespace: dict[str, Any]) -> Path:
    if block.language == "python":
        # Blank lines in front, so that a traceback names the line of README.md.
        exec(compile("\n" * (block.line - 1) + block.text, "README.md", "exec"), namespace)  # noqa: S102
        return folder
    environment = dict(os.environ)
    for command, expected in block.commands():
        output, folder = _shell(command, folder, environment)
        if expected is not None and not check_command(command) and not _matches(expected, output):
            raise ReadmeError(f"`{command.strip()}` printed:\n{output}\nbut README.md shows:\n{expected}")
    _set_environment(environment)
    return folder


def run(markdown: str, folder: Path) -> int:
    """Run every block of ``markdown`` in ``folder``, an empty one, and return how many ran.

    Raises:
        ReadmeError: a block failed, or there is none.
    """
    found = blocks(markdown)
    (folder / ".venv").symlink_to(sys.prefix)
    if (ROOT / "policies").is_dir():
        shutil.copytree(ROOT / "policies", folder / "policies")
    before = dict(os.environ), Path.cwd()
    os.environ["PATH"] = f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    try:
        for block in found:
            os.chdir(folder)
            try:
                folder = _run_block(block, folder, namespace)
            except Exception as error:
                raise ReadmeError(f"README.md, {block.language} block at line {block.line}: {error}") from error
    finally:
        os.chdir(before[1])
        _set_environment(before[0])
    return len(found)


def problems(page: Path) -> Iterator[str]:
    """Yield what is wrong with a page without running it: syntax, commands that cannot be, links to nothing."""
    name = page.relative_to(ROOT).as_posix()
    if not page.exists():
        yield f"{name}: missing"
        return
    text = page.read_text("utf-8")
    for target in _LINK.findall(_CODE.sub("", text)):
        if "://" not in target and not target.startswith("mailto:") and not (page.parent / target).exists():
            yield f"{name}: the link to {target} leads nowhere"
    if name != "README.md":
        return
    try:
        for block in blocks(text):
            if block.language == "python":
                compile("\n" * (block.line - 1) + block.text, name, "exec")
                continue
            for command, _ in block.commands():
                for line in command.splitlines():
                    check_command(line)
    except (ReadmeError, SyntaxError) as error:
        yield f"{name}: {error}"


def main() -> int:
    """Check every page, print what is wrong, and return the exit code."""
    pages = [ROOT / name for name in PAGES] + sorted((ROOT / "docs").rglob("*.md"))
    found = [problem for page in pages for problem in problems(page)]
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        return 1
    count = len(blocks((ROOT / "README.md").read_text("utf-8")))
    print(f"README.md: {count} examples parse; the links of {len(pages)} pages lead somewhere.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
