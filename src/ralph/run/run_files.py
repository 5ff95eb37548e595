"""Open what a run writes to: its folder, locks, journal and worktree."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from ralph.core import events
from ralph.core.model import Outcome, Run, Stop
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.git.client import require_git
from ralph.git.worktrees import Worktree, create, refuse_another, remove_unstarted, worktree_lock, worktree_of
from ralph.process.signals import Interrupt
from ralph.run import request as requests
from ralph.run.plan import RunPlan
from ralph.store.folder import RunFolder, prepare, workspace_lock
from ralph.store.journal import Journal, load_run
from ralph.store.writer import LineSink, Teller, Writer
from ralph.verdict.context import Context
from ralph.verdict.copies import prepare_worktree

# Events about the loop itself, which a run of one turn leaves out.
LOOP_EVENTS = (events.IterationStarted, events.Converged, events.Stalled, events.Exhausted)


@contextmanager
def report_refusal(
    run_id: str,
    sinks: Sequence[LineSink],
    interrupt: Interrupt,
    *,
    teller: Teller | None = None,
    is_resumed: bool = False,
) -> Iterator[None]:
    """If the run cannot start, write that as its end, because a program may be reading its events."""
    try:
        yield
    except UserError as error:
        if not is_resumed and not (teller and teller.has_begun):
            write = teller.writer if teller else Writer(run_id, sinks)
            outcome = Outcome.INTERRUPTED if interrupt.level else Outcome.FATAL
            write(*events.closing_events(Run(id=run_id), Stop(outcome, error.advice), 0.0))
        if interrupt.level:
            raise KeyboardInterrupt from None
        raise


class RunFiles:
    """The folder, locks and journal of a run, open until `stack` is closed. What it writes is redacted."""

    folder: RunFolder
    teller: Teller

    def __init__(self, plan: RunPlan, stack: ExitStack) -> None:
        self._plan, self._stack = plan, stack
        self._locked: list[tuple[Path, Callable[[], None]]] = []
        self.redact = Redactor(secret_values(os.environ))

    def lock(self, folder: Path) -> None:
        """Lock a folder, in which no other run may work then."""
        self._locked.append((folder, self._stack.enter_context(workspace_lock(prepare(folder), self._plan.id))))

    def open(self, sinks: Sequence[LineSink], is_read: Callable[[], bool]) -> Teller:
        """Lock the place, save the request, and open the journal."""
        plan, place, settings = self._plan, self._plan.place, self._plan.request.settings
        if place.home is not None:
            prepare(place.home)
            if not (settings.worktree and place.home == Path(plan.request.workspace)):
                self.lock(place.home)
        self.folder = place.open((place.home or Path(plan.request.workspace)) / ".ralph", plan.id)
        self._stack.callback(self.folder.close)
        data = self.redact(requests.encode(plan.request))
        self._save_copy(data)
        journal = Journal(self.folder.journal, partial(self._restore, data)).open()
        self._stack.callback(journal.close)
        stored = load_run(self.folder.journal)  # a new run may have a few lines already, from a killed process
        if plan.story and stored.seq != plan.story.seq:
            raise UserError(f"run {plan.id} was continued by another process", "look at it, and try again")
        # The log of each turn has everything that the agent says; the journal has a share of it.
        most = max(settings.max_log // 8, 1) if settings.max_log else 1 << 62
        writer = Writer(plan.id, [journal, *sinks], seq=stored.seq, redact=self.redact, most=most, is_read=is_read)
        self.teller = Teller(writer, LOOP_EVENTS if plan.request.one_shot else ())
        try:
            requests.save(plan.id, data)
        except UserError as error:
            self.teller(events.Notice(f"this run cannot be resumed: {error.advice}"))
        return self.teller

    def _restore(self, data: bytes) -> None:
        """Create the folders again after an agent has removed them."""
        if self._plan.place.home is not None:
            prepare(self._plan.place.home)
        for folder, lock_again in self._locked:
            prepare(folder)
            lock_again()
        self._save_copy(data)

    def _save_copy(self, data: bytes) -> None:
        """Write the request to the run's folder, where only people read it."""
        self.folder.make()
        self.folder.write(requests.REQUEST_FILE, data)


def create_worktree(plan: RunPlan, context: Context, lock: Callable[[Path], None]) -> Worktree:
    """Return the run's own worktree, locked and prepared. A workspace can have any number of worktrees."""
    resumed = plan.story.run if plan.story else None
    home = require_git(context.root, context.deadline)
    worktree, notice = worktree_of(home, plan.id), ""
    exists = resumed is not None and Path(worktree.workspace).is_dir()
    if resumed and resumed.iterations and not exists:
        raise UserError(f"the run's worktree is gone: {worktree.path}", "start a new run")
    if exists:
        refuse_another(worktree)
    with worktree_lock(home):
        if not exists:
            remove_unstarted(home, context.folder.path.parent)
            notice = create(worktree)
        lock(Path(worktree.workspace))
    if notice:
        context.tell(events.Notice(notice))
    prepare_worktree(worktree, context)
    return worktree
