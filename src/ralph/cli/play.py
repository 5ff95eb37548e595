"""Play a run in front of the user."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from ralph.actions.followers import FOLLOWERS
from ralph.cli.request import Shown
from ralph.cli.table import confirm, is_terminal
from ralph.core.events import Notice
from ralph.core.model import Rule, Run, Stop
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean
from ralph.process.keeper import Keeper
from ralph.process.signals import ANNOUNCEMENT, Deadline, Interrupt
from ralph.run.plan import Place, prepare
from ralph.run.play import make_clock
from ralph.run.play import play as play_plan
from ralph.run.request import RunRequest
from ralph.run.run_files import report_refusal
from ralph.settings.trust import Untrusted
from ralph.show.outlet import Ndjson
from ralph.show.report import for_review
from ralph.show.screen import make_screen
from ralph.store.journal import StoredRun
from ralph.verdict.context import Tick


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
    display: Shown,
    *,
    place: Place | None = None,
    story: StoredRun | None = None,
    accepts_files: bool = False,
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
        quiet=display.quiet,
        verbose=display.verbose,
        agent_output=settings.stream_agent_output,
        color=None if settings.color else False,
        emoji=None if settings.emoji else False,
        live=not (display.json and os.isatty(1)),
        timestamps=settings.timestamps,
        output_lines=settings.max_output_lines,
        output_chars=settings.max_output_chars,
    )
    screen.belongs_to(run_id)
    with closing(screen), Interrupt(lambda: screen.announce(ANNOUNCEMENT)) as interrupt:
        clock = make_clock(request, story)
        deadline = Deadline(interrupt, run_id, request.settings.grace, clock.time_left)
        sinks = [Ndjson(lambda: interrupt.must_end() or deadline.is_over())] if display.json else []
        with report_refusal(run_id, sinks, interrupt, is_resumed=story is not None):
            plan = prepare(
                request,
                place=place,
                rules=rules,
                notices=notices,
                story=story,
                accepts_files=accepts_files,
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
