"""`ralph run`, `loop` and `tune`: turn the command line into a request, and play it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ralph.agents import find as find_agent
from ralph.cli.detach import detach
from ralph.cli.play import play
from ralph.cli.request import Parsed, Shown, explain, no_goal, parse_request, read_piped_goal
from ralph.cli.screen import has_usable_terminal, is_folder_alone, open_screen
from ralph.cli.table import command, confirm, is_terminal
from ralph.core.events import Notice
from ralph.core.text import listed
from ralph.errors import UserError
from ralph.options import command_options
from ralph.planning.plans import with_tasks
from ralph.process.keeper import Keeper
from ralph.process.signals import interrupt_on_signals
from ralph.run.request import RunRequest
from ralph.run.tuning import measuring_command
from ralph.settings import override
from ralph.settings.detect_checks import installed_checks
from ralph.settings.read import relative_path
from ralph.verdict.shell_lines import files_run


def run_command(command: str, values: dict[str, Any], words: list[str]) -> int:
    """Run `ralph run` or `ralph loop` and return the exit code of the outcome."""
    if values.get("detach"):
        return detach(command, values, words)
    if command == "run" and is_folder_alone(values, words):
        if has_usable_terminal() and not any(name in values for name in ("json", "quiet", "dry_run", "print")):
            return open_screen(Path(words[0]), {name: value for name, value in values.items() if name != "verbose"})
        values, words = {**values, "directory": words[0]}, []

    with Keeper.start() as keeper:
        interrupt_on_signals()
        parsed = parse_request(command, values, words)
        request = _complete(command, parsed)
        request.goal()  # report an unreadable goal before anything is created
        display, sources = Shown.parse(values), parsed.loaded.sources
        if values.get("dry_run"):
            return explain(request, sources, sys.stderr if display.json else sys.stdout)
        notices = verbose_notices(request, sources) if display.verbose else []
        if request.goal_text and request.goal_file:
            text = f"{request.goal_file} is sent instead of the goal, which is only the title of this run"
            notices.append(Notice(text, "info"))
        _, stop = play(request, keeper, display, notices=notices)
        return stop.outcome.exit_code


def _complete(command: str, parsed: Parsed) -> RunRequest:
    """Return the request of a command line, completed by the settings, a tasks file and standard input."""
    request, settings, workspace = parsed.request, parsed.loaded.settings, Path(parsed.request.workspace)
    _refuse_options_without_effect(parsed)
    if settings.spec and not request.goal_file:
        request = replace(request, goal_file=str(workspace / settings.spec))
    if settings.tasks:
        settings, goal = with_tasks(settings, workspace)
        if not (request.goal_text or request.goal_file):
            request = replace(request, goal_text=goal, tells_claim=True)
    if not (request.goal_text or request.goal_file):
        request = replace(request, goal_text=read_piped_goal())
        if not request.goal_text:
            raise no_goal()
    if settings.traits.needs_checks and not settings.checks:
        settings = override(settings, {"checks": _offer_detected_checks(workspace)})
    if settings.traits.measures:  # the script that measures is not for the agent to change
        scripts = files_run(measuring_command(settings.tune).command, str(workspace))
        settings = override(settings, {"worktree": True, "protect": [*scripts, *settings.protect.globs]})
    # Neither options nor settings say what counts as a claim; an explicit one is taken literally.
    has_default_claim = "until" not in parsed.overrides and [*settings.until] == settings.traits.defaults["until"]
    return replace(
        request,
        settings=settings,
        issue=parsed.issue.reference if parsed.issue else "",
        heading=parsed.issue.heading if parsed.issue else "",
        pr="" if settings.pr == "off" else settings.pr,
        green_is_enough=command == "loop" and has_default_claim,
    )


def _refuse_options_without_effect(parsed: Parsed) -> None:
    """Refuse --model and --session for an agent that is a plain command: ralph can't pass them on."""
    settings, overrides = parsed.loaded.settings, parsed.overrides
    command = settings.agent.command
    if not command or find_agent(command).NAME != "command":
        return
    custom = settings.agents.get(command)
    if overrides.get("agent", {}).get("model") and not (custom and custom.model):
        hint = f"pass it in the command: --agent {shlex.quote(f'{command} --model NAME')}"
        raise UserError(f"--model has no effect: ralph doesn't know how {command} chooses a model", hint)
    if overrides.get("session") == "continue" and not (custom and custom.resume):
        hint = "describe the agent in the settings, with `resume`: see `agents` in `ralph schema settings`"
        raise UserError(f"--session has no effect: ralph doesn't know how {command} continues a session", hint)


def _offer_detected_checks(workspace: Path) -> list[str]:
    """Offer the project's own checks on a terminal; elsewhere raise a UserError that names them."""
    commands = installed_checks(workspace)
    if not commands:
        raise UserError(
            "no checks given, and none found in this project",
            'name what must pass: --check "CMD"; without anything that verifies the work: ralph run "GOAL"',
        )
    words = " ".join(f'--check "{text}"' for text in commands)
    if not is_terminal(sys.stdin, sys.stderr):
        raise UserError("no checks given", f"this project has some: {words}")
    print(f"No check was given. This project has: {listed(commands)}", file=sys.stderr)
    if not confirm("Use these checks?", default=True):
        raise UserError("no checks given", f"name yours: {words}")
    return commands


def verbose_notices(request: RunRequest, sources: Sequence[Path]) -> list[Notice]:
    """Return what `--verbose` says before the first turn."""
    texts = [f"Loading settings from {relative_path(path)}" for path in sources]
    merged = f"Merged configuration: {msgspec.json.encode(request.settings).decode()}"
    return [Notice(text, "debug") for text in (*texts, merged)]


@command(
    *command_options.RUN,
    words="[GOAL] [PATH]",
    examples=(
        'ralph run "Make the tests pass" --check "pytest -q" --until checks',
        "ralph run -f PROMPT.md -m 5 -c DONE -V",
        'ralph run --print "Tidy the docs" --ralph 5 --json',
    ),
)
def run(values: dict[str, Any], words: list[str]) -> int:
    """Run an agent on a goal until it is verifiably done.

    Give one goal: GOAL, -p, -f, --spec, or text on standard input. Done means: the agent claims it, and every gate
    (checks, tasks, work, protected files) holds. PATH is the folder to work in.

    There are five ways to loop, each a set of defaults:

    \b
    guardrails  send the goal and what failed; the claim is <response>DONE</response>
    goal        send the goal and the last answer (--ralph N); the claim is STOP
    checks      start fresh with goal, diff, errors, progress (ralph loop); the claim is COMPLETE
    promise     send a reminder in the same session; the claim is <promise>DONE</promise>
    supervise   say "continue working" (ralph task); the claim is a file DONE"""
    return run_command("run", values, words)


@command(
    *command_options.LOOP,
    words="GOAL [PATH]",
    examples=(
        'ralph loop "implement JWT login" --check "pytest tests/test_auth.py"',
        'ralph loop --spec spec.md --check "pytest -x" --max-cost 3 --worktree',
    ),
)
def loop(values: dict[str, Any], words: list[str]) -> int:
    """Loop with a fresh context until every --check passes and the agent says COMPLETE.

    If the checks turned green in this run and the agent has nothing to add, that counts as COMPLETE."""
    return run_command("loop", values, words)


@command(
    *command_options.TUNE,
    words="GOAL [PATH]",
    examples=(
        'ralph tune "Make parsing faster" --minimize cpu:"python bench.py" --check "pytest -q" --max-cost 5',
        'ralph tune "Make the bundle smaller" --minimize "npm run -s size" --target 40000',
    ),
)
def tune(values: dict[str, Any], words: list[str]) -> int:
    """Optimise a number: keep each attempt that measures better than noise, and undo the others.

    Every attempt has to pass each --check before it is measured. Kept attempts are commits on the run's own branch:
    `ralph accept` merges them."""
    return run_command("tune", values, words)
