"""A run that was read from its journal, to be judged, shown or resumed."""

import math
from pathlib import Path

import msgspec
from msgspec import Struct

from ralph.core import events
from ralph.core.model import Iteration, Outcome, Run, Turn, still_limited
from ralph.store.journal import read_entries


class StoredRun(Struct, kw_only=True):
    """A run that was read back, how it started and ended, and the number of its last line.

    `settled` are the SCM tasks that are done, by iteration. `is_open`: the followups of the last iteration may not have
    run. `missing` is an iteration whose line cannot be read, although later lines can.
    """

    run: Run
    started: events.RunStarted | None = None
    finished: events.RunFinished | None = None
    waiting: events.Waiting | None = None
    settled: set[tuple[int, str]] = msgspec.field(default_factory=set)
    is_open: bool = False
    missing: int = 0
    seq: int = 0
    elapsed: float = 0.0

    @property
    def is_done(self) -> bool:
        return self.finished is not None and self.finished.outcome == Outcome.DONE.value

    def resumed(self) -> Run:
        """Return the run as it continues: old failures are forgotten, but it still waits for a usage limit."""
        limits = tuple(turn for turn in self.run.retries if turn.is_limited)
        return msgspec.structs.replace(self.run, retries=limits, resumed=len(self.run.iterations))


def load_run(path: Path) -> StoredRun:
    """Return the run that a journal holds. Raise a UserError if the journal cannot be opened."""
    stored, watch = StoredRun(run=Run(id=path.parent.name)), _Stopwatch()
    # Kept apart until the end: adding to a run copies it.
    iterations: list[Iteration] = []
    retries: list[Turn] = []
    for entry in read_entries(path):
        stored.seq = max(stored.seq, entry.seq)
        event = entry.event()
        _add(stored, event, iterations, retries)
        watch.hear(event, entry.at)
    stored.run = msgspec.structs.replace(stored.run, iterations=tuple(iterations), retries=tuple(retries))
    stored.elapsed = watch.total
    return stored


def _add(stored: StoredRun, event: events.Event | None, iterations: list[Iteration], retries: list[Turn]) -> None:
    run, number = stored.run, len(iterations) + 1
    match event:
        case events.RunStarted():
            if stored.started is None:
                run = msgspec.structs.replace(run, goal=event.goal, base_tree=event.base_tree)
            stored.run, stored.started, stored.finished, stored.waiting = run, event, None, None
        case events.Baseline():
            stored.run = msgspec.structs.replace(run, baseline=event.checks)
        case events.StartMeasured():
            stored.run = msgspec.structs.replace(run, start=event.start)
        case events.IterationFinished() if event.iteration == number:
            limited = still_limited((*run.limited, *retries), event.record)
            stored.run, stored.waiting, stored.is_open = msgspec.structs.replace(run, limited=limited), None, True
            iterations.append(event.record)
            retries.clear()
        case events.IterationFinished() if event.iteration > number:
            stored.missing = stored.missing or number
        case events.TurnNotCounted():
            stored.run, stored.waiting = run.spending(event.turn.usage), None
            retries.append(event.turn)
        case events.Waiting():
            stored.waiting, stored.is_open = event, False
        case events.IterationStarted() | events.ClaimRejected():
            stored.is_open = False
        case events.HandedOver():
            stored.run = msgspec.structs.replace(run, hand_overs=(*run.hand_overs, event.hand_over))
        case events.Spent():
            stored.run = run.spending(event.usage)
        case events.ScmFinished() if event.ok:
            stored.settled.add((event.iteration, event.task))
        case events.ProofFinished() if event.tree and 0 < event.iteration == len(iterations):
            iterations[-1] = msgspec.structs.replace(iterations[-1], tree=event.tree)
        case events.RunFinished():
            # An interrupt, or something fatal like a full disk, prevents the commit as well.
            stored.finished = event
            if event.outcome == Outcome.STALLED.value:
                stored.run = msgspec.structs.replace(run, stalled=len(iterations))
            stored.is_open = stored.is_open and event.outcome in (Outcome.INTERRUPTED.value, Outcome.FATAL.value)


class _Stopwatch:
    """Adds up how long a run took. Measured durations take precedence over timestamps: the clock may have been changed,
    or the machine suspended."""

    def __init__(self) -> None:
        self.total = 0.0
        self._total_before_turn = 0.0
        self._last = 0.0
        self._most = 0.0  # seconds that count until the next event

    def hear(self, event: events.Event | None, at: float) -> None:
        passed = min(max(at - self._last, 0.0), self._most)
        self._last, self._most = at, math.inf
        match event:
            case events.RunStarted():
                passed = 0.0
            case events.Waiting():
                self._most = event.seconds
            case events.Paused():
                self._most = 0.0
            case events.AgentStarted():
                self._total_before_turn = self.total + passed
            case events.AgentFinished():
                self.total, passed = self._total_before_turn + event.duration_s, 0.0
            case events.CheckFinished():  # a part of it, if others ran at the same time
                passed = min(passed, event.duration_s)
            case events.RunFinished():
                self.total, passed = event.duration_s, 0.0
        self.total += passed
