"""README.md's examples run from top to bottom, and the harness that runs them notices when one does not hold."""

from __future__ import annotations

import codeop
import os
from pathlib import Path

import pytest

from tests.readme import ROOT, ReadmeError, blocks, check_command, problems, run


def test_every_example_of_the_readme_runs_in_order(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")

    ran = run(readme, tmp_path)

    assert ran == len(blocks(readme)) > 0


def test_a_page_without_an_example_fails() -> None:
    with pytest.raises(ReadmeError, match="no example"):
        blocks("# Title\n\n```text\nnot an example\n```\n")


def test_a_fence_that_is_not_closed_fails() -> None:
    with pytest.raises(ReadmeError, match="line 1: this fence is not closed"):
        blocks("```python\nprint()\n")


def test_python_blocks_share_names_and_shell_blocks_hand_on_folder_and_variables(tmp_path: Path) -> None:
    page = """
```python
word = "kept"
```
```bash
mkdir inner
cd inner
export HITL_GUARD_EXAMPLE=exported
```
```python
import codeop
import os
assert (word, os.environ["HITL_GUARD_EXAMPLE"], os.path.basename(os.getcwd())) == ("kept", "exported", "inner")
```
"""
    folder = Path.cwd()

    ran = run(page, tmp_path)

    assert ran == 3
    assert (Path.cwd(), os.environ.get("HITL_GUARD_EXAMPLE")) == (folder, None)


def test_console_output_is_compared_and_dots_stand_for_anything(tmp_path: Path) -> None:
    assert run("```console\n$ id=$(echo 123)\n$ echo id $id done\nid ... done\n```\n", tmp_path) == 1


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("```python\n\nassert 1 == 2, 'differs'\n```", "line 2: differs"),
        ("```bash\necho seen; false\n```", "exit code 1 .*\nseen"),
        ("```console\n$ echo yes\nno\n```", "printed:\nyes"),
        ("```console\nno prompt\n```", "starts with a"),
        ("```console\n$ make no-such-target\n```", "no target"),
        ("```bash\npip install another-package\n```", "is not this package"),
        ("```bash\npip install 'hitl-guard[no-such-extra]'\n```", "is not this package"),
    ],
)
def test_an_example_that_does_not_hold_is_told_with_its_line(block: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ReadmeError, match=message):
        run(block, tmp_path)


@pytest.mark.parametrize(
    "command", ["make demo", "make venv test", "pip install hitl-guard", "pip install 'hitl-guard[postgres]'"]
)
def test_set_up_commands_are_checked_and_not_run(command: str) -> None:
    assert check_command(command)


def test_a_link_to_nothing_is_a_problem_but_code_is_not_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.readme.ROOT", tmp_path)
    page = tmp_path / "SECURITY.md"
    page.write_text('[a](gone.md) [b](SECURITY.md#part) [c](https://example.org)\n\n```python\ntools["x"](y)\n```\n')

    found = list(problems(page))

    assert found == ["SECURITY.md: the link to gone.md leads nowhere"]


def test_every_python_example_can_be_pasted_into_the_interpreter() -> None:
    """Line by line: a blank line ends what is indented, and nothing else does."""
    for block in blocks((ROOT / "README.md").read_text("utf-8")):
        waiting: list[str] = []
        for number, line in enumerate(block.text.splitlines() if block.language == "python" else (), start=block.line):
            waiting.append(line)
            try:
                compiled = codeop.compile_command("\n".join(waiting))
            except SyntaxError as error:
                raise AssertionError(f"README.md, line {number}: {line!r} cannot be pasted there") from error
            if compiled is not None:
                waiting = []
        assert "".join(waiting).strip() == "" or codeop.compile_command("\n".join([*waiting, ""])) is not None
