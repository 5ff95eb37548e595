"""Where are claims and verdicts kept when many machines work on one backlog? In the database: one line an event, in the
order in which all read them. Each worker keeps a copy as the work's journal, so that whatever reads journals works."""

import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace
from procrastinate.jobs import Job as Claim
from procrastinate.utils import utcnow

from ralph.backlog.ledger import NAMES, JournalLedger, WorkTold
from ralph.core import work_events
from ralph.core.backlog import FINISHED_STATES
from ralph.core.secrets import Redactor
from ralph.errors import UserError
from ralph.fleet.database import STALLED, Database, Registered, Transaction, finished
from ralph.store.folder import RunFolder
from ralph.store.journal import decode_entry
from ralph.store.writer import LineSink, Writer

TASK = "ralph"
GATE, LIST = ".gate", ".list"  # no task's key begins with a dot
POSTS = (GATE, LIST)
"""What one worker has for all: the merges, and the keeping of the list."""
CENT = 0.01
ENDS_OF_A_LOOP = (work_events.TaskReady, work_events.TaskParked, work_events.TaskQueued)


class SharedLedger(JournalLedger):
    """What one worker knows and says of a work. `_mine` are the tasks that it has, with the run that works on each: a
    word about one of them counts only while nobody else has taken it over. `_runs` are all that it has begun: by them
    it knows its own, for a name may be borne by somebody else by now."""

    def __init__(
        self, folder: RunFolder, sinks: Sequence[LineSink], redact: Redactor, database: Database, me: Registered
    ) -> None:
        super().__init__(folder, sinks, redact)
        self._mine: dict[str, str] = {}
        self._runs: set[str] = set()
        self._posts: frozenset[str] = frozenset()
        self._vacant: frozenset[str] = frozenset()
        self._reported = 0.0
        self.began = 0.0
        self.heard: list[WorkTold] = []
        self._work, self._database, self._me = folder.id, database, me

    # What is told

    def tell(self, *happened: WorkTold) -> None:
        self._runs |= {event.run for event in happened if isinstance(event, work_events.TaskStarted)}
        self._write(lambda transaction: [event for event in happened if self._is_true(transaction, event)])

    def _write(self, decide: Any) -> None:
        """Knows what others have said, decides what there is to say after that, and says it, in one transaction."""

        def write(transaction: Transaction) -> list[tuple[int, bytes]]:
            last = transaction.lock_work(self._work)
            if last < 0:
                raise UserError(f"work {self._work} is not in the database any more", "was it removed by hand?")
            if last > self._seq:
                self._take_in(transaction.lines_after(self._work, self._seq))
            true: list[WorkTold] = decide(transaction)
            if not true:
                return []
            lines = encoded(self._work, self._seq, true, self._redact)
            transaction.write(self._work, self._seq + 1, lines)
            for event in true:
                self._keep_jobs(transaction, event)
            listed = [event.task.key for event in true if isinstance(event, work_events.TaskListed)]
            queue_up(transaction, self._work, [key for key in listed if key not in self.board.jobs])
            return list(enumerate(lines, self._seq + 1))

        self._take_in(self._database.do(write))

    def _is_true(self, transaction: Transaction, event: WorkTold) -> bool:
        """Whether it still makes sense: since it was decided, others may have spoken."""
        match event:
            case work_events.GateStarted() | work_events.GateFinished() | work_events.GateOpened():
                return self._is_held_by_us(transaction, GATE)
            case work_events.WorkFinished():
                return self.finished is None
            case work_events.TaskListed():
                known = self.board.jobs.get(event.task.key)
                return known is None or known.task != event.task
        job = self.board.jobs.get(getattr(event, "key", ""))
        if job is None:
            return not hasattr(event, "key")
        is_ours = job.state == "working" and job.run == self._mine.get(job.task.key)
        match event:
            case work_events.TaskStarted():
                return job.state == "queued" and self._claimed(transaction, event.key)
            case work_events.TaskReady():
                return is_ours
            case work_events.TaskQueued():
                return is_ours or job.state in ("queued", "parked", "withdrawn")
            case work_events.TaskParked() | work_events.TaskReturned():
                return is_ours or (job.state == "ready" and self._is_held_by_us(transaction, GATE))
            case work_events.TaskMerged() | work_events.TaskWithdrawn():
                return job.state not in FINISHED_STATES or (job.state, type(event)) == (
                    "withdrawn",
                    work_events.TaskMerged,
                )
        return True

    # What others tell

    def hear(self) -> None:
        """Takes in what others have said, and looks at who is there, what they spend, and who has which post."""

        queues = [self._queue(post) for post in POSTS]
        news = self._database.do(lambda asked: asked.news(self._work, self._seq, queues), is_question=True)
        self._take_in(news.lines)
        slots = sum(one.slots for one in news.present if one.is_there and one.work in ("", self._work))
        self.board = replace(self.board, slots=max(slots, 1))
        others = [one for one in news.present if one.work == self._work and one.id != self._me.id]
        self.spent_elsewhere = sum(one.spending for one in others)
        ours = {queue for queue, worker, status in news.claims if (worker, status) == (self._me.id, "doing")}
        vacant = {queue for queue, _, status in news.claims if status == "todo"}
        self._posts = frozenset(post for post in POSTS if self._queue(post) in ours)
        self._vacant = frozenset(post for post in POSTS if self._queue(post) in vacant)

    def _take_in(self, lines: Sequence[tuple[int, bytes]]) -> None:
        happened: list[WorkTold] = []
        self._keep_apart()
        for seq, line in lines:
            if seq <= self._seq:
                continue
            self._seq = seq
            for sink in self._sinks:
                sink(line if line.endswith(b"\n") else line + b"\n")
            entry = decode_entry(line)
            event: Any = entry.event() if entry else None
            if entry is None or event is None:  # of a version that knows more
                continue
            slots = self.board.slots
            self._know(event, entry.at)
            self.board = replace(self.board, slots=slots)
            self._mind(event)
            happened.append(event)
        if happened:
            self.heard += happened
            for listener in self._listeners:
                listener(*happened)

    def _mind(self, event: WorkTold) -> None:
        if isinstance(event, work_events.TaskStarted) and event.run in self._runs:
            self._mine[event.key] = event.run
        for key, run in list(self._mine.items()):
            job = self.board.jobs.get(key)
            if job is None or job.state != "working" or job.run != run:
                del self._mine[key]

    def _know(self, event: object, at: float) -> None:
        super()._know(event, at)
        if isinstance(event, work_events.WorkStarted):
            self.began = self.began or at

    @property
    def age(self) -> float:
        """How long ago the work was begun, in seconds."""
        return max(time.time() - self.began, 0.0) if self.began else 0.0

    # Claims: a job of Procrastinate for each task, and one for the gate

    def claims(self, key: str) -> bool:
        """Whether there is room, and nobody was faster. The claim itself is part of telling that it has begun."""
        return len(self._mine) < self._me.slots and self.board.jobs[key].state == "queued"

    def apart(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Beginning elsewhere for each worker: all of them may start now, and who wants the same waits."""
        at = self._me.id * self._me.slots % len(keys) if keys else 0
        return keys[at:] + keys[:at]

    def _claimed(self, transaction: Transaction, key: str) -> bool:
        """Also where we have it: the answer to the last question may have been lost."""
        found = finished(transaction.jobs.fetch_job(queues=[self._queue(key)], worker_id=self._me.id))
        return found is not None or self._is_held_by_us(transaction, key)

    def has_gate(self) -> bool:
        return GATE in self._posts

    def has_list(self) -> bool:
        return LIST in self._posts

    def takes_gate(self) -> bool:
        """Whether the gate has become ours."""
        return self._takes(GATE)

    def takes_list(self, by_right: bool = False) -> bool:
        """Whether the list has become ours to keep: `by_right` of who has brought it, also from one who stands in."""
        if not by_right or LIST in self._posts:
            return self._takes(LIST)
        if self._database.do(lambda transaction: keep_list(transaction, self._work, self._me)):
            self._posts |= {LIST}
        return LIST in self._posts

    def _takes(self, post: str) -> bool:
        if post in self._posts or post not in self._vacant:
            return False
        self._vacant -= {post}
        if not self._database.do(lambda transaction: self._claimed(transaction, post)):
            return False
        self._posts |= {post}
        return True

    def report(self, spending: float) -> None:
        if abs(spending - self._reported) >= CENT or (self._reported and not spending):
            query = "UPDATE ralph_workers SET spending = %s WHERE id = %s"
            self._database.do(lambda transaction: transaction.ask(query, spending, self._me.id))
            self._reported = spending

    def is_mine(self, key: str) -> bool:
        return key in self._mine

    def take_over(self) -> None:
        """Frees what those have who were not heard for too long; who is back by then has to claim it again."""

        def free(transaction: Transaction) -> list[WorkTold]:
            told: list[WorkTold] = []
            silent = {one.id: one for one in transaction.present()}
            for claim in self._stalled(transaction):
                finished(transaction.jobs.retry_job(claim))
                key, who = str(claim.task_kwargs["key"]), silent.get(claim.worker_id or 0)
                job = self.board.jobs.get(key)
                if job is not None and job.state == "working":
                    why = f"{who.name} was not heard for {who.silence:.0f} seconds" if who else "its worker has left"
                    told.append(work_events.TaskQueued(key, why))
            return told

        if self._database.do(self._stalled):
            self._write(free)

    def leave(self) -> None:
        """Gives back all that is left, the gate above all."""

        def give_back(transaction: Transaction) -> None:
            held = finished(transaction.jobs.list_jobs_async(status="doing", worker_id=self._me.id))
            for claim in held:
                if claim.task_kwargs.get("work") == self._work:
                    finished(transaction.jobs.retry_job(claim))

        self._database.do(give_back)
        self._posts = frozenset()

    def _stalled(self, transaction: Transaction) -> list[Claim]:
        found = finished(transaction.jobs.get_stalled_jobs(task_name=TASK, seconds_since_heartbeat=STALLED))
        return [claim for claim in found if claim.task_kwargs.get("work") == self._work]

    def _is_held_by_us(self, transaction: Transaction, key: str) -> bool:
        query = "SELECT 1 FROM procrastinate_jobs WHERE queue_name = %s AND worker_id = %s AND status = 'doing'"
        return bool(transaction.ask(query, self._queue(key), self._me.id))

    def _keep_jobs(self, transaction: Transaction, event: WorkTold) -> None:
        """What an event means for the claim."""
        if isinstance(event, ENDS_OF_A_LOOP) and event.key in self._mine:
            query = "SELECT id FROM procrastinate_jobs WHERE queue_name = %s AND worker_id = %s AND status = 'doing'"
            for (claim,) in transaction.ask(query, self._queue(event.key), self._me.id):
                finished(transaction.jobs.retry_job_by_id_async(claim, utcnow()))
        elif isinstance(event, work_events.WorkFinished):
            transaction.ask("UPDATE ralph_works SET is_open = false WHERE id = %s", self._work)

    def _queue(self, key: str) -> str:
        return queue_of(self._work, key)


def queue_of(work: str, key: str) -> str:
    """Each task has a queue of its own: so it can be claimed by its name."""
    return f"{work}/{key}"[:128]


def queue_up(transaction: Transaction, work: str, keys: Sequence[str]) -> None:
    jobs = [
        Claim(
            queue=queue_of(work, key),
            lock=queue_of(work, key),
            queueing_lock=queue_of(work, key),
            task_name=TASK,
            task_kwargs={"work": work, "key": key},
        )
        for key in keys
    ]
    if jobs:
        finished(transaction.jobs.batch_defer_jobs_async(jobs))


def keep_list(transaction: Transaction, work: str, me: Registered) -> bool:
    """Takes over the keeping of a list for one who has brought it: from nobody, or from one who stands in."""
    there = [one for one in transaction.present() if one.work == work and one.is_there and one.id != me.id]
    if any(one.brings for one in there):
        return False
    queue = queue_of(work, LIST)
    for (claim,) in transaction.ask(
        "SELECT id FROM procrastinate_jobs WHERE queue_name = %s AND status = 'doing'", queue
    ):
        finished(transaction.jobs.retry_job_by_id_async(claim, utcnow()))
    finished(transaction.jobs.fetch_job(queues=[queue], worker_id=me.id))
    transaction.ask("UPDATE ralph_workers SET work = %s WHERE id = %s", work, me.id)
    return True


def encoded(work: str, seq: int, told: Sequence[WorkTold], redact: Redactor) -> list[bytes]:
    """The lines of events that follow number `seq`, without keys."""
    lines: list[bytes] = []
    writer = Writer(
        work, [lambda data: lines.extend(data.splitlines(keepends=True))], seq=seq, redact=redact, names=NAMES
    )
    writer(*told)  # type: ignore[arg-type]
    return lines
