"""What is open while a loop inside a session begins, or is judged? The engine's own parts, with the host as agent."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph import wiring
from ralph.core import events
from ralph.core.model import Run, Turn
from ralph.core.secrets import Redactor, secret_values
from ralph.hosts.loops import Loop
from ralph.hosts.registry import LIMIT
from ralph.loop import Parts
from ralph.policy import Policy, policy
from ralph.settings import Settings
from ralph.world.processes.interrupt import Interrupt
from ralph.world.processes.keeper import Keeper
from ralph.world.records.folder import RunFolder, prepare
from ralph.world.records.journal import Journal
from ralph.world.records.scribe import Scribe
from ralph.world.repository.history import History
from ralph.world.site import Site

SPARE = 60.0  # seconds that a host must leave for everything but the checks


class Taken:
    """The agent of a loop inside a session: its turn has been taken already, by the host."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        return self._turn


class Opened(Struct, frozen=True):
    site: Site
    plan: Policy
    history: History
    parts: Parts


def folder_of(loop: Loop) -> RunFolder:
    return RunFolder(Path(loop.journal).parents[2], loop.facts["run"])


def opened(stack: ExitStack, loop: Loop, settings: Settings, turn: Turn, seq: int = 0) -> Opened:
    """Everything that judges a turn. What the settings ask for and a host's session cannot do is left out."""
    settings = replace(
        settings, check_timeout=_check_timeout(settings), scm=None, reviews=None, worktree=False, notify=()
    )
    site = _site(stack, loop, settings, seq)
    plan = policy(settings, (loop.facts["agent"],))
    history = History(site, walks=settings.min_tool_calls > 0)
    parts = wiring.parts(settings, plan, site, Taken(turn), history, lambda: str(loop.facts["task"]))
    parts.cap = plan.cap
    return Opened(site, plan, history, parts)


def _check_timeout(settings: Settings) -> float:
    """Every check ends, and says so, before the host loses its patience and ends all of them without a word."""
    longest = (LIMIT - SPARE) / max(1, len(settings.guardrails))
    return min(settings.check_timeout or longest, longest)


def _site(stack: ExitStack, loop: Loop, settings: Settings, seq: int) -> Site:
    interrupt, keeper = stack.enter_context(Interrupt()), stack.enter_context(Keeper.start())
    prepare(Path(loop.root))
    folder = folder_of(loop)
    folder.make()
    journal = Journal(folder.journal)
    stack.callback(journal.close)
    return Site(
        Path(loop.root),
        folder,
        keeper,
        interrupt,
        _teller(Scribe(folder.id, [journal], seq)),
        os.environ,
        Redactor(secret_values(os.environ)),
        max_time=settings.max_time,
        max_log=settings.max_log,
        grace=settings.grace,
        keep_children=settings.keep_children,
        began=time.monotonic(),
        before=max(0.0, time.time() - float(loop.facts["started"])),
    )


def _teller(scribe: Scribe) -> events.TellAll:
    def tell(*happened: events.Event) -> None:
        scribe(*happened)

    return tell
