"""`hitl-guard policy`: check policy documents before they are trusted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..policy.golden import Explanation

_FILE = click.Path(exists=True, dir_okay=False, readable=True)
_WORDS = {
    "matched": "matched",
    "not-matched": "did not match",
    "failed-matched": "could not tell, which counts as a match",
    "failed-not-matched": "could not tell, which counts as no match",
    "other-tool": "is about other tools",
}


@click.group()
def policy() -> None:
    """Lint, test and explain policy documents."""


@policy.command()
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--strict", is_flag=True, help="Fail on warnings too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def lint(ctx: click.Context, files: tuple[str, ...], strict: bool, as_json: bool) -> None:
    """Load FILES and their golden cases, and point out what they probably do not mean.

    Exit code 1 when a file cannot be used (with --strict: when there is any remark).
    """
    from ..policy.lint import lint as lint_file

    remarks = [(file, remark) for file in files for remark in lint_file(file)]
    if as_json:
        click.echo(json.dumps([
            {"file": file, "severity": one.severity, "code": one.code, "rule": one.rule, "message": one.message}
            for file, one in remarks
        ]))
    else:
        for file, one in remarks:
            rule = f" ({one.rule})" if one.rule else ""
            click.echo(f"{file}: {one.severity} {one.code}{rule}: {_visible(one.message)}")
        click.echo(f"{len(files)} file(s), {len(remarks)} remark(s)")
    if any(strict or one.severity == "error" for _, one in remarks):
        ctx.exit(1)


@policy.command()
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def test(ctx: click.Context, files: tuple[str, ...], as_json: bool) -> None:
    """Run the golden cases that stand beside FILES (NAME_test.yaml beside NAME.yaml).

    Exit code 1 when a case fails, or a policy or its cases cannot be loaded.
    """
    from ..errors import ConfigurationError
    from ..policy.golden import run_cases

    lines: list[dict[str, Any]] = []
    for file in files:
        try:
            lines += [
                {"file": file, "case": result.name, "passed": result.passed, "differences": list(result.differences)}
                for result in run_cases(file)
            ]
        except ConfigurationError as error:
            lines.append({"file": file, "case": None, "passed": False, "differences": [str(error)]})
    failed = [line for line in lines if not line["passed"]]
    if as_json:
        click.echo(json.dumps(lines))
    else:
        for line in failed:
            name = "cannot be tested" if line["case"] is None else _visible(line["case"])
            click.echo(f"{line['file']}: {name}: {_visible('; '.join(line['differences']))}")
        click.echo(f"{len(lines) - len(failed)} passed, {len(failed)} failed")
    if failed:
        ctx.exit(1)


@policy.command()
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option("--tool", required=True, help="The tool's name.")
@click.option("--args", "arguments", default="{}", show_default=True, metavar="JSON", help="The call's arguments.")
@click.option("--turn", metavar="JSON", help='Earlier calls of the turn: [{"tool": …, "args": …}]; null: not known.')
@click.option("--context", "facts", metavar="JSON", help="The host's data for conditions.")
@click.option("--user", help="Whom the agent works for.")
@click.option("--tenant", help="The tenant.")
@click.option("--run", help="The run.")
@click.option("--agent", help="The agent.")
@click.option("--dynamic", is_flag=True, default=None, help="As a tool without a registered definition.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    files: tuple[str, ...], tool: str, arguments: str, turn: str | None, facts: str | None, as_json: bool,
    **names: str | bool | None,
) -> None:
    """Say what FILES, taken together, decide about one call, and what each rule said."""
    from ..errors import ConfigurationError
    from ..policy.combined import Policy
    from ..policy.golden import call_input
    from ..policy.golden import explain as explain_call

    given = _parsed("--args", arguments)
    if type(given) is not dict:
        raise click.BadParameter("give one JSON object.", param_hint="--args")
    try:
        call = call_input(
            tool, given, context=None if facts is None else _parsed("--context", facts), **names,
            **({} if turn is None else {"turn": _parsed("--turn", turn)}),
        )
    except ConfigurationError as error:
        raise click.UsageError(str(error)) from error
    explanation = explain_call(Policy(list(files)), call)
    click.echo(json.dumps(explanation.to_json()) if as_json else _told(explanation))


def _parsed(option: str, text: str) -> Any:
    from .. import canonical
    from ..errors import CanonicalizationError

    try:
        return canonical.parse(text)
    except CanonicalizationError as error:
        why = error.detail or error.code
        raise click.BadParameter(f"this is not strict JSON ({why}).", param_hint=option) from error


def _told(explanation: Explanation) -> str:
    verdict = explanation.verdict
    lines = [f"{verdict.status.value}{f': {verdict.reason}' if verdict.reason else ''}"]
    for need in verdict.requirements:
        who = ", ".join(need.approvers) or ("anybody" if need.self_approval else "anybody but the requester")
        lines.append(f"  needs {need.quorum} of: {who}")
    if verdict.errors:
        lines.append(f"  failed: {', '.join(verdict.errors)} (an approval of this call could not be used)")
    for answer in explanation.answers:
        why = f" ({answer.detail})" if answer.detail else ""
        lines.append(f"{answer.document}/{answer.rule} [{answer.effect}] {_WORDS[answer.outcome]}{why}")
        if answer.when is not None and answer.outcome != "other-tool":
            lines.append(f"  when {' '.join(answer.when.split())}")
    return "\n".join(_visible(line) for line in lines)


def _visible(text: str) -> str:
    """Return text with everything that a terminal would act on escaped."""
    return "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in text)
