"""Find, read, watch and tick a backlog: a file, a folder, or the list of a tracker such as GitHub.

People edit a backlog while it runs, so ralph reads it again when it changes. Merged tasks are ticked in the merge
commits; if the user has uncommitted changes in the file, on disk as well.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.backlog_content import BacklogContent, Format, decode_file, require_valid
from ralph.backlog.json_backlogs import is_taskmasters, parse_json, read_prd, read_taskmaster, tick_prd, tick_taskmaster
from ralph.backlog.markdown_backlogs import read_boxes, read_folder, tick_boxes, tick_folder
from ralph.backlog.trackers import PROGRAMS, close_bead
from ralph.core.backlog import FINISHED_STATES, BacklogTask, Board, Job
from ralph.core.backlog_events import BacklogEvent, TaskListed, TaskQueued, TaskWithdrawn
from ralph.core.events import Notice
from ralph.errors import UserError
from ralph.files import read_given, replace_file
from ralph.git.client import Git
from ralph.process.signals import Deadline

FORMATS = {
    "boxes": Format(read_boxes, tick_boxes),
    "prd": Format(read_prd, tick_prd),
    "taskmaster": Format(read_taskmaster, tick_taskmaster),
    "backlogmd": Format(read_folder, tick_folder),
}
# Files that may be the backlog of a folder: of spec-kit, OpenSpec, stories, task-master, plans.
LIST_FILES = ("tasks.md", "TASKS.md", "prd.json", "tasks/tasks.json", "PLAN.md")
MAX_BYTES = 16 << 20  # of a backlog file
QUERY_INTERVAL = 60.0  # seconds between two queries of a tracker
TICK_TRIES = 5  # the user may save the file while ralph ticks it


class BacklogSource(Struct, frozen=True, kw_only=True):
    """A backlog as the user named it.

    `name` is for messages, `place` is its path. `paths` are its files or its folder, relative to the top of the
    repository, if git tracks them. For a backlog in a tracker, `program` is the tracker's program and `wanted` the
    query.
    """

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
        """Return the line in a merge commit that makes GitHub close the issue; "" for other backlogs."""
        return f"Closes #{key}" if self.program == "github" else ""

    def read(self) -> BacklogContent:
        """Read the files on disk."""
        return self.read_from(self._contents())

    def read_from(self, files: Mapping[str, bytes]) -> BacklogContent:
        """Read `files`, such as those of a commit."""
        return FORMATS[self.format].read({name: data for name, data in files.items() if self._is_part(name)})

    def ticked(self, files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
        """Return the new content of those `files` that change when these tasks are ticked."""
        files = {name: data for name, data in files.items() if self._is_part(name)}
        return FORMATS[self.format].ticked(files, keys) if files and self.is_in_files else {}

    def ticked_as_edited(self, files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
        """Like `ticked`, but for the files on the user's disk; tick the tasks that are done in `files` as well.

        If the files on disk are broken, or have none of these tasks, return what `ticked` returns.
        """
        disk = self.disk_files(files)
        try:
            task_keys = {task.key for task in self.read_from(disk).tasks}
            done_keys = {task.key for task in self.read_from(files).tasks if task.done}
            if not task_keys.intersection(keys):
                return self.ticked(files, keys)
            after = {**disk, **self.ticked(disk, {*keys, *done_keys})}
        except (UserError, ValueError):  # not a valid backlog
            return self.ticked(files, keys)
        return {name: data for name, data in after.items() if files.get(name) != data}

    def disk_files(self, files: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files on disk, with the line endings of `files`; {} if they cannot be read."""
        try:
            contents = self._contents()
        except UserError:
            return {}
        unix = {name for name, data in files.items() if b"\r\n" not in data}
        return {name: data.replace(b"\r\n", b"\n") if name in unix else data for name, data in contents.items()}

    def tick_on_disk(self, keys: Collection[str]) -> None:
        """Tick these tasks in the files on disk. Concurrent edits by the user are kept."""
        for _ in range(TICK_TRIES):
            before = self._contents()
            after = FORMATS[self.format].ticked(before, keys)
            if self._contents() == before:
                for name, data in after.items():
                    replace_in_place(self._path(name), data)
                return

    def stamp(self) -> object:
        """Return a value that changes whenever the files do."""
        stamps = []
        for name in self._names():
            with suppress(OSError):
                info = os.stat(self._path(name))
                stamps.append((name, info.st_mtime_ns, info.st_size, info.st_ino))
        return tuple(stamps)

    def _is_part(self, name: str) -> bool:
        return self.format != "backlogmd" or name.endswith(".md")

    def _names(self) -> list[str]:
        if self.format != "backlogmd":
            return [self.name]
        names = []
        for folder in ("tasks", "completed"):
            with suppress(OSError):
                names += [f"{folder}/{name}" for name in sorted(os.listdir(os.path.join(self.place, folder)))]
        return [f"{self.name}/{name}" for name in names if name.endswith(".md")]

    def _path(self, name: str) -> str:
        return self.place if self.format != "backlogmd" else self.place + name.removeprefix(self.name)

    def _contents(self) -> dict[str, bytes]:
        return {name: _bytes_of(self._path(name)) for name in self._names()}


def replace_in_place(path: str, data: bytes) -> None:
    """Replace a file atomically, and keep its mode."""
    mode = 0o666
    with suppress(OSError):
        mode = os.stat(path).st_mode & 0o7777
    replace_file(path, data, mode)


def _bytes_of(path: str) -> bytes:
    try:
        return read_given(path, MAX_BYTES)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise UserError(f"{path} is too large for a backlog", "name another file") from None
        raise UserError(f"cannot read {path}: {error.strerror}", "name a file, a folder, github: or beads:") from None


def find_backlog(word: str, workspace: Path, root: Path | None) -> BacklogSource:
    """Return the backlog that a word on the command line names. `root` is the top of the repository, if any."""
    program, colon, wanted = word.partition(":")
    if colon and program in PROGRAMS:
        PROGRAMS[program].command(wanted)
        return BacklogSource(name=word, program=program, wanted=wanted)
    here, there = Path(word).absolute(), workspace / word
    place = there if there.exists() and not here.exists() else here
    if not place.exists():
        raise UserError(f"{word} not found", "name a file or folder with tasks, github: or beads:")
    if place.is_dir():
        inside = [place / name for name in LIST_FILES if (place / name).is_file()]
        if not inside and not (place / "tasks").is_dir():
            hint = "a folder needs tasks.md, prd.json, or tasks/ with one file for each task"
            raise UserError(f"no backlog found in {place}", hint)
        place = next(iter(inside), place)
    place = Path(os.path.realpath(place))
    name = os.path.relpath(place, root) if root and place.is_relative_to(root) else str(place)
    format_ = "boxes"
    if place.is_dir():
        format_ = "backlogmd"
    elif place.suffix.lower() == ".json":
        document = parse_json(decode_file(_bytes_of(str(place))), str(place))
        format_ = "taskmaster" if is_taskmasters(document) else "prd"
    paths = () if os.path.isabs(name) else (name,)
    return BacklogSource(name=name, format=format_, place=str(place), paths=paths)


def source_of(word: str, workspace: Path, repository: Git) -> BacklogSource:
    """Like `find_backlog`, but `paths` are only those that the last commit contains."""
    source = find_backlog(word, workspace, Path(repository.root))
    # The gate can tick only what git tracks.
    paths = tuple(path for path in source.paths if not repository.try_run("cat-file", "-e", f"HEAD:{path}").code)
    return replace(source, paths=paths)


def read_list(source: BacklogSource, workspace: Path) -> BacklogContent:
    """Read a backlog; raise UserError if anything is wrong with it."""
    if source.is_in_files:
        return require_valid(source.read(), source.name)
    return require_valid(PROGRAMS[source.program].list_tasks(source.wanted, str(workspace)), source.name)


def files_at(commit: str, source: BacklogSource, repository: Git) -> dict[str, bytes]:
    """Return the files of a backlog as they are in a commit."""
    output = repository.run("--literal-pathspecs", "ls-tree", "-r", "-z", "--name-only", commit, "--", *source.paths)
    names = [os.fsdecode(name) for name in output.split(b"\0") if name]
    return {name: repository.run("cat-file", "blob", f"{commit}:{name}") for name in names}


class BacklogWatch:
    """Notices edits of a backlog during its run."""

    def __init__(self, source: BacklogSource, workspace: str) -> None:
        self._source, self._workspace = source, workspace
        self._stamp: object = None
        self._asked_at = time.monotonic()
        self._answer: Future[BacklogContent] | None = None  # of a tracker
        self._closed: set[str] = set()

    def begin(self) -> None:
        """Remember the files as they are now; the caller has just read them."""
        self._stamp = self._source.stamp() if self._source.is_in_files else None

    def changes(self) -> Callable[[Board], Sequence[BacklogEvent | Notice]] | None:
        """Return the events of an edit, which depend on the board; None if there was no edit.

        Files are read again when they have changed, a tracker once per interval. If the backlog cannot be read, nothing
        changes, and the only event says so.
        """
        try:
            content = self._reread()
        except UserError as error:
            notice = Notice(f"cannot read the backlog again, so ralph keeps the last version: {error.message}")
            return lambda board: [notice]
        return partial(differences, reading=content) if content else None

    def _reread(self) -> BacklogContent | None:
        if not self._source.is_in_files:
            return self._take_answer()
        if (stamp := self._source.stamp()) == self._stamp:
            return None
        self._stamp = stamp
        return require_valid(self._source.read(), self._source.name)

    def _take_answer(self) -> BacklogContent | None:
        """Return the answer of the tracker if there is a new one. A thread waits for it: it may take a minute."""
        answer = self._answer
        if answer is None and time.monotonic() - self._asked_at >= QUERY_INTERVAL:
            self._asked_at, self._answer = time.monotonic(), Future()
            threading.Thread(target=self._ask, args=(self._answer,), name="tracker", daemon=True).start()
        if answer is None or not answer.done():
            return None
        self._answer = None
        return answer.result()

    def _ask(self, answer: Future[BacklogContent]) -> None:
        try:
            answer.set_result(read_list(self._source, Path(self._workspace)))
        except Exception as error:  # noqa: BLE001 (raised by `_take_answer`)
            answer.set_exception(error)

    def tick(self, board: Board, repository: Git | None = None, deadline: Deadline | None = None) -> list[str]:
        """Tick the merged tasks in files that git doesn't track or that have uncommitted changes, and in beads.

        In all other files the merge commits tick them. Return what went wrong.
        """
        merged = [key for key, job in board.jobs.items() if job.state == "merged"]
        if self._source.program == "beads":
            fresh = [key for key in merged if key not in self._closed]
            self._closed.update(fresh)
            problems = [close_bead(key, board.jobs[key].commit, self._workspace, deadline) for key in fresh]
            return list(filter(None, problems))
        paths = self._source.paths
        is_committed = bool(paths) and not (repository and has_changes(repository, paths))
        if not self._source.is_in_files or not merged or is_committed:
            return []
        try:
            self._source.tick_on_disk(merged)
            self._stamp = self._source.stamp()
        except (OSError, UserError) as error:
            return [f"cannot tick {self._source.name}: {error}"]
        return []


def has_changes(repository: Git, paths: Sequence[str]) -> bool:
    """Whether the user has uncommitted changes in these files."""
    return repository.try_run("--literal-pathspecs", "diff", "--quiet", "HEAD", "--", *paths).code == 1


def differences(board: Board, reading: BacklogContent) -> list[BacklogEvent]:
    """Return the events that follow from an edited backlog."""
    happened: list[BacklogEvent] = []
    for task in reading.tasks:
        job = board.jobs.get(task.key)
        if job is not None:
            happened += _changes_of(task, job)
        elif not task.done:
            happened.append(TaskListed(task))
    listed = {task.key for task in reading.tasks}
    removed = [key for key, job in board.jobs.items() if key not in listed and job.state not in FINISHED_STATES]
    return [*happened, *(TaskWithdrawn(key, "it was removed from the list", by_list=True) for key in removed)]


def _changes_of(task: BacklogTask, job: Job) -> list[BacklogEvent]:
    if task.done:
        ticked = TaskWithdrawn(task.key, "it was ticked by a person", by_list=True)
        return [TaskListed(task), ticked] if job.state not in FINISHED_STATES else []
    if job.state == "withdrawn" and job.by_list:
        return [TaskListed(task), TaskQueued(task.key, "it is on the list again", forgiven=True)]
    if job.state == "merged" or _without_place(task) == _without_place(job.task):
        return []
    edited = [TaskQueued(task.key, "its text was edited", forgiven=True)] if job.state == "parked" else []
    return [TaskListed(task), *edited]


def _without_place(task: BacklogTask) -> BacklogTask:
    """Return the task without its position in the list."""
    return replace(task, place="", done=False)
