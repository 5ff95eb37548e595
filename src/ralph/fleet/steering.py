"""How is a work of the fleet seen and steered from any machine? What a person wants is told to all as an event: that
needs no clone, and nobody who listens. For the full screen and the page each work has a folder here, as on a machine
that takes part: a copy of all that was told of it, and a mailbox whose letters are carried to the database."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.ledger import WorkRegistration, WorkTold
from ralph.backlog.task_requests import TASK_REQUEST, TaskRequest, events_for_request, find_task, in_vain
from ralph.backlog.work_order import WorkOrder, order_in, put_order
from ralph.core import work_events
from ralph.core.backlog import Board
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import one_line
from ralph.core.work_events import work_summary
from ralph.errors import UserError
from ralph.files import state_folder
from ralph.fleet.database import LAYOUT, Database, Present, Registered, Transaction, WorkRow, ready
from ralph.fleet.shared_ledger import SharedLedger, encoded
from ralph.history.work_history import WorkHistory, folded
from ralph.store.folder import RunFolder, prepare
from ralph.store.journal import decode_entry
from ralph.store.mailbox import Mailbox
from ralph.store.writer import enlist

NOBODY = Registered(0, "", 0)
OFTEN = 1.0  # seconds between two looks
MOST = 50  # works: older ones are history


class Seen(Struct, frozen=True):
    """A work as it stands now, and who works on it."""

    row: WorkRow
    history: WorkHistory
    workers: tuple[Present, ...]

    @property
    def board(self) -> Board:
        return self.history.board


class Pause:
    """The pause of a work, as the mailbox of a machine says, and as all know it: whoever changed it last counts."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox, self._was = mailbox, False

    def begin(self) -> None:
        """What is there already, nobody has changed."""
        self._was = self._mailbox.read().is_paused

    def settle(self, is_paused: bool) -> bool | None:
        """What a person here wants, if they have changed it; else the mailbox follows the others."""
        was, self._was = self._was, self._mailbox.read().is_paused
        if self._was == is_paused:
            return None
        if self._was != was:
            return self._was
        self._mailbox.pause() if is_paused else self._mailbox.unpause()
        self._was = is_paused
        return None


def see(database: Database, name: str = "") -> Seen:
    """The work that is named; else the one that is open, or the last one."""
    return database.do(lambda transaction: _seen(transaction, _meant(transaction, name)))


def _meant(transaction: Transaction, name: str) -> WorkRow:
    known = transaction.works()
    if not known:
        raise UserError(
            "there is no work in this database", "begin one: ralph work BACKLOG --db URL --push --check CMD"
        )
    if name:
        found = [row for row in known if name in (row.name, row.id)]
        if not found:
            raise UserError(f"no work {name} in this database", f"known: {', '.join(row.name for row in known[-10:])}")
        return found[-1]
    opened = [row for row in known if row.is_open]
    if len(opened) > 1:
        names = ", ".join(f"{row.name} ({row.backlog})" for row in opened)
        raise UserError(f"several works are open: {names}", "name one of them")
    return (opened or known)[-1]


def _seen(transaction: Transaction, row: WorkRow) -> Seen:
    lines = transaction.lines_after(row.id, 0)
    history = folded(row.id, filter(None, (decode_entry(line) for _, line in lines)))
    history.state = "running" if row.is_open else history.finished.outcome if history.finished else "ended"
    return Seen(row, history, tuple(one for one in transaction.present() if one.work in ("", row.id)))


def heard(worker: Present) -> str:
    """When a worker was last heard, in words."""
    if worker.is_there:
        return f"heard {max(worker.silence, 0.0):.0f} s ago"
    minutes = worker.silence / 60
    return f"silent for {worker.silence:.0f} s" if minutes < 2 else f"silent for {minutes:.0f} min"


def doing(worker: Present, board: Board) -> list[str]:
    """The tasks that a worker has."""
    return [job.task.key for job in board.of("working") if job.worker == worker.name]


def told_of(workers: Iterable[Present], board: Board) -> Iterator[str]:
    """A line for each worker: where it is, which tasks it has, and when it was last heard."""
    for worker in workers:
        has = ", ".join(doing(worker, board)) or ("waits" if worker.work else "looks for work")
        where = one_line(f"{worker.name} on {worker.host}: {has}", 500)
        yield f" {where} ({worker.slots} at a time, {heard(worker)})"


def retry(database: Database, work: str, key: str, note: str) -> str:
    seen = tell(database, work, lambda seen: _granted(seen, TaskRequest("retry", key, note)), opens=True)
    return f"{find_task(seen.board, key, seen.row.name).task.key} is tried again"


def withdraw(database: Database, work: str, key: str) -> str:
    seen = tell(database, work, lambda seen: _granted(seen, TaskRequest("withdraw", key)))
    return f"{find_task(seen.board, key, seen.row.name).task.key} is left alone; its branch stays"


def _granted(seen: Seen, wish: TaskRequest) -> Sequence[WorkTold]:
    job = find_task(seen.board, wish.key, seen.row.name)
    if told := events_for_request(seen.board, replace(wish, key=job.task.key)):
        return told
    raise in_vain(job, wish)


def hold(database: Database, work: str, is_paused: bool) -> str:
    def decide(seen: Seen) -> list[WorkTold]:
        if not seen.row.is_open:
            raise UserError(f"work {seen.row.name} is over", "`ralph work resume` takes it up again")
        return [work_events.WorkPaused(is_paused)] if seen.board.is_paused != is_paused else []

    name = tell(database, work, decide).row.name
    return f"work {name} is {'paused: each loop stops before its next turn' if is_paused else 'going on'}"


def stop(database: Database, work: str) -> str:
    """Ends a work: each loop after its turn. It can be resumed."""

    def decide(seen: Seen) -> list[WorkTold]:
        if not seen.row.is_open:
            raise UserError(f"work {seen.row.name} is over", "nothing is left to stop")
        lasted = max(seen.history.last - seen.history.began, 0.0)
        return [work_summary(seen.board, "interrupted", "stopped by a person", 130, lasted)]

    return f"work {tell(database, work, decide).row.name} ends: each loop after its turn"


def resume(database: Database, work: str) -> str:
    seen = see(database, work)
    if seen.row.is_open:
        return hold(database, seen.row.name, is_paused=False)
    return f"work {tell(database, seen.row.name, lambda seen: [], opens=True).row.name} goes on"


def tell(database: Database, work: str, decide: Callable[[Seen], Sequence[WorkTold]], opens: bool = False) -> Seen:
    """Adds to a work what follows from how it stands; a work that is over begins to go on, where that is asked for."""
    redact = Redactor(secret_values(os.environ))

    def write(transaction: Transaction) -> Seen:
        row = _meant(transaction, work)
        transaction.lock_work(row.id)
        seen = _seen(transaction, _meant(transaction, row.id))
        told = list(decide(seen))
        if opens and not seen.row.is_open:
            transaction.ask("UPDATE ralph_works SET is_open = true WHERE id = %s", row.id)
            started = seen.history.started
            told = [*([replace(started, resumed=True, pid=os.getpid())] if started else []), *told]
        if told:
            transaction.write(row.id, seen.row.last + 1, encoded(row.id, seen.row.last, told, redact))
        if any(isinstance(event, work_events.WorkFinished) for event in told):
            transaction.ask("UPDATE ralph_works SET is_open = false WHERE id = %s", row.id)
        return seen

    ready(database)
    return database.do(write)


class Mirror:
    """The works in a database, as if they were at work here, for as long as it is entered. `follows`: and whatever
    happens to them meanwhile."""

    def __init__(self, url: str, *, follows: bool, env: Mapping[str, str] = os.environ) -> None:
        self._database = Database(url, patience=2.0)
        self._follows, self._env = follows, env
        self._stack, self._over = ExitStack(), threading.Event()
        self._copies: dict[str, Copy] = {}
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self.workers: tuple[Present, ...] = ()

    def __enter__(self) -> "Mirror":
        try:
            ready(self._database)
            self._look()
        except BaseException:
            self.__exit__()
            raise
        if self._follows:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=OFTEN)
        self._stack.close()
        self._database.close()

    def __contains__(self, run: str) -> bool:
        return run in self._copies

    def told_of_workers(self) -> list[str]:
        """A line for each worker."""
        boards = {work: copy.board for work, copy in self._copies.items()}
        return [line for worker in self.workers for line in told_of([worker], boards.get(worker.work, Board()))]

    def _run(self) -> None:
        while not self._over.wait(OFTEN):
            with suppress(UserError):  # it is away: what is shown is what was known last
                self._look()

    def _look(self) -> None:
        rows, self.workers = self._database.do(lambda transaction: (transaction.works(), tuple(transaction.present())))
        for row in rows[-MOST:]:
            if row.layout <= LAYOUT:
                self._copy(row).bring_up_to_date()

    def _copy(self, row: WorkRow) -> "Copy":
        if row.id not in self._copies:
            place = Path(state_folder(self._env, "fleet"), row.name)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            order = replace(order_in(row.order), workspace=str(place))
            copy = Copy(self._database, order, RunFolder(prepare(place), row.id))
            copy.begin()
            self._copies[row.id] = copy
            enlist(copy.folder, self._env)
            self._stack.callback(copy.close)
            self._stack.callback(Path(state_folder(self._env, "runs"), row.id).unlink, missing_ok=True)
        return self._copies[row.id]


class Copy:
    """One of them."""

    def __init__(self, database: Database, order: WorkOrder, folder: RunFolder) -> None:
        self._database, self._order, self.folder = database, order, folder
        self._registration = WorkRegistration(folder, order, deaf=True)
        self._ledger = SharedLedger(folder, (), Redactor(), database, NOBODY)
        self._registration.watch(self._ledger)
        self._mailbox = Mailbox(folder.path)
        self._pause = Pause(self._mailbox)

    def begin(self) -> None:
        self._pause.begin()
        self.folder.make()
        put_order(self.folder, self._order)
        self._registration.begin()
        self._ledger.open()
        self._registration(*filter(None, (self._ledger.finished,)))
        self._ledger.listen((self._pass_on_pause, self._registration))

    @property
    def board(self) -> Board:
        return self._ledger.board

    def bring_up_to_date(self) -> None:
        self._ledger.hear()
        self._registration.began(self._ledger.began)
        self._registration.tick()
        self._ledger.heard = []
        for wish in self._mailbox.take(TASK_REQUEST, TaskRequest):
            self._ask(withdraw if wish.kind == "withdraw" else partial(retry, note=wish.note), wish.key)
        self._pass_on_pause()
        if self._mailbox.take_stop(now=True) or self._mailbox.take_stop():
            self._ask(stop)

    def _pass_on_pause(self, *_: object) -> None:
        """The mailbox knows of a pause before it is shown: else nobody could take it back at once."""
        if (is_paused := self._pause.settle(self._ledger.board.is_paused)) is not None:
            self._ask(hold, is_paused)

    def _ask(self, act: Callable[..., str], *about: object) -> None:
        """What a person has asked for here, of all."""
        with suppress(UserError):  # it came too late, and what is shown says so
            act(self._database, self._order.id, *about)

    def close(self) -> None:
        if self._ledger.finished is None:
            self._registration.leave()
        self._ledger.close()
        self._registration.close()
