"""The runs that viewers look at, read once for all of them."""

import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ralph.actions.launch import Launched
from ralph.core.events import TodoItem
from ralph.core.state import RunSummary
from ralph.errors import UserError
from ralph.files import load_json
from ralph.history.backlog_history import BacklogHistory, fold_backlog
from ralph.history.feed import Feed, News, facts_now, with_files
from ralph.history.fold import Fold
from ralph.history.overview import NO_SUCCESSES, Now, Successes, latest_successes, run_now
from ralph.history.run_history import RunHistory
from ralph.show.plots import Html
from ralph.store.journal import read_entries
from ralph.store.mailbox import Mail, Mailbox
from ralph.store.register import Listed, read_summary, run_with_id, runs
from ralph.web.access import RequestRefused
from ralph.web.pieces import RecentPieces

MAX_RUNS = 400  # on the board


class RunSeen(Struct, frozen=True, kw_only=True):
    """A run at one moment. `mail` contains the open questions, even if the run has ended, because it can be resumed."""

    run: Listed
    present: Now
    mail: Mail
    now: float


def look_at(run: Listed, now: float, successes: Successes = NO_SUCCESSES) -> RunSeen:
    """Return the run as it is at the time `now`. With `now=0`, two results are equal unless something has happened."""
    mail = Mail() if run.facts.outcome == "done" else Mailbox(run.place).read()
    return RunSeen(run=run, present=run_now(run, now, mail, successes), mail=mail, now=now)


class RunLimits(Struct, frozen=True, rename="camel"):
    """The limits that were set for a run."""

    max_cost: float | None = None
    max_time: float | None = None


class _RunFile(Struct, frozen=True):
    settings: RunLimits = RunLimits()


def limits_of(run: Listed) -> RunLimits:
    return (load_json(f"{run.place}/run.json", _RunFile, 1 << 20) or _RunFile()).settings


class BacklogSeen(Struct, frozen=True, kw_only=True):
    """A backlog at one moment. `loops` are the summaries of the runs of its running tasks, by task key."""

    status: RunSeen
    history: BacklogHistory
    loops: Mapping[str, RunSummary]
    command: "RunningCommand | None" = None


class Survey(Struct, frozen=True):
    """All runs, and the backlogs among them that are running."""

    runs: Sequence[RunSeen]
    works: Sequence[BacklogSeen] = ()


class RunningCommand(Launched):
    """A ralph command about a run: accept, discard or retry. It ends with the server."""

    name = ""
    _result: str | None = None

    @property
    def result(self) -> str | None:
        """The error message, "" if it succeeded, None while it is running."""
        if self._result is None and (code := self.exit_code) is not None:
            self._result = (self.error_text() or f"{self.name} failed") if code else ""
            self.close()
        return self._result


class Register:
    """The runs that can be viewed: all of this user's.

    `commands` are the latest commands about runs that took long, by the id of the run.
    """

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self.env = env
        self.commands: dict[str, RunningCommand] = {}

    def runs(self) -> list[Listed]:
        """Return all runs, running ones first, then the newest. Runs started by an agent are left out."""
        listed = [run for run in runs(self.env) if not run.is_child]
        return sorted(listed, key=lambda run: (run.is_alive, run.id), reverse=True)

    def find(self, run_id: str) -> Listed:
        """Return the run with this id. Raise `RequestRefused` if there is none."""
        run = run_with_id(run_id, self.env)
        if run is None or run.is_child:
            raise RequestRefused(404, "run not found: it may have been removed")
        return run

    def survey(self, now: float) -> Survey:
        """Return everything on the board. The ended runs of a backlog are only on the page of the backlog."""
        listed = self.runs()
        works = {run.id for run in listed if run.by_kind(False, True)}
        visible = [run for run in listed if run.is_alive or run.facts.work not in works][:MAX_RUNS]
        successes = latest_successes(listed)
        statuses = [look_at(run, now, successes) for run in visible]
        return Survey(
            statuses, [self.work(status) for status in statuses if status.run.id in works and status.run.is_alive]
        )

    def work(self, status: RunSeen) -> BacklogSeen:
        """Return a backlog, without what git says about its target."""
        run = status.run
        history = fold_backlog(run.id, read_entries(run.folder.journal))
        around = os.path.dirname(run.place)
        loops = {job.task.key: read_summary(f"{around}/{job.run}") for job in history.board.of("working") if job.run}
        return BacklogSeen(
            status=status,
            history=replace(history, state=run.state),
            loops={key: facts for key, facts in loops.items() if facts},
            command=self.commands.get(run.id),
        )

    def view(self, watched: "WatchedRun") -> "View":
        """Return the content of a run's page."""
        history = watched.history()
        return View(
            status=look_at(watched.run, time.time()),
            history=replace(history, now=facts_now(watched.run, history)) if history.outcome else history,
            todo=watched.todo,
            stream=watched.stream.latest(),
            command=self.commands.get(watched.run.id),
            seq=watched.stream.seq,
        )

    def command_result(self, run_id: str) -> str | None:
        command = self.commands.get(run_id)
        return command.result if command else ""


class WatchedRun:
    """One run with its journal as it grows."""

    def __init__(self, run: Listed, feed: Feed) -> None:
        self.run = run
        self.stream = RecentPieces(run.facts.workspace)
        self._feed, self._fold = feed, Fold(run.id)
        self._finished = -1  # iterations whose files were asked for

    @classmethod
    def open(cls, run: Listed) -> "WatchedRun":
        """Return the run with its journal up to now."""
        watched = cls(run, Feed.open(run.folder.journal))
        watched._read(watched._feed.read())
        return watched

    def close(self) -> None:
        self._feed.close()

    @property
    def todo(self) -> tuple[TodoItem, ...]:
        return self._fold.todo

    def history(self) -> RunHistory:
        return self._fold.as_of(time.time() if self.run.is_alive else 0.0, self.run.state)

    def read_new(self) -> None:
        """Read what was appended to the journal. Raise `UserError` if a page that shows the rest cannot catch up."""
        is_replaced, news = self._feed.is_replaced, self._feed.read()
        if is_replaced or self._feed.left_out:  # an agent deleted it, or too much was appended
            raise UserError(f"the page of run {self.run.id} lacks events")
        self._read(news)

    def _read(self, news: Sequence[News]) -> None:
        for item in news:
            self._fold.add(item.event, item.entry.at)
            if item.is_recent:
                if not self.stream.seq:
                    self.stream.begin = item.entry.seq - 1
                self.stream.add(item.entry, item.event)

    def load_files(self, timeout: float) -> None:
        """Ask git which files changed, after another iteration; git may hang, so wait at most `timeout` seconds."""
        finished = len(self._fold.history.whole)
        if finished != self._finished:
            self._finished = finished
            thread = threading.Thread(target=self._ask_git, args=(self.history(),), daemon=True)
            thread.start()
            thread.join(timeout)

    def _ask_git(self, history: RunHistory) -> None:
        with suppress(UserError):  # the run was removed; the next read reports it
            self._fold.history.files = with_files(history).files


class View(Struct, frozen=True, kw_only=True):
    """The content of a run's page. `seq` is the number of the run's last event."""

    status: RunSeen
    history: RunHistory
    todo: tuple[TodoItem, ...]
    stream: Sequence[Html]
    command: RunningCommand | None
    seq: int
