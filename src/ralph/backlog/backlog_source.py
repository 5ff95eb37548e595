"""Where is a backlog kept, in which format, and what does it say? A file, a folder, or another program's keeping; read
at the start, at a commit, and again while it is worked off: people edit it then, and what has merged is ticked where no
commit can do that."""

import errno
import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.backlog_content import BacklogContent, Format, decoded, sound
from ralph.backlog.json_backlogs import is_taskmasters, parsed, read_prd, read_taskmaster, tick_prd, tick_taskmaster
from ralph.backlog.markdown_backlogs import read_boxes, read_folder, tick_boxes, tick_folder
from ralph.backlog.trackers import PROGRAMS, close_bead
from ralph.core.backlog import FINISHED_STATES, BacklogTask, Board, Job
from ralph.core.work_events import TaskListed, TaskQueued, TaskWithdrawn, WorkEvent
from ralph.errors import UserError
from ralph.files import read_given, replace_file
from ralph.git.client import Git
from ralph.process.deadline import Deadline

FORMATS = {
    "boxes": Format(read_boxes, tick_boxes),
    "prd": Format(read_prd, tick_prd),
    "taskmaster": Format(read_taskmaster, tick_taskmaster),
    "backlogmd": Format(read_folder, tick_folder),
}
INSIDE = ("tasks.md", "TASKS.md", "prd.json", "tasks/tasks.json", "PLAN.md")
"""What is looked for in a folder: spec-kit's and OpenSpec's tasks, a list of stories, task-master's tasks."""
LARGEST = 16 << 20
ASKED_AGAIN = 60.0  # seconds between two looks at a list that another program keeps


class BacklogSource(Struct, frozen=True, kw_only=True):
    """A list as it was named. `paths` are its files or its folder, from the top of the repository, where it lies in
    one; `name` is how it is called in messages; `program`, where another program keeps it."""

    word: str
    name: str
    format: str = ""
    place: str = ""
    program: str = ""
    wanted: str = ""
    paths: tuple[str, ...] = ()

    @property
    def is_in_files(self) -> bool:
        return not self.program

    def closing(self, key: str) -> str:
        """What a merge says of a task, so that its keeper closes it."""
        return f"Closes #{key}" if self.program == "github" else ""

    def read(self) -> BacklogContent:
        """What its files say now."""
        return self.read_from(self._contents())

    def read_from(self, files: Mapping[str, bytes]) -> BacklogContent:
        """What they say as they are at some commit."""
        return FORMATS[self.format].read({name: data for name, data in files.items() if self._is_part(name)})

    def ticked(self, files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
        """Those of the files, as they are at some commit, that change when these tasks are done."""
        files = {name: data for name, data in files.items() if self._is_part(name)}
        return FORMATS[self.format].ticked(files, keys) if files and self.is_in_files else {}

    def tick_on_disk(self, keys: Collection[str]) -> None:
        """Ticks a list that is not in git."""
        files = self._contents()
        for name, data in FORMATS[self.format].ticked(files, keys).items():
            path = self._path(name)
            mode = 0o666
            with suppress(OSError):
                mode = os.stat(path).st_mode & 0o7777
            replace_file(path, data, mode)

    def stamp(self) -> object:
        """Changes whenever the files do."""
        stamps = []
        for name in self._names():
            with suppress(OSError):
                seen = os.stat(self._path(name))
                stamps.append((name, seen.st_mtime_ns, seen.st_size, seen.st_ino))
        return tuple(stamps)

    def _is_part(self, name: str) -> bool:
        return self.format != "backlogmd" or name.endswith(".md")

    def _names(self) -> list[str]:
        if self.format != "backlogmd":
            return [self.name]
        found = []
        for folder in ("tasks", "completed"):
            with suppress(OSError):
                found += [f"{folder}/{name}" for name in sorted(os.listdir(os.path.join(self.place, folder)))]
        return [f"{self.name}/{name}" for name in found if name.endswith(".md")]

    def _path(self, name: str) -> str:
        return self.place if self.format != "backlogmd" else self.place + name.removeprefix(self.name)

    def _contents(self) -> dict[str, bytes]:
        return {name: _bytes_of(self._path(name)) for name in self._names()}


def _bytes_of(path: str) -> bytes:
    try:
        return read_given(path, LARGEST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UserError(f"{path} is too large for a list of tasks", "name another one") from None
        raise UserError(f"cannot read {path}: {error.strerror}", "name a list, a folder, github: or beads:") from None


def find(word: str, workspace: Path, root: Path | None) -> BacklogSource:
    """The backlog that a person means. `root` is the top of the repository around the workspace."""
    program, colon, wanted = word.partition(":")
    if colon and program in PROGRAMS:
        PROGRAMS[program].command(wanted)
        return BacklogSource(word=word, name=word, program=program, wanted=wanted)
    here, there = Path(word).absolute(), workspace / word
    place = there if there.exists() and not here.exists() else here
    if not place.exists():
        raise UserError(f"no such list: {word}", "name a file or folder with tasks, github: or beads:")
    if place.is_dir():
        inside = [place / name for name in INSIDE if (place / name).is_file()]
        if not inside and not (place / "tasks").is_dir():
            hint = "a folder has tasks.md, prd.json, or tasks/ with a file a task"
            raise UserError(f"{place} holds no list that ralph knows", hint)
        place = next(iter(inside), place)
    place = Path(os.path.realpath(place))
    name = os.path.relpath(place, root) if root and place.is_relative_to(root) else str(place)
    format_ = "boxes"
    if place.is_dir():
        format_ = "backlogmd"
    elif place.suffix.lower() == ".json":
        document = parsed(decoded(_bytes_of(str(place))), str(place))
        format_ = "taskmaster" if is_taskmasters(document) else "prd"
    paths = () if os.path.isabs(name) else (name,)
    return BacklogSource(word=word, name=name, format=format_, place=str(place), paths=paths)


def source_of(word: str, workspace: Path, home: Git) -> BacklogSource:
    source = find(word, workspace, Path(home.root))
    # A list that the last commit does not hold is not in git: no merge can tick it.
    paths = tuple(path for path in source.paths if not home.try_run("cat-file", "-e", f"HEAD:{path}").code)
    return replace(source, paths=paths)


def read_list(source: BacklogSource, workspace: Path) -> BacklogContent:
    """What the list says now, with nothing wrong in it."""
    if source.is_in_files:
        return sound(source.read(), source.name)
    return sound(PROGRAMS[source.program].answer(source.wanted, str(workspace)), source.name)


def read_list_at(commit: str, source: BacklogSource, home: Git) -> BacklogContent:
    """What a list in git says at a commit: so much of it is seen from every clone."""
    listed = home.run("ls-tree", "-r", "-z", "--name-only", commit, "--", *source.paths)
    names = [name for name in listed.decode("utf-8", "replace").split("\0") if name]
    files = {name: home.run("cat-file", "blob", f"{commit}:{name}") for name in names}
    return sound(source.read_from(files), source.name)


class BacklogWatch:
    """One list, for as long as it is worked off. `is_here` unless another machine has brought it."""

    def __init__(self, source: BacklogSource, workspace: str, is_here: bool = True) -> None:
        self._source, self._workspace = source, workspace
        self._is_at_hand = is_here and source.is_in_files
        self._stamp: object = None
        self._asked = time.monotonic()
        self._settled: set[str] = set()

    def begin(self) -> None:
        """The list has just been read."""
        self._stamp = self._source.stamp() if self._is_at_hand else None

    def hurry(self) -> None:
        """Its target has changed: who goes by that asks now."""
        if self._source.is_in_files:
            self._asked = -ASKED_AGAIN

    def take_due(self) -> bool:
        """Whether it is time to have another program say what is in it, which takes a process of its own: said once."""
        if self._is_at_hand or time.monotonic() - self._asked < ASKED_AGAIN:
            return False
        self._asked = time.monotonic()
        return True

    def reread(self) -> BacklogContent | None:
        """What it says now, if a person has touched it; a broken one is an error."""
        if not self._is_at_hand or (stamp := self._source.stamp()) == self._stamp:
            return None
        self._stamp = stamp
        return sound(self._source.read(), self._source.name)

    def tick(self, board: Board, deadline: Deadline | None = None) -> list[str]:
        """Ticks what has merged, where the list is not in git or another program keeps it; what stands in the way."""
        merged = [key for key, job in board.jobs.items() if job.state == "merged"]
        if self._source.program == "beads":
            fresh = [key for key in merged if key not in self._settled]
            self._settled.update(fresh)
            said = [close_bead(key, board.jobs[key].commit, self._workspace, deadline) for key in fresh]
            return [problem for problem in said if problem]
        if self._source.program or self._source.paths or not merged:
            return []
        try:
            self._source.tick_on_disk(merged)
            self._stamp = self._source.stamp()
        except (OSError, UserError) as error:
            return [f"cannot tick {self._source.name}: {error}"]
        return []


def differences(board: Board, reading: BacklogContent) -> list[WorkEvent]:
    """What a list says now, against what is known."""
    told: list[WorkEvent] = []
    for task in reading.tasks:
        job = board.jobs.get(task.key)
        if job is not None:
            told += _changes_of(task, job)
        elif not task.done:
            told.append(TaskListed(task))
    listed = {task.key for task in reading.tasks}
    gone = [key for key, job in board.jobs.items() if key not in listed and job.state not in FINISHED_STATES]
    return [*told, *(TaskWithdrawn(key, "it was taken off the list", by_list=True) for key in gone)]


def _changes_of(task: BacklogTask, job: Job) -> list[WorkEvent]:
    if task.done:
        ticked = TaskWithdrawn(task.key, "it was ticked by a person", by_list=True)
        return [TaskListed(task), ticked] if job.state not in FINISHED_STATES else []
    if job.state == "withdrawn" and job.by_list:
        return [TaskListed(task), TaskQueued(task.key, "it is on the list again", forgiven=True)]
    if job.state == "merged" or _wanted(task) == _wanted(job.task):
        return []
    edited = [TaskQueued(task.key, "its text was edited", forgiven=True)] if job.state == "parked" else []
    return [TaskListed(task), *edited]


def _wanted(task: BacklogTask) -> BacklogTask:
    """The task less where it stands in the list."""
    return replace(task, place="", done=False)
