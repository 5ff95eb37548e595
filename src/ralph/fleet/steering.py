"""How is a work of the fleet seen and steered from any machine? What a person wants is told to all as an event: that
needs no clone, and nobody who listens."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from ralph.backlog.ledger import Told
from ralph.core import work_events
from ralph.core.backlog import Board, Job, Verdict, shown
from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.fleet import schema
from ralph.fleet.database import Database, Present, Transaction, WorkRow
from ralph.fleet.heartbeat import STALLED
from ralph.fleet.shared_ledger import encoded
from ralph.history.work_history import WorkHistory, folded
from ralph.records.journal import decoded
from ralph.steering.mailbox import Mailbox


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
        self._mailbox, self._was = mailbox, mailbox.read().is_paused

    def changed(self, is_held: bool) -> bool | None:
        """What a person here wants, if they have changed it; else the mailbox follows the others."""
        was, self._was = self._was, self._mailbox.read().is_paused
        if self._was == is_held:
            return None
        if self._was != was:
            return self._was
        self._mailbox.pause() if is_held else self._mailbox.unpause()
        self._was = is_held
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
    history = folded(row.id, filter(None, (decoded(line) for _, line in lines)))
    history.state = "running" if row.is_open else history.finished.outcome if history.finished else "ended"
    return Seen(row, history, tuple(one for one in transaction.present() if one.work in ("", row.id)))


def heard(worker: Present) -> str:
    """When a worker was last heard, in words."""
    if worker.silence < STALLED:
        return f"heard {max(worker.silence, 0.0):.0f} s ago"
    minutes = worker.silence / 60
    return f"silent for {worker.silence:.0f} s" if minutes < 2 else f"silent for {minutes:.0f} min"


def doing(worker: Present, board: Board) -> list[str]:
    """The items that a worker has."""
    return [job.item.key for job in board.of("working") if job.worker == worker.name]


def told_of(workers: Iterable[Present], board: Board) -> Iterator[str]:
    """A line for each worker: where it is, which items it has, and when it was last heard."""
    for worker in workers:
        has = ", ".join(doing(worker, board)) or ("waits" if worker.work else "looks for work")
        yield f" {worker.name} on {worker.host}: {has} ({worker.slots} at a time, {heard(worker)})"


def retry(database: Database, work: str, key: str, note: str) -> str:
    def decide(seen: Seen) -> list[Told]:
        job = _item(seen, key)
        if job.state not in ("parked", "withdrawn") and not (note and job.state == "queued"):
            raise UserError(f"{job.item.key} is {job.state}", "only what stands aside can be tried again")
        told: list[Told] = [work_events.ItemQueued(job.item.key, "asked for by a person", note, forgiven=True)]
        return [*told, *([work_events.GateFinished(Verdict())] if seen.board.stuck else [])]

    seen = tell(database, work, decide, opens=True)
    return f"{_item(seen, key).item.key} is tried again"


def withdraw(database: Database, work: str, key: str) -> str:
    def decide(seen: Seen) -> list[Told]:
        job = _item(seen, key)
        if job.state in ("landed", "withdrawn"):
            raise UserError(f"{job.item.key} is {job.state}", "nothing is left to withdraw")
        return [work_events.ItemWithdrawn(job.item.key, "withdrawn by a person")]

    return f"{_item(tell(database, work, decide), key).item.key} is left alone; its branch stays"


def hold(database: Database, work: str, is_held: bool) -> str:
    def decide(seen: Seen) -> list[Told]:
        if not seen.row.is_open:
            raise UserError(f"work {seen.row.name} is over", "`ralph work resume` takes it up again")
        return [work_events.WorkHeld(is_held)] if seen.board.is_held != is_held else []

    name = tell(database, work, decide).row.name
    return f"work {name} is {'paused: each loop stops before its next turn' if is_held else 'going on'}"


def stop(database: Database, work: str) -> str:
    """Ends a work: each loop after its turn. It can be resumed."""

    def decide(seen: Seen) -> list[Told]:
        if not seen.row.is_open:
            raise UserError(f"work {seen.row.name} is over", "nothing is left to stop")
        return [_stopped(seen)]

    return f"work {tell(database, work, decide).row.name} ends: each loop after its turn"


def _stopped(seen: Seen) -> work_events.WorkFinished:
    states = [*shown(seen.board).values()]
    return work_events.WorkFinished(
        outcome="interrupted",
        reason="stopped by a person",
        landed=states.count("landed"),
        parked=states.count("parked"),
        blocked=states.count("blocked"),
        items=len(states) - states.count("withdrawn"),
        cost_usd=seen.board.spent if seen.board.costs else None,
        duration_s=max(seen.history.last - seen.history.began, 0.0),
        exit_code=130,
    )


def resume(database: Database, work: str) -> str:
    seen = see(database, work)
    if seen.row.is_open:
        return hold(database, seen.row.name, is_held=False)
    return f"work {tell(database, seen.row.name, lambda seen: [], opens=True).row.name} goes on"


def tell(database: Database, work: str, decide: Callable[[Seen], Sequence[Told]], opens: bool = False) -> Seen:
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
            told = [*([_again(started)] if started else []), *told]
        if told:
            transaction.write(row.id, seen.row.last + 1, encoded(row.id, seen.row.last, told, redact))
        if any(isinstance(event, work_events.WorkFinished) for event in told):
            transaction.ask("UPDATE ralph_works SET is_open = false WHERE id = %s", row.id)
        return seen

    schema.ready(database)
    return database.do(write)


def _again(started: work_events.WorkStarted) -> work_events.WorkStarted:
    from msgspec.structs import replace

    return replace(started, resumed=True, pid=os.getpid())


def _item(seen: Seen, key: str) -> Job:
    wanted = key.removeprefix("#").casefold()
    found = next((job for known, job in seen.board.jobs.items() if known.casefold() == wanted), None)
    if found is None:
        raise UserError(f"work {seen.row.name} has no item {key}", "`ralph work status` lists them")
    return found
