"""What is known of the runs that somebody looks at? The end of a journal is read first, so that there is something to
see at once, however long it is; what counts of all of it is read in the background, once for everybody who looks."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import copy_context

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.core.events import TodoItem
from ralph.core.model import Question, RunFacts
from ralph.errors import UNREADABLE, UserError
from ralph.files import read_file
from ralph.history.feed import LONGEST_LOOK, Feed, with_files
from ralph.history.overview import RunNow, run_now
from ralph.history.run_history import Fold, RunHistory
from ralph.history.work_history import WorkHistory, work_history
from ralph.records.register import (
    JOURNAL,
    KnownRuns,
    Listed,
    facts_in,
    folders_in,
    host,
    links_to_all,
    recorded_in,
    run_of,
)
from ralph.show.plots import Html
from ralph.steering.mailbox import Mail, Mailbox
from ralph.web.access import NotServed
from ralph.web.pieces import RecentPieces

MOST_RUNS = 400
NO_MAIL = Mail()
MOST_WATCHED = 16
SLICE = 0.02
AT_ONCE, SHORT = 0.15, 1 << 24
"""So many seconds a page waits for all of a journal of so many bytes: the beginning of a longer one comes later."""
PATIENCE = 5.0
"""So many for its end, which takes a hundredth of one unless the machine has other things to do."""


class RunLimits(Struct, frozen=True, rename="camel"):
    """What a run may take, where that was said."""

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
        """Those that nobody has answered: of a run that is not at work, too, since it may go on."""
        return self.mail.questions

    @property
    def state(self) -> str:
        return self.present.state

    @property
    def can_skip(self) -> bool:
        """Whether it stands still until it is answered."""
        return self.run.state == "asking"

    @property
    def is_work(self) -> bool:
        return self.run.facts.kind == "work"

    @property
    def needs_a_person(self) -> bool:
        return self.present.needs_you


def seen(run: Listed, now: float) -> RunSeen:
    """One run as it stands."""
    return _seen(run, mail_of(run), _limits(run.place), now)


def _seen(run: Listed, mail: Mail, limits: RunLimits, now: float) -> RunSeen:
    return RunSeen(run=run, present=run_now(run, now, mail), mail=mail, limits=limits, now=now)


def mail_of(run: Listed) -> Mail:
    return NO_MAIL if run.facts.outcome == "done" else Mailbox(run.place).read()


class WorkSeen(Struct, frozen=True, kw_only=True):
    """The work on a backlog at one moment; `loops` is where the loops stand that are at work, by the items' keys."""

    seen: RunSeen
    history: WorkHistory
    loops: Mapping[str, RunFacts]


class Glance(Struct, frozen=True):
    """What is told apart without rendering anything: the runs to be shown with what lies in their boxes, and how long
    the journals are of the works among them that go on."""

    runs: Sequence[tuple[Listed, Mail]]
    works: Mapping[str, int]


class Survey(Struct, frozen=True):
    """All runs, and the works among them that go on."""

    runs: Sequence[RunSeen]
    works: Sequence[WorkSeen] = ()


class Register:
    """The runs that may be looked at: all of this user's, and those that are kept in the folders that were named."""

    def __init__(self, env: Mapping[str, str] = os.environ, places: Sequence[str] = ()) -> None:
        self.env, self.places = env, places
        self._works: dict[str, tuple[int, WorkHistory]] = {}
        self._known = KnownRuns()

    def runs(self) -> list[Listed]:
        """Those at work first, then the newest. What the agents of a task start belongs to it, and is not listed."""
        local = [path for place in self.places for path in folders_in(f"{place}/.ralph")]
        links, here = links_to_all(self.env), host()
        found = self._known.look((*local, *links))
        ours = [found[path] for path in links if path in found and found[path].facts.host in ("", here)]
        known = {run.id: run for run in (*(found[path] for path in local if path in found), *ours) if not run.is_child}
        return sorted(known.values(), key=lambda run: (run.is_alive, run.id), reverse=True)

    def find(self, run_id: str) -> Listed:
        """The run of this id: equal to one on record, and never a path."""
        local = (run for place in self.places for run in recorded_in(f"{place}/.ralph") if run.id == run_id)
        found = run_of(run_id, self.env) or next(local, None)
        if found is None or found.is_child:
            raise NotServed(404, "There is no such run, or it has been removed.")
        return found

    def glance(self) -> Glance:
        """What the loops for the items of a work came to is told by the work, as long as it is on record."""
        listed = self.runs()
        works = {run.id: run for run in listed if run.facts.kind == "work"}
        shown = [run for run in listed if run.is_alive or run.facts.work not in works][:MOST_RUNS]
        return Glance(
            [(run, mail_of(run)) for run in shown], {run.id: _length(run) for run in works.values() if run.is_alive}
        )

    def survey(self, glance: Glance | None = None) -> Survey:
        """On a list of many, the limits of those that have ended do not matter."""
        now, glance = time.time(), glance or self.glance()
        limits = {run.id: _limits(run.place) for run, _ in glance.runs if run.is_alive}
        surveyed = [_seen(run, mail, limits.get(run.id, RunLimits()), now) for run, mail in glance.runs]
        return Survey(surveyed, [self.work(one) for one in surveyed if one.run.id in glance.works])

    def work(self, seen: RunSeen) -> WorkSeen:
        """A work's journal is read again when it has grown."""
        run, known = seen.run, self._works.get(seen.run.id)
        size = _length(run)
        if known is None or known[0] != size:
            if len(self._works) >= MOST_WATCHED:
                self._works.clear()
            known = self._works[run.id] = (size, work_history(run))
        around = os.path.dirname(run.place)
        loops = {job.item.key: facts_in(f"{around}/{job.run}") for job in known[1].board.of("working") if job.run}
        history = replace(known[1], state=run.state)
        return WorkSeen(seen=seen, history=history, loops={key: facts for key, facts in loops.items() if facts})

    def workspaces(self) -> list[str]:
        """Where a run may be started."""
        known = [*self.places, *(run.facts.workspace for run in self.runs())]
        return [place for place in dict.fromkeys(known) if place and os.path.isdir(place)]


class WatchedRun:
    """One run that somebody looks at."""

    def __init__(self, run: Listed) -> None:
        self.run = run
        self.lock = threading.RLock()
        self.version = 0
        self._grown, self._settled = threading.Event(), threading.Event()
        self._is_closed = False

    def start(self) -> None:
        self._begin()
        counting = copy_context().run  # for the same asker: that one may leave
        threading.Thread(target=counting, args=(self._count,), name=f"reads {self.run.id}", daemon=True).start()

    def _begin(self) -> None:
        self._feed = Feed.open(self.run.folder.journal)
        self.stream = RecentPieces(self.run.facts.workspace)
        self._fold = Fold(self.run.id)
        self._counted_files = -1

    @property
    def todo(self) -> tuple[TodoItem, ...]:
        return self._fold.todo

    @property
    def progress(self) -> float:
        """How much of the journal has been counted."""
        return self._feed.progress

    def history(self) -> RunHistory:
        return self._fold.as_of(time.time() if self.run.is_alive else 0.0, self.run.state)

    def look(self, longest: float = LONGEST_LOOK) -> None:
        """Reads what is new, or as much of it as can be read in `longest` seconds."""
        with self.lock:
            if self._feed.is_replaced:  # an agent that cleans up has removed it, and it was written anew
                before = self._feed
                self._begin()
                before.close()  # only now: where nobody can read what stands in its place, that is said at each look
            if not self._feed.has_grown:
                return
            left_out, news = self._feed.left_out, self._feed.look(longest)
            if self._feed.left_out != left_out:  # more was written than anybody could have read
                self.stream = RecentPieces(self.run.facts.workspace)
            for one in news:
                if not self.stream.seq:
                    self.stream.begin = one.entry.seq - 1  # what came before was left out
                self.stream.hear(one.entry, one.event)
        self._settled.clear()
        self._grown.set()

    def wait_until_counted(self, longest: float = 0.0) -> None:
        """Whoever looks at a short journal waits the moment that it takes to read it whole."""
        self._settled.wait(longest or (AT_ONCE if self._feed.size < SHORT else 0.0))

    def close(self) -> None:
        self._is_closed = True
        self._grown.set()

    def _count(self) -> None:
        """What the background does: reads in slices, so that nobody has to wait for long."""
        while True:
            self._grown.wait()
            self._grown.clear()
            if self._is_closed:
                self._feed.close()
                return
            try:
                while self._count_a_slice() and not self._is_closed:
                    pass
                self._count_files()
            except UserError:  # removed meanwhile: whoever looks is told by the next look
                pass
            self.version += 1
            if not self._grown.is_set():
                self._settled.set()

    def _count_a_slice(self) -> bool:
        """Whether there is more."""
        with self.lock:
            for news in self._feed.count(SLICE):
                self._fold.hear(news.event, news.entry.at)
            return self._feed.is_behind

    def _count_files(self) -> None:
        """Asks git what each iteration changed, where another one has ended."""
        with self.lock:
            history = self.history()
            whole = sum(one.is_whole for one in history.iterations)
        if whole != self._counted_files:
            self._counted_files = whole
            self._fold.history.files = with_files(history).files  # its iterations are those that are shown


class View(Struct, frozen=True, kw_only=True):
    """All that the page of a run shows. `progress` is how much of a long journal has been read."""

    seen: RunSeen
    history: RunHistory
    todo: tuple[TodoItem, ...]
    stream: Sequence[Html]
    progress: float
    seq: int


def view_of(watched: WatchedRun) -> View:
    """To be asked, and rendered, while the lock is held: what is counted in the background must stand still."""
    return View(
        seen=seen(watched.run, time.time()),
        history=watched.history(),
        todo=watched.todo,
        stream=watched.stream.shown(),
        progress=watched.progress,
        seq=watched.stream.seq,
    )


class WatchedRuns:
    """The runs that somebody looks at, or has looked at lately."""

    def __init__(self, register: Register) -> None:
        self._register = register
        self._lock = threading.Lock()
        self._watched: OrderedDict[str, WatchedRun] = OrderedDict()

    def of(self, run_id: str) -> WatchedRun:
        run = self._register.find(run_id)
        with self._lock:
            watched = self._watched.get(run_id)
            if watched is None:
                watched = WatchedRun(run)
                watched.start()
                self._watched[run_id] = watched
            watched.run = run
            self._watched.move_to_end(run_id)
            while len(self._watched) > MOST_WATCHED:
                self._watched.popitem(last=False)[1].close()
        watched.look(PATIENCE)
        return watched


def _length(run: Listed) -> int:
    try:
        return os.stat(f"{run.place}/{JOURNAL}").st_size
    except OSError:
        raise UserError(f"run {run.id} is no longer on record") from None


class _Order(Struct, frozen=True):
    settings: RunLimits = RunLimits()


def _limits(place: str) -> RunLimits:
    try:
        return msgspec.json.decode(read_file(f"{place}/run.json", 1 << 20), type=_Order).settings
    except (OSError, *UNREADABLE):
        return RunLimits()
