"""Open the files of a run: lock its folder, save its request, open its journal."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ralph.core import events
from ralph.core.model import Outcome, Run, Stop
from ralph.core.secrets import Redactor
from ralph.errors import UserError
from ralph.loop import ending
from ralph.process.signals import Interrupt
from ralph.run import request as requests
from ralph.run.plan import RunPlan
from ralph.settings.trust import SettingsWatch
from ralph.store.folder import RunFolder, prepare, workspace_lock
from ralph.store.journal import Journal
from ralph.store.stored_run import load_run
from ralph.store.writer import LineSink, Teller, Writer

# Events about the loop itself, which a run of one turn leaves out.
LOOP_EVENTS = (events.IterationStarted, events.Converged, events.Stalled, events.Exhausted)


class FolderLocks:
    """Locks folders, in which no other run may work until `stack` is closed."""

    def __init__(self, run_id: str, stack: ExitStack) -> None:
        self._run_id, self._stack = run_id, stack
        self._locked: list[tuple[Path, Callable[[], None]]] = []

    def lock(self, folder: Path) -> None:
        self._locked.append((folder, self._stack.enter_context(workspace_lock(prepare(folder), self._run_id))))

    def restore(self) -> None:
        """Create the lock files again if an agent has removed them."""
        for folder, lock_again in self._locked:
            prepare(folder)
            lock_again()


@contextmanager
def report_refusal(
    run_id: str,
    sinks: Sequence[LineSink],
    interrupt: Interrupt,
    *,
    teller: Teller | None = None,
    watched: SettingsWatch | None = None,
    is_resumed: bool = False,
) -> Iterator[None]:
    """If the run cannot start, write that as its end, because a program may be reading its events."""
    try:
        yield
    except UserError as error:
        if watched:
            watched.end()  # the user may edit the settings from now on
        if not is_resumed and not (teller and teller.has_begun):
            write = teller.writer if teller else Writer(run_id, sinks)
            outcome = Outcome.INTERRUPTED if interrupt.level else Outcome.FATAL
            write(*ending(Run(id=run_id), Stop(outcome, error.advice), 0.0))
        if interrupt.level:
            raise KeyboardInterrupt from None
        raise


def open_folder(plan: RunPlan, locks: FolderLocks, stack: ExitStack) -> RunFolder:
    """Lock the place, and return the run's folder."""
    place = plan.place
    ralph = (place.home or place.workspace) / ".ralph"
    if place.home is not None:
        prepare(place.home)
        if not (plan.request.settings.worktree and place.home == place.workspace):
            locks.lock(place.home)
    folder = place.open(ralph, plan.id)
    stack.callback(folder.close)
    return folder


def open_journal(
    plan: RunPlan,
    folder: RunFolder,
    *,
    locks: FolderLocks,
    redact: Redactor,
    sinks: Sequence[LineSink],
    is_read: Callable[[], bool],
    stack: ExitStack,
) -> Teller:
    """Save the request and open the journal. The copy of the request in the run's folder is only for people."""
    settings, data = plan.request.settings, redact(requests.encode(plan.request))

    def restore() -> None:
        """Create the folders again after an agent has removed them."""
        if plan.place.home is not None:
            prepare(plan.place.home)
        locks.restore()
        folder.make()
        folder.write(requests.REQUEST_FILE, data)

    folder.make()
    folder.write(requests.REQUEST_FILE, data)
    journal = Journal(folder.journal, restore).open()
    stack.callback(journal.close)
    stored = load_run(folder.journal)  # a new run may have a few lines already, from a process that was killed
    if plan.story and stored.seq != plan.story.seq:
        raise UserError(f"run {plan.id} was continued by another process", "look at it, and try again")
    # The log of each turn has everything that the agent says; the journal has a share of it.
    most = max(settings.max_log // 8, 1) if settings.max_log else 1 << 62
    writer = Writer(plan.id, [journal, *sinks], seq=stored.seq, redact=redact, most=most, is_read=is_read)
    teller = Teller(writer, LOOP_EVENTS if plan.request.one_shot else ())
    try:
        requests.save(plan.id, data, plan.env)
    except UserError as error:
        teller(events.Notice(f"this run cannot be resumed: {error.advice}"))
    return teller
