"""`ralph run` and `ralph loop`: turn the command line into a request, prepare it, and play it in front of the user."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ralph.actions.followers import FOLLOWERS
from ralph.actions.launch import Launched
from ralph.agents import find as find_agent
from ralph.cli.request import Parsed, Shown, explain, no_goal, parse_request, read_piped_goal
from ralph.cli.table import command, confirm, is_terminal, needs_extra
from ralph.core.events import Notice
from ralph.core.model import Rule, Run, Stop
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, listed, nickname
from ralph.errors import UserError, complain
from ralph.options import command_options
from ralph.planning.plans import with_tasks
from ralph.process.keeper import Keeper
from ralph.process.signals import ANNOUNCEMENT, Deadline, Interrupt, interrupt_on_signals
from ralph.run.plan import Place, prepare
from ralph.run.play import make_clock, report_refusal
from ralph.run.play import play as play_plan
from ralph.run.request import RunRequest
from ralph.run.tuning import measuring_command
from ralph.settings import override
from ralph.settings.detect_checks import installed_checks
from ralph.settings.read import relative_path
from ralph.settings.trust import Untrusted
from ralph.show.outlet import Ndjson
from ralph.show.report import for_review
from ralph.show.screen import make_screen
from ralph.store.journal import StoredRun
from ralph.store.register import runs, runs_in
from ralph.verdict.context import Tick
from ralph.verdict.shell_lines import files_run


def run_command(command: str, values: dict[str, Any], words: list[str]) -> int:
    """Run `ralph run` or `ralph loop` and return the exit code of the outcome."""
    if values.get("detach"):
        return _detach(command, values, words)
    if command == "run" and is_folder_alone(values, words):
        if has_usable_terminal() and not any(name in values for name in ("json", "quiet", "dry_run", "print")):
            return open_screen(Path(words[0]), {name: value for name, value in values.items() if name != "verbose"})
        values, words = {**values, "directory": words[0]}, []

    with Keeper.start() as keeper:
        interrupt_on_signals()
        parsed = parse_request(command, values, words)
        request = _complete(command, parsed)
        request.goal()  # report an unreadable goal before anything is created
        shown, sources = Shown.parse(values), parsed.loaded.sources
        if values.get("dry_run"):
            return explain(request, sources, sys.stderr if shown.json else sys.stdout)
        notices = verbose_notices(request, sources) if shown.verbose else []
        if request.goal_text and request.goal_file:
            text = f"{request.goal_file} is sent instead of the goal, which is only the title of this run"
            notices.append(Notice(text, "info"))
        _, stop = play(request, keeper, shown, notices=notices)
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
    found = installed_checks(workspace)
    if not found:
        raise UserError(
            "no checks given, and none found in this project",
            'name what must pass: --check "CMD"; without anything that verifies the work: ralph run "GOAL"',
        )
    words = " ".join(f'--check "{one}"' for one in found)
    if not is_terminal(sys.stdin, sys.stderr):
        raise UserError("no checks given", f"this project has some: {words}")
    print(f"No check was given. This project has: {listed(found)}", file=sys.stderr)
    if not confirm("Use these checks?", default=True):
        raise UserError("no checks given", f"name yours: {words}")
    return found


def is_folder_alone(values: dict[str, Any], words: list[str]) -> bool:
    """Whether the command names a folder and no goal: the goal is then typed in the TUI, or piped in."""
    other_goals = ("prompt", "prompt_file", "spec", "directory", "issue")
    if len(words) != 1 or any(name in values for name in other_goals) or not os.path.isdir(words[0]):
        return False
    # After --print a plain word is the goal, even if there is a folder of that name.
    return "print" not in values or os.sep in words[0] or words[0] in (os.curdir, os.pardir)


def has_usable_terminal() -> bool:
    """Whether this is a terminal that the TUI can use: textual reads stdin and draws on stderr."""
    return is_terminal(sys.stdin, sys.stdout, sys.stderr) and os.environ.get("TERM", "") not in ("", "dumb")


def open_screen(place: Path, given: Mapping[str, Any] | None = None) -> int:
    """Open the TUI and return when the user leaves. `given` are options for every run that is started there."""
    with needs_extra("the TUI", "tui"):
        from ralph.tui.app import RalphApp
        from ralph.tui.draw import tui_style
        from ralph.tui.tui_state import TuiState

    state = TuiState(place.resolve(), given)
    app = RalphApp(state, tui_style(sys.stdout))
    try:
        kept = app.run() or []
    finally:
        state.close()
    for name in map(nickname, kept):
        how = f"run {name} continues: `ralph logs -f {name}` follows it, `ralph stop {name}` stops it"
        print(how if name else "a run continues: `ralph ps` lists it", file=sys.stderr)
    return 3 if app.return_code else 0


def confirm_settings(difference: str) -> bool:
    """Show what changed in the settings during an earlier run, and ask the user; False without a terminal."""
    if not is_terminal(sys.stdin, sys.stderr):
        return False
    print(f"ralph: {Untrusted().message}:\n{readable(difference)}", file=sys.stderr)
    return confirm("Use them?")


def readable(difference: str) -> str:
    """Return a patch without secrets and control characters, so that no line can hide another."""
    redact = Redactor(secret_values(os.environ)).text
    return "\n".join(redact(clean(line)) for line in difference.split("\n"))


def play(
    request: RunRequest,
    keeper: Keeper,
    shown: Shown,
    *,
    place: Place | None = None,
    story: StoredRun | None = None,
    notices: Sequence[Notice] = (),
    rules: Sequence[Rule] = (),
    ticks: Sequence[Tick] = (),
    answers: bool = False,
) -> tuple[Run, Stop]:
    """Play a run in front of the user. `answers`: the command still has to print what the agent said."""
    place = place or Place(home=Path(request.workspace))
    run_id = story.run.id if story else place.run_id
    settings = request.settings
    screen = make_screen(
        sys.stderr,
        quiet=shown.quiet,
        verbose=shown.verbose,
        agent_output=settings.stream_agent_output,
        color=None if settings.color else False,
        emoji=None if settings.emoji else False,
        live=not (shown.json and os.isatty(1)),
        timestamps=settings.timestamps,
        output_lines=settings.max_output_lines,
        output_chars=settings.max_output_chars,
    )
    screen.belongs_to(run_id)
    with closing(screen), Interrupt(lambda: screen.announce(ANNOUNCEMENT)) as interrupt:
        clock = make_clock(request, story)
        deadline = Deadline(interrupt, run_id, request.settings.grace, clock.time_left)
        sinks = [Ndjson(lambda: interrupt.must_end() or deadline.is_over())] if shown.json else []
        with report_refusal(run_id, sinks, interrupt, is_resumed=story is not None):
            plan = prepare(
                request,
                place=place,
                rules=rules,
                notices=notices,
                story=story,
                deadline=deadline,
                accept_settings=confirm_settings,
                describe=for_review,
            )
        played = play_plan(
            plan,
            listeners=[screen],
            followers=FOLLOWERS,
            sinks=sinks,
            is_read=screen.reads,
            ticks=[*ticks, *([screen.tick] if screen.is_live else [])],
            keeper=keeper,
            interrupt=interrupt,
            clock=clock,
        )
        if not answers:
            interrupt.fix_exit_code(played.stop.outcome.exit_code)
        return played.run, played.stop


def verbose_notices(request: RunRequest, sources: Sequence[Path]) -> list[Notice]:
    """Return what `--verbose` says before the first turn."""
    texts = [f"Loading settings from {relative_path(path)}" for path in sources]
    merged = f"Merged configuration: {msgspec.json.encode(request.settings).decode()}"
    return [Notice(text, "debug") for text in (*texts, merged)]


def _detach(command: str, values: dict[str, Any], words: list[str]) -> int:
    """Start the run as another process; return once it is on record, or report why it can't start."""
    if values.get("json") or values.get("dry_run"):
        other = "--json" if values.get("json") else "--dry-run"
        raise UserError(f"--detach can't be combined with {other}", "follow the run with `ralph logs -f --json`")
    if "-" in words or values.get("prompt_file") == "-":
        raise UserError("--detach can't read the goal from standard input", "put it into a file: -f FILE")
    given = {name: value for name, value in values.items() if name not in ("detach", "verbose", "quiet")}
    launched = Launched()
    launched.start(
        [command, "--quiet", *command_options.words_of(given, command_options.COMMANDS[command]), "--", *words],
        os.environ,
    )
    here = os.path.join(values.get("directory", "."), ".ralph")
    while not (found := next((run for run in (*runs(), *runs_in(here)) if launched.plays(run)), None)):
        if launched.exit_code is not None:
            complain(*launched.complaint())
            return launched.exit_code
        time.sleep(0.02)
    launched.let_go()
    name = nickname(found.id)
    print(f"run {found.id} continues in the background")
    print(f"  ralph logs -f {name}   follow it\n  ralph ui             watch and steer all runs")
    print(f"  ralph stop {name}      stop it")
    return 0


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
