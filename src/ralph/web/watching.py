"""The runs that viewers look at. The end of a journal is read first, so that there is something to show at once; the
rest is read in slices, once for all viewers."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.core.events import TodoItem
from ralph.core.model import Question
from ralph.core.state import RunSummary
from ralph.errors import UNREADABLE, UserError
from ralph.files import read_file
from ralph.history.feed import LONGEST_LOOK, Feed, facts_now, with_files
from ralph.history.overview import RunNow, Successes, latest_successes, run_now
from ralph.history.run_history import Fold, RunHistory
from ralph.history.work_history import WorkHistory, work_history
from ralph.run.launch import Launched
from ralph.show.plots import Html
from ralph.store.mailbox import Mail, Mailbox
from ralph.store.register import JOURNAL, Listed, read_summary, run_with_id, runs, runs_in
from ralph.web.access import RequestRefused
from ralph.web.pieces import RecentPieces

MAX_RUNS = 400  # on the board
MAX_WATCHED = 16
NO_MAIL = Mail()
END_TIMEOUT = 5.0  # seconds for reading the end of a journal, which usually takes a hundredth of one


class RunLimits(Struct, frozen=True, rename="camel"):
    """The limits of a run that were set."""

    max_cost: float | None = None
    max_time: float | None = None


class RunSeen(Struct, frozen=True, kw_only=True):
    """One run at one moment."""

    run: Listed
    present: RunNow
    mail: Mail
    limits: RunLimits
    now: float

    @property
    def questions(self) -> tuple[Question, ...]:
        """The open questions. An ended run may have some, because it can be resumed."""
        return self.mail.questions

    @property
    def state(self) -> str:
        return self.present.state

    @property
    def can_skip(self) -> bool:
        """Whether the run waits for an answer."""
        return self.run.state == "asking"

    @property
    def is_work(self) -> bool:
        return self.run.facts.kind == "work"

    @property
    def needs_a_person(self) -> bool:
        return self.present.needs_you


def look_at(run: Listed, now: float) -> RunSeen:
    """Return the run as it is now."""
    return _run_seen(run, mail_of(run), _limits(run.place), now)


def _run_seen(run: Listed, mail: Mail, limits: RunLimits, now: float, successes: Successes | None = None) -> RunSeen:
    return RunSeen(run=run, present=run_now(run, now, mail, successes or {}), mail=mail, limits=limits, now=now)


def mail_of(run: Listed) -> Mail:
    return NO_MAIL if run.facts.outcome == "done" else Mailbox(run.place).read()


class WorkSeen(Struct, frozen=True, kw_only=True):
    """A backlog at one moment; `loops` are the facts of its running tasks, by key."""

    seen: RunSeen
    history: WorkHistory
    loops: Mapping[str, RunSummary]
    command: "RunningCommand | None" = None


class RunningCommand:
    """A ralph command about a run: accept, discard or retry. It ends with the server."""

    def __init__(self, name: str, launched: Launched) -> None:
        self.name, self.began = name, time.time()
        self._launched = launched
        self._result: str | None = None

    @classmethod
    def start(cls, words: Sequence[str], env: Mapping[str, str]) -> "RunningCommand":
        return cls("retry" if words[0] == "work" else words[0], Launched.start(words, env))

    @property
    def result(self) -> str | None:
        """Why it failed, "" if it did not, None while it is running."""
        if self._result is None and (code := self._launched.exit_code) is not None:
            self._result = (self._launched.last_words() or f"{self.name} failed") if code else ""
            self._launched.close()
        return self._result


class Glance(Struct, frozen=True):
    """What the board depends on: its runs, those that need a person, and the size of each running backlog's journal."""

    runs: Sequence[tuple[Listed, Mail]]
    needing: frozenset[str]
    works: Mapping[str, int]
    successes: Successes


class Survey(Struct, frozen=True):
    """All runs, and the backlogs among them that are running."""

    runs: Sequence[RunSeen]
    works: Sequence[WorkSeen] = ()


class Register:
    """The runs that can be viewed: all of this user's, and those in the given workspaces."""

    def __init__(self, env: Mapping[str, str] = os.environ, workspaces: Sequence[str] = ()) -> None:
        self.env, self._named = env, workspaces
        self._works: dict[str, tuple[int, WorkHistory]] = {}
        self.commands: dict[str, RunningCommand] = {}

    def runs(self) -> list[Listed]:
        """Return all runs, running ones first, then the newest. Runs started by an agent are left out."""
        local = [run for place in self._named for run in runs_in(f"{place}/.ralph")]
        known = {run.id: run for run in (*local, *runs(self.env)) if not run.is_child}
        return sorted(known.values(), key=lambda run: (run.is_alive, run.id), reverse=True)

    def find(self, run_id: str) -> Listed:
        """Return the run with this id. Raise `RequestRefused` if there is none."""
        local = (run for place in self._named for run in runs_in(f"{place}/.ralph") if run.id == run_id)
        found = run_with_id(run_id, self.env) or next(local, None)
        if found is None or found.is_child:
            raise RequestRefused(404, "run not found: it may have been removed")
        return found

    def glance(self) -> Glance:
        """Return what the board depends on. Ended runs of a recorded backlog are left out: the backlog shows them."""
        listed = self.runs()
        works = {run.id: run for run in listed if run.facts.kind == "work"}
        shown = [run for run in listed if run.is_alive or run.facts.work not in works][:MAX_RUNS]
        mails, successes = [(run, mail_of(run)) for run in shown], latest_successes(listed)
        needing = (run.id for run, mail in mails if run_now(run, 0.0, mail, successes).needs_you)
        sizes = {run.id: _length(run) for run in works.values() if run.is_alive}
        return Glance(mails, frozenset(needing), sizes, successes)

    def survey(self, glance: Glance | None = None) -> Survey:
        """Return what the board shows. Limits are read only for running runs."""
        now, glance = time.time(), glance or self.glance()
        limits = {run.id: _limits(run.place) for run, _ in glance.runs if run.is_alive}
        surveyed = [
            _run_seen(run, mail, limits.get(run.id, RunLimits()), now, glance.successes) for run, mail in glance.runs
        ]
        return Survey(surveyed, [self.work(one) for one in surveyed if one.run.id in glance.works])

    def work(self, seen: RunSeen) -> WorkSeen:
        """Return a backlog; its journal is read again if it has grown."""
        run, known = seen.run, self._works.get(seen.run.id)
        size = _length(run)
        if known is None or known[0] != size:
            if len(self._works) >= MAX_WATCHED:
                self._works.clear()
            known = self._works[run.id] = (size, work_history(run))
        around = os.path.dirname(run.place)
        loops = {job.task.key: read_summary(f"{around}/{job.run}") for job in known[1].board.of("working") if job.run}
        history = replace(known[1], state=run.state)
        known_loops = {key: facts for key, facts in loops.items() if facts}
        return WorkSeen(seen=seen, history=history, loops=known_loops, command=self.commands.get(run.id))

    def workspaces(self) -> list[str]:
        """Return the folders in which a run may be started."""
        known = [*self._named, *(run.facts.workspace for run in self.runs())]
        return [place for place in dict.fromkeys(known) if place and os.path.isdir(place)]


class WatchedRun:
    """One run that viewers look at. Its fields may be read by several threads: hold `lock` while rendering."""

    def __init__(self, run: Listed, feed: Feed, commands: Mapping[str, RunningCommand]) -> None:
        self.run, self._commands = run, commands
        self.lock = threading.RLock()
        self._reset(feed)

    @classmethod
    def open(cls, run: Listed, commands: Mapping[str, RunningCommand]) -> "WatchedRun":
        return cls(run, Feed.open(run.folder.journal), commands)

    @property
    def command(self) -> RunningCommand | None:
        """The latest command about this run that took long."""
        return self._commands.get(self.run.id)

    def _reset(self, feed: Feed) -> None:
        self._feed = feed
        self.stream = RecentPieces(self.run.facts.workspace)
        self._fold = Fold(self.run.id)
        self._finished = -1  # iterations
        self._files_thread = threading.Thread()
        self.files_version = 0

    @property
    def todo(self) -> tuple[TodoItem, ...]:
        return self._fold.todo

    @property
    def progress(self) -> float:
        """The share of the journal that has been read."""
        return self._feed.progress

    def history(self) -> RunHistory:
        return self._fold.as_of(time.time() if self.run.is_alive else 0.0, self.run.state)

    def look(self, longest: float = LONGEST_LOOK) -> None:
        """Read the new end of the journal, then a slice of the rest, for at most `longest` seconds each."""
        with self.lock:
            if self._feed.is_replaced:  # an agent deleted it, and it was written again
                self._reset(Feed.open(self.run.folder.journal))
            has_grown = self._feed.has_grown
            if has_grown:
                self._read_end(longest)
            if has_grown or self._feed.is_behind:
                for news in self._feed.count(LONGEST_LOOK):
                    self._fold.add(news.event, news.entry.at)
                if not self._feed.is_behind:
                    self._read_changed_files()

    def look_at_all(self, longest: float) -> None:
        """Read the whole journal and what its iterations changed, for about `longest` seconds."""
        until = time.monotonic() + longest
        while self._feed.is_behind and time.monotonic() < until:
            self.look()
        if self._files_thread.is_alive():
            self._files_thread.join(max(until - time.monotonic(), 0))

    def _read_end(self, longest: float) -> None:
        left_out, news = self._feed.left_out, self._feed.look(longest)
        if self._feed.left_out != left_out:  # too much was written to show all of it
            self.stream = RecentPieces(self.run.facts.workspace)
        for one in news:
            if not self.stream.seq:
                self.stream.begin = one.entry.seq - 1  # earlier events are left out
            self.stream.add(one.entry, one.event)

    def _read_changed_files(self) -> None:
        """If another iteration has finished, ask git what changed: in a thread, because git may hang."""
        history = self.history()
        finished = sum(one.is_whole for one in history.iterations)
        if finished != self._finished:
            self._finished = finished
            run = copy_context().run  # the git command ends with the server
            self._files_thread = threading.Thread(target=run, args=(self._ask_git, history), daemon=True)
            self._files_thread.start()

    def _ask_git(self, history: RunHistory) -> None:
        with suppress(UserError):  # the run was removed; the next look reports it
            files = with_files(history).files
            with self.lock:
                self._fold.history.files = files
                self.files_version += 1


class View(Struct, frozen=True, kw_only=True):
    """Everything that the page of a run shows. `progress` is the share of its journal that has been read."""

    seen: RunSeen
    history: RunHistory
    todo: tuple[TodoItem, ...]
    stream: Sequence[Html]
    command: RunningCommand | None
    progress: float
    seq: int


def view_of(watched: WatchedRun) -> View:
    """Return what the page shows. Hold the run's lock for this and for rendering it."""
    return View(
        seen=look_at(watched.run, time.time()),
        history=_with_facts(watched.run, watched.history()),
        command=watched.command,
        todo=watched.todo,
        stream=watched.stream.latest(),
        progress=watched.progress,
        seq=watched.stream.seq,
    )


def _with_facts(run: Listed, history: RunHistory) -> RunHistory:
    return replace(history, now=facts_now(run, history)) if history.outcome else history


class WatchedRuns:
    """The runs that were looked at most recently."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._lock = threading.Lock()
        self._watched: OrderedDict[str, WatchedRun] = OrderedDict()

    def of(self, run_id: str) -> WatchedRun:
        run = self._register.find(run_id)
        with self._lock:
            watched = self._watched.get(run_id)
            if watched is None:
                watched = self._watched[run_id] = WatchedRun.open(run, self._register.commands)
            watched.run = run
            self._watched.move_to_end(run_id)
            while len(self._watched) > MAX_WATCHED:
                self._watched.popitem(last=False)
        watched.look(END_TIMEOUT)
        return watched


def _length(run: Listed) -> int:
    try:
        return os.stat(f"{run.place}/{JOURNAL}").st_size
    except OSError:
        raise UserError(f"run {run.id} is no longer on record") from None


class _RunFile(Struct, frozen=True):
    settings: RunLimits = RunLimits()


def _limits(place: str) -> RunLimits:
    try:
        return msgspec.json.decode(read_file(f"{place}/run.json", 1 << 20), type=_RunFile).settings
    except (OSError, *UNREADABLE):
        return RunLimits()
