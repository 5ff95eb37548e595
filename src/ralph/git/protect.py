"""Protected files: copied when a run starts, compared after each turn, and restored if the agent changed them.

This works without git. The copies are outside the workspace, so that an agent that cleans up does not remove them. The
agent's versions of protected files are moved aside, so that nothing is lost.
"""

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from hashlib import sha256
from pathlib import Path
from re import Pattern

from msgspec import Struct, json

from ralph.core.file_classes import changes_how_tests_run
from ralph.errors import UNREADABLE, UserError
from ralph.files import Stamp, make_folder, open_given, read_file, replace_file, stamp
from ralph.git.index import CACHES, LIBRARIES, OWN, SKIPPED, display_path, files_below, is_run_data

RECENT_NS = 100_000_000  # a file that changed less than this ago may change again without a new time stamp


class ProtectedFile(Struct, frozen=True):
    """A protected file or link as it was when the run started."""

    path: bytes
    mode: int
    digest: str
    size: int


class Protected:
    """The files that match `globs`.

    The agent may add new files, unless it `refuses_new` or they change how other tests run. `store` is the folder of
    the copies, which are made when the run starts and used again when it is resumed. The agent's versions are moved to
    the folder `aside`. Reading large files ends with an error once `wants_end` returns True.
    """

    def __init__(
        self,
        root: Path,
        globs: Sequence[str],
        *,
        store: Path,
        aside: Path,
        refuses_new: bool = False,
        wants_end: Callable[[], bool] = lambda: False,
    ) -> None:
        self._root = os.fsencode(os.path.realpath(root))
        self._globs = [parse_glob(text) for text in globs]
        self._store, self._aside, self._refuses_new = store, aside, refuses_new
        self.aside = ""  # where the last `restore` moved the agent's versions
        self._wants_end = wants_end
        self._stamps: dict[bytes, Stamp] = {}
        self._kept: dict[bytes, ProtectedFile] = {}
        self._skipped: set[bytes] = set()  # folders of libraries and caches that were not entered

    def keep(self, again: bool = False) -> None:
        """Copy the files, unless the run has done so already; `again`: copy them as they are now."""
        try:
            data = None if again else read_file(self._store / "protected.json")
            files = self._copy_all() if data is None else json.decode(data, type=list[ProtectedFile])
        except FileNotFoundError:
            files = self._copy_all()
        except (OSError, *UNREADABLE) as error:
            raise UserError(f"the list of protected files in {self._store} cannot be read: {error}") from None
        self._kept = {file.path: file for file in files}

    @property
    def unmatched_patterns(self) -> tuple[str, ...]:
        """The patterns that match no file, perhaps because of a typing error."""
        paths = [os.fsdecode(path) for path in self._kept]
        wanted = [glob for glob in self._globs if not glob.is_exception]
        return tuple(glob.text for glob in wanted if not any(map(glob.matches, paths)))

    @property
    def unprotected_folders(self) -> tuple[str, ...]:
        """Folders of libraries and caches that match, but are not protected because no pattern names them."""
        skippable = {os.fsencode(name) for name in (LIBRARIES | CACHES) - {"__pycache__"}}
        met = {path.rstrip(b"/") for path in self._skipped if path.rstrip(b"/").rpartition(b"/")[2] in skippable}
        named = {os.fsencode(glob.start) for glob in self._globs}
        return tuple(sorted(display_path(path) for path in met - named if matches(self._globs, os.fsdecode(path))))

    @property
    def unprotected_targets(self) -> tuple[str, ...]:
        """Targets of protected links in the workspace that are not protected themselves."""
        links = (self._place(file.path) for file in self._kept.values() if stat.S_ISLNK(file.mode))
        targets = {os.path.relpath(os.path.realpath(place), self._root) for place in links}
        return tuple(sorted(display_path(path) for path in targets - self._kept.keys() if not path.startswith(b"..")))

    def covers(self, path: str) -> bool:
        return os.fsencode(path) in self._kept

    def restore(self) -> tuple[str, ...]:
        """Restore protected files, and remove new files that are refused; return the names of both."""
        differences = self._differences()
        try:
            if differences:
                self._move_aside(differences)
            for path in differences:
                if path in self._kept:
                    self._restore_file(self._kept[path])
        except OSError as error:
            raise UserError(
                f"cannot restore protected files: {error.filename!r}: {error.strerror}", "restore them by hand"
            ) from None
        return tuple(map(display_path, differences))

    def changes(self) -> tuple[str, ...]:
        """Return the names of the files that `restore` would restore or remove."""
        return tuple(map(display_path, self._differences()))

    def _differences(self) -> list[bytes]:
        present = self._guarded()
        same = {path for path, info in present.items() if path in self._kept and self._is_same(self._kept[path], info)}
        return sorted({*present, *self._kept} - same)

    def watch(self) -> Callable[[], tuple[str, ...]]:
        """Start watching the files; the returned function restores them and names those that changed.

        It compares time stamps, so it also notices a change that was undone: no program can set a file's change time.
        """
        before = {path: stamp(info) for path, info in self._guarded().items()}

        def changed() -> tuple[str, ...]:
            now = {path: stamp(info) for path, info in self._guarded().items()}
            paths = {path for path in {*before, *now} if before.get(path) != now.get(path)}
            if paths:
                self.restore()
            return tuple(map(display_path, sorted(paths)))

        return changed

    def _guarded(self) -> dict[bytes, os.stat_result]:
        """Return the existing files that are protected, or refused because they are new."""
        return {path: info for path, info in self._find() if path in self._kept or self._is_refused(path)}

    def _is_refused(self, path: bytes) -> bool:
        """Return whether a new file may not be added here."""
        if self._refuses_new or any(glob.names(os.fsdecode(path)) for glob in self._globs):
            return True
        folder, _, name = path.rpartition(b"/")
        if name == b"__init__.py":  # it runs before the tests next to it
            return any(path_kept.rpartition(b"/")[0] == folder for path_kept in self._kept)
        return changes_how_tests_run(os.fsdecode(path))

    def _find(self) -> Iterator[tuple[bytes, os.stat_result]]:
        """Yield every file that matches the patterns now. Folders behind links are not entered."""
        for start in sorted({os.fsencode(glob.start) for glob in self._globs if not glob.is_exception}):
            for path, info in self._walk(start):
                is_file = stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode)
                if is_file and not is_run_data(path) and matches(self._globs, os.fsdecode(path)):
                    yield path, info

    def _walk(self, start: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
        top = self._place(start)
        if os.path.realpath(os.path.dirname(top)) != os.path.dirname(top) and start:
            return
        try:
            info = os.lstat(top)
        except OSError:
            return
        if not stat.S_ISDIR(info.st_mode):
            yield start, info
            return
        is_named = any(os.fsdecode(part) in SKIPPED for part in start.split(b"/"))
        skipped: list[bytes] = []
        for path, below in files_below(top, OWN if is_named else SKIPPED, skipped):
            yield os.path.join(start, path), below
        self._skipped.update(os.path.join(start, path) for path in skipped)

    def _is_same(self, file: ProtectedFile, info: os.stat_result) -> bool:
        if self._stamps.get(file.path) == stamp(info):
            return True
        if file.mode != info.st_mode or file.size != info.st_size:
            return False
        if file.digest != self._digest(file.path, info):
            return False
        self._remember_stamp(file.path, info)
        return True

    def _remember_stamp(self, path: bytes, info: os.stat_result) -> None:
        """Remember a file's time stamp: while it stays the same, the file need not be read again."""
        if time.time_ns() - info.st_ctime_ns > RECENT_NS:
            self._stamps[path] = stamp(info)

    def _digest(self, path: bytes, info: os.stat_result) -> str:
        """Return a hash of the content, or of a link's target; "unreadable" if it cannot be read."""
        place, digest = self._place(path), sha256()
        try:
            if stat.S_ISLNK(info.st_mode):
                return sha256(os.readlink(place)).hexdigest()
            with open(open_given(place), "rb", buffering=0) as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
                    if self._wants_end():
                        raise UserError("reading the protected files was interrupted")
        except OSError:
            return "unreadable"
        return digest.hexdigest()

    def _copy_all(self) -> list[ProtectedFile]:
        folder = self._store / "files"
        try:
            make_folder(str(folder))
            files = [self._copy(path, info, folder) for path, info in self._find()]
            replace_file(self._store / "protected.json", json.encode(files))
        except OSError as error:
            raise UserError(
                f"cannot copy the protected file {error.filename!r}: {error.strerror}",
                "make it readable, or leave it out with --protect '!PATTERN'",
            ) from None
        return files

    def _copy(self, path: bytes, info: os.stat_result, folder: Path) -> ProtectedFile:
        digest = self._digest(path, info)
        copy = folder / digest
        if stat.S_ISLNK(info.st_mode):
            copy.write_bytes(os.readlink(self._place(path)))
        elif not copy.exists():
            shutil.copyfile(self._place(path), copy)
        self._remember_stamp(path, info)
        return ProtectedFile(path, info.st_mode, digest, info.st_size)

    def _restore_file(self, file: ProtectedFile) -> None:
        copy, place = self._store / "files" / file.digest, self._place(file.path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if stat.S_ISLNK(file.mode):
            os.symlink(read_file(copy), place)
            return
        # Not copy2: a new time makes build tools rebuild what they built from the agent's version.
        shutil.copyfile(copy, place)
        os.chmod(place, stat.S_IMODE(file.mode))

    def _move_aside(self, paths: list[bytes]) -> None:
        """Move aside whatever is at these paths. If a link or a file replaced a folder of a path, move that instead."""
        number = 1
        while (aside := self._aside / f"{number:03d}").exists():
            number += 1
        self.aside = str(aside)
        for path in paths:
            if obstacle := self._obstacle(path):
                target = aside / os.fsdecode(obstacle)
                make_folder(str(target.parent))
                shutil.move(os.fsdecode(self._place(obstacle)), target)

    def _obstacle(self, path: bytes) -> bytes:
        parts = path.split(b"/")
        for depth in range(1, len(parts) + 1):
            here = b"/".join(parts[:depth])
            place = self._place(here)
            is_folder = os.path.isdir(place) and not os.path.islink(place)
            if os.path.lexists(place) and not (is_folder and depth < len(parts)):
                return here
        return b""

    def _place(self, path: bytes) -> bytes:
        return os.path.join(self._root, path).rstrip(b"/") or b"/"


class Glob(Struct, frozen=True):
    """A pattern as in a `.gitignore`. Its matches are at or below `start`, the folders before its first wildcard.

    `parts` match the names in a path, one after the other; None stands for any number of folders.
    """

    text: str
    start: str
    parts: tuple[Pattern[str] | None, ...]
    is_exception: bool = False

    def matches(self, path: str) -> bool:
        """Return whether the pattern matches the path, or one of the folders that it is in."""
        reached = self._skip_folders({0})
        for name in path.split("/"):
            parts = [(at, self.parts[at]) for at in reached]
            reached = self._skip_folders({at for at, part in parts if part is None})
            reached |= self._skip_folders({at + 1 for at, part in parts if part and part.fullmatch(name)})
            if len(self.parts) in reached:
                return True
        return False

    def _skip_folders(self, reached: set[int]) -> set[int]:
        """Add what is reached if each None stands for no folder at all."""
        for at in sorted(reached):
            while at < len(self.parts) and self.parts[at] is None:
                at += 1
                reached.add(at)
        return reached

    def names(self, path: str) -> bool:
        """Return whether the pattern is exactly the name or the path of this file."""
        return not self.is_exception and self.text.lstrip("./") in (path, path.rpartition("/")[2])


def parse_glob(text: str) -> Glob:
    """Parse a pattern; a leading `!` makes it an exception."""
    is_exception = text.startswith("!")
    body = text.removeprefix("!").rstrip("/")
    if body.startswith("./"):
        body = body[1:]
    is_anchored = "/" in body
    body = body.lstrip("/")
    if not body or ".." in body.split("/"):
        raise UserError(f"{text!r} is not a pattern for files in the workspace", "write it like tests/** or *.lock")
    *folders, last = body.split("/") if is_anchored else ("**", body)
    parts = [None if name == "**" else _compile_name(name) for name in folders]
    parts.append(_compile_name(last))  # here `**` matches any name: a matched folder includes its files
    if any(part and "(?!)" in part.pattern for part in parts):  # a range such as `[z-a]` matches nothing
        raise UserError(f"{text!r} is a pattern that matches nothing", "check its brackets")
    names = body.split("/") if is_anchored else []
    plain = next((at for at, name in enumerate(names) if any(c in name for c in "*?[\\")), len(names))
    return Glob(text, "/".join(names[:plain]), tuple(parts), is_exception)


def matches(globs: Sequence[Glob], path: str) -> bool:
    """Return whether the last pattern that matches `path` is not an exception. A folder's files match with it."""
    for glob in reversed(globs):
        if glob.matches(path):
            return not glob.is_exception
    return False


def refused_changes(
    changed: Iterable[tuple[str, bool]], patterns: Sequence[str], *, refuses_new: bool = False
) -> tuple[str, ...]:
    """Return the changed files, relative to the workspace, that these patterns protect. Each comes with whether it is
    new: then it counts only if new files are refused, or if it may change how other tests run."""
    globs = [parse_glob(text) for text in patterns]
    return tuple(
        path
        for path, is_new in changed
        if matches(globs, path) and (not is_new or refuses_new or changes_how_tests_run(path))
    )


def _compile_name(glob: str) -> Pattern[str]:
    """Compile the pattern of one name. `fnmatch` knows neither `\\*`, for a plain star, nor `[^ab]`."""
    plain = re.sub(r"\\(.)", lambda match: f"[{match[1]}]" if match[1] in "*?[" else match[1], glob)
    return re.compile(translate(plain.replace("[^", "[!")))
