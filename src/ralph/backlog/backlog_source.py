"""Where is a backlog kept, and in which format? A file, a folder, or another program's keeping."""

import errno
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from ralph.backlog import backlogmd, beads, boxes, github, jsontext, prd, taskmaster
from ralph.backlog.lists import Format, ListContent, decoded
from ralph.errors import UserError
from ralph.files import read_given, replace_file

PROGRAMS: dict[str, ModuleType] = {"github": github, "beads": beads}
FORMATS: dict[str, Format] = {"boxes": boxes, "prd": prd, "taskmaster": taskmaster, "backlogmd": backlogmd}
INSIDE = ("tasks.md", "TASKS.md", "prd.json", "tasks/tasks.json", "PLAN.md")
"""What is looked for in a folder: spec-kit's and OpenSpec's tasks, a list of stories, task-master's tasks."""
LARGEST = 16 << 20


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

    def command(self) -> tuple[str, ...]:
        """What its keeper is asked."""
        words: tuple[str, ...] = PROGRAMS[self.program].command(self.wanted)
        return words

    def understood(self, said: bytes) -> ListContent:
        """What its keeper answered."""
        reading: ListContent = PROGRAMS[self.program].read(said)
        return reading

    def closing(self, key: str) -> str:
        """What a landing says of an item, so that its keeper closes it."""
        return github.closing(key) if self.program == "github" else ""

    def read(self) -> ListContent:
        """What its files say now."""
        return self.read_from(self._contents())

    def read_from(self, files: Mapping[str, bytes]) -> ListContent:
        """What they say as they are at some commit."""
        return FORMATS[self.format].read({name: data for name, data in files.items() if self._is_part(name)})

    def ticked(self, files: Mapping[str, bytes], keys: Collection[str]) -> dict[str, bytes]:
        """Those of the files, as they are at some commit, that change when these items are done."""
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
        source = BacklogSource(word=word, name=word, program=program, wanted=wanted)
        source.command()
        return source
    here, there = Path(word).absolute(), workspace / word
    place = there if there.exists() and not here.exists() else here
    if not place.exists():
        raise UserError(f"no such list: {word}", "name a file or folder with tasks, github: or beads:")
    if place.is_dir():
        place = next(_inside(place), place)
    place = Path(os.path.realpath(place))
    name = os.path.relpath(place, root) if root and place.is_relative_to(root) else str(place)
    format_ = "backlogmd" if place.is_dir() else _format_of(place)
    return BacklogSource(
        word=word, name=name, format=format_, place=str(place), paths=(name,) if not os.path.isabs(name) else ()
    )


def _inside(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in INSIDE if (folder / name).is_file())
    if not (folder / "tasks").is_dir():
        raise UserError(
            f"{folder} holds no list that ralph knows", "a folder has tasks.md, prd.json, or tasks/ with a file a task"
        )


def _format_of(path: Path) -> str:
    if path.suffix.lower() != ".json":
        return "boxes"
    document = jsontext.parsed(decoded(_bytes_of(str(path))), str(path))
    return "taskmaster" if taskmaster.is_one(document) else "prd"
