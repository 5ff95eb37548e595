"""How is a run started from the command line? Fork the keeper first, then learn what is asked for, then play it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ralph import __version__
from ralph.cli.request import Request, explain, no_goal, parse_request
from ralph.cli.table import command
from ralph.cli.ui import instead_of_a_goal
from ralph.core.events import Notice
from ralph.core.model import Rule, Run, Stop
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, listed, nickname
from ralph.errors import UserError, complain
from ralph.files import state_folder
from ralph.planning.plan import carried_out
from ralph.process.keeper import Keeper
from ralph.process.signals import ANNOUNCEMENT, Interrupt, interrupt_on_signals
from ralph.run import options
from ralph.run.context import Place
from ralph.run.launch import Launched
from ralph.run.order import Order
from ralph.run.session import Session
from ralph.settings import PRESETS, LoadedSettings, Settings, load, override
from ralph.settings.detect_checks import detect_checks
from ralph.settings.trust import Untrusted, difference_in, trust
from ralph.show.outlet import Ndjson
from ralph.show.screen import Screen, make_screen
from ralph.store.register import recorded_in, runs
from ralph.store.stored_run import StoredRun
from ralph.supervise.supervision import WorkspaceTask


def run_command(command: str, values: dict[str, Any], words: list[str]) -> int:
    """`ralph run` and `ralph loop`: the exit code is the outcome's."""
    if values.get("detach"):
        return _detach(command, values, words)
    if command == "run" and is_place_alone(values, words):
        return instead_of_a_goal(values, words[0])

    with Keeper.start(adopts=True) as keeper:
        interrupt_on_signals()
        asked = parse_request(command, values, words)
        order, loaded = _ordered(command, asked)
        order.goal()  # a goal that cannot be read is said before anything is made
        if asked.dry_run:
            return explain(order, loaded, sys.stderr if asked.json else sys.stdout)
        notices = [*(spoken(loaded) if asked.verbose else ()), *_asides(order, loaded)]
        shown = Shown(asked.json, asked.quiet, asked.verbose)
        _, stop = play(order, keeper, shown, notices=notices)
        return stop.outcome.exit_code


def _ordered(command: str, asked: Request) -> tuple[Order, LoadedSettings]:
    """What was asked for, with what the settings, a plan and the project add to it."""

    loaded = load(
        asked.workspace, asked.overrides, env=os.environ, config=asked.config, options=options.option_names(command)
    )
    spec = loaded.settings.spec and str(asked.workspace / loaded.settings.spec)
    goal = asked.goal_text
    if loaded.settings.tasks:
        settings, plan = carried_out(loaded.settings, asked.workspace)
        loaded, goal = replace(loaded, settings=settings), goal or plan
    if not (goal or asked.goal_file or spec):
        raise no_goal()
    if loaded.settings.preset == "checks" and not loaded.settings.checks:
        loaded = _with_found_checks(loaded, asked.workspace)
    order = Order(
        settings=loaded.settings,
        workspace=str(asked.workspace),
        goal_text=goal,
        goal_file=asked.goal_file or spec,
        one_shot=asked.one_shot,
        unlimited=asked.unlimited,
        version=__version__,
        tells_claim=asked.tells_claim,
        issue=asked.issue.reference if asked.issue else "",
        issue_title=asked.issue.heading if asked.issue else "",
        pr="" if loaded.settings.pr == "off" else loaded.settings.pr,
        config=str(asked.config.absolute()) if asked.config else "",
        green_is_enough=command == "loop" and _has_default_claim(asked, loaded),
    )
    return order, loaded


def _has_default_claim(asked: Request, loaded: LoadedSettings) -> bool:
    """Whether nobody has said what counts as a claim; an explicit one is taken literally."""
    default = PRESETS[loaded.settings.preset]["until"]
    return "until" not in asked.overrides and [*loaded.settings.until] == default


def _with_found_checks(loaded: LoadedSettings, workspace: Path) -> LoadedSettings:
    """A loop needs a check. What the project has is offered: on a terminal Enter takes it, elsewhere it is named."""

    found = detect_checks(workspace)
    if not found:
        raise UserError(
            "no checks given, and none found in this project",
            'name what must pass: --check "CMD"; without anything that verifies the work: ralph run "GOAL"',
        )
    words = " ".join(f'--check "{one.command}"' for one in found)
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise UserError("no checks given", f"this project has some: {words}")
    print(f"No check was given. This project has: {listed([one.command for one in found])}", file=sys.stderr)
    print("Enter takes them, anything else ends this: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline() != "\n":
        raise UserError("no checks given", f"name yours: {words}")
    checks = [{"command": one.command} for one in found]
    return replace(loaded, settings=override(loaded.settings, {"checks": checks}))


def _asides(order: Order, loaded: LoadedSettings) -> list[Notice]:
    """What is left aside is said: other sections of a larger file, and a goal beside a specification."""
    texts = []
    if loaded.ignored:
        texts.append(f"{loaded.sources[-1]}: read ralph_loop, left alone: {', '.join(loaded.ignored)}")
    if order.goal_text and order.goal_file:
        texts.append(f"{order.goal_file} is sent instead of the goal, which is only the title of this run")
    if not texts:
        return []

    return [Notice(text, "info") for text in texts]


def is_place_alone(values: dict[str, Any], words: list[str]) -> bool:
    """Whether a folder is named, and no goal: then a person wants to say it in there."""
    said = ("prompt", "prompt_file", "spec", "directory", "issue")
    if len(words) != 1 or any(name in values for name in said) or not os.path.isdir(words[0]):
        return False
    # After --print a goal is expected: a plain word is one, though a folder may be called so.
    return "print" not in values or os.sep in words[0] or words[0] in (os.curdir, os.pardir)


class Shown:
    """What a person, or a program, wants to see of a run."""

    def __init__(self, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.json, self.quiet, self.verbose = json, quiet, verbose


def refuse_untrusted(workspace: str) -> None:
    """Settings that were changed while a run was at work here are obeyed once a person has accepted them: what has
    changed is shown, and asked about, where there is somebody to ask."""

    difference = difference_in(Path(workspace), os.environ)
    if not difference:
        return
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise Untrusted()
    print(f"ralph: {Untrusted().message}:\n{readable(difference)}", file=sys.stderr)
    print("Go on with them? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Untrusted()
    trust(Path(workspace), os.environ)


def readable(difference: str) -> str:
    """Line by line: none can hide another from the person who is to accept them."""

    redact = Redactor(secret_values(os.environ)).text
    return "\n".join(redact(clean(line)) for line in difference.split("\n"))


def play(
    order: Order,
    keeper: Keeper,
    shown: Shown,
    *,
    place: Place | None = None,
    story: StoredRun | None = None,
    notices: Sequence[Notice] = (),
    rules: Sequence[Rule] = (),
    answers: bool = False,
) -> tuple[Run, Stop]:
    """Plays a run in front of a person. It `answers`: somebody still waits for what its agent has said."""

    if place is None and order.settings.preset == "supervise":
        place = WorkspaceTask(order)
    if story is None:
        refuse_untrusted(order.workspace)
    screen = _screen(order.settings, shown)
    try:
        with Interrupt(lambda: screen.announce(ANNOUNCEMENT)) as interrupt:
            sinks = []
            if shown.json:
                sinks.append(Ndjson(lambda: interrupt.must_end() or session.is_late()))
            session = Session(
                order,
                place=place,
                story=story,
                notices=notices,
                rules=rules,
                listeners=[screen],
                is_read=screen.reads,
                sinks=sinks,
                tick=screen.tick if screen.is_live else None,
                keeper=keeper,
                interrupt=interrupt,
            )
            screen.belongs_to(session.id)
            run, stop = session.play()
            if not answers:
                interrupt.fix_exit_code(stop.outcome.exit_code)
            return run, stop
    finally:
        screen.close()


def _screen(settings: Settings, shown: Shown) -> Screen:

    return make_screen(
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


def spoken(loaded: LoadedSettings) -> list[Notice]:
    """What `--verbose` says before the first turn."""

    from ralph.settings.read import display_path

    merged = msgspec.json.encode(loaded.settings).decode()
    texts = [
        *(f"Loading settings from {display_path(path)}" for path in loaded.sources),
        f"Merged configuration: {merged}",
    ]
    return [Notice(text, "debug") for text in texts]


def _detach(command: str, values: dict[str, Any], words: list[str]) -> int:
    """The run goes on as a process of its own, let go once it is found on record; or says why it cannot begin."""

    if values.get("json") or values.get("dry_run"):
        other = "--json" if values.get("json") else "--dry-run"
        raise UserError(f"--detach and {other} at once", "follow it with `ralph logs -f --json`")
    if "-" in words or values.get("prompt_file") == "-":
        raise UserError("--detach cannot read the goal from standard input", "put it into a file: -f FILE")
    place = state_folder(os.environ, "runs")
    try:
        os.makedirs(place, mode=0o700, exist_ok=True)
        if not os.access(place, os.W_OK):
            raise PermissionError(0, "Permission denied")
    except OSError as error:
        hint = "nobody would find a run that is not listed: name another folder with XDG_STATE_HOME"
        raise UserError(f"cannot write to {place}: {error.strerror}", hint) from None
    given = {name: value for name, value in values.items() if name not in ("detach", "verbose", "quiet")}
    launched = Launched.start(
        [command, "--quiet", *options.words_of(given, options.COMMANDS[command]), "--", *words], os.environ
    )
    here = os.path.join(values.get("directory", "."), ".ralph")
    while not (found := next((run for run in (*runs(), *recorded_in(here)) if launched.plays(run)), None)):
        if launched.exit_code is not None:
            complain(*launched.complaint())
            return launched.exit_code
        time.sleep(0.02)
    launched.let_go()
    name = nickname(found.id)
    print(f"run {found.id} goes on without this terminal")
    print(f"  ralph logs -f {name}   follow it\n  ralph ui             watch and steer all runs")
    print(f"  ralph stop {name}      end it")
    return 0


@command(
    *options.RUN,
    words="[GOAL] [PATH]",
    examples=(
        'ralph run "Make the tests pass" --check "pytest -q" --until checks',
        "ralph run -f PROMPT.md -m 5 -c DONE -V",
        'ralph run --print "Tidy the docs" --ralph 5 --json',
    ),
)
def run(values: dict[str, Any], words: list[str]) -> int:
    """Run an agent on a goal until it is verifiably done.

    Exactly one goal: GOAL (-: standard input), -p, -f, or --spec. Done means: the agent claims it, and every gate
    (checks, tasks, work, protected files) holds. PATH is the folder to work in.

    There are five ways to loop, each a set of defaults:

    \b
    guardrails  your goal, and what failed; the claim is <response>DONE</response>
    goal        the goal and the last answer (--ralph N); the claim is STOP
    checks      a fresh context: task, diff, errors, progress (ralph loop); the claim is COMPLETE
    promise     a reminder in the same session; the claim is <promise>DONE</promise>
    supervise   "continue working" (ralph task); the claim is a file DONE"""
    return run_command("run", values, words)


@command(
    *options.LOOP,
    words="TASK [PATH]",
    examples=(
        'ralph loop "implement JWT login" --check "pytest tests/test_auth.py"',
        'ralph loop --spec spec.md --check "pytest -x" --max-cost 3 --worktree',
    ),
)
def loop(values: dict[str, Any], words: list[str]) -> int:
    """Run an agent, with a fresh context in each iteration, until every --check passes and it says COMPLETE."""
    return run_command("loop", values, words)
