"""Did the agent touch what it must not touch? Protected files are copied when a run starts, compared after each turn,
and put back. What was put in their place is moved into the run's folder: nothing is lost. Works without git. The copies
are in the run's folder, for a run that is resumed, and once more where no agent can delete them."""

import os
import re
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from re import Pattern

from msgspec import Struct, json

from ralph.errors import UNREADABLE, UserError
from ralph.files import Stamp, make_folder, open_fresh, open_given, read_file, replace_file, stamp
from ralph.processes.spawning import c_call
from ralph.repository.index import CACHES, LIBRARIES, OWN, SKIPPED, files_below, is_run_data, shown

# A file changed so shortly before it was looked at may change once more without a trace in its times.
JUST_NOW_NS = 100_000_000


class ProtectedFile(Struct, frozen=True):
    """A protected file or link as it was at the start. `digest` names its content; one of another `size` is another
    file, and need not be read: it may be a hole of a terabyte."""

    path: bytes
    mode: int
    digest: str
    size: int | None = None


class Protected:
    """The files that match `globs`. `store` is a private folder; what it kept when the run began counts, however often
    the run is resumed. Who `wants_end` does not wait until large files are read."""

    def __init__(
        self, root: Path, globs: Sequence[str], store: Path, wants_end: Callable[[], bool] = lambda: False
    ) -> None:
        self._root = os.fsencode(os.path.realpath(root))
        self._globs = [parse_glob(text) for text in globs]
        self._store = store
        self._wants_end = wants_end
        self._stamps: dict[bytes, Stamp] = {}
        self._kept: dict[bytes, ProtectedFile] = {}
        self._passed: set[bytes] = set()  # folders that were not looked into

    def keep(self) -> None:
        """Takes copies of the files, unless the run has them already."""
        kept = self._recall()
        self._kept = self._keep() if kept is None else kept
        self._held = Held.open(self._store)
        for digest, size in {(one.digest, one.size) for one in self._kept.values()}:
            with suppress(OSError):
                self._held.add(digest, self._store / "files" / digest, size)

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The patterns that protect nothing yet: perhaps mistyped."""
        paths = [os.fsdecode(path) for path in self._kept]
        wanted = [glob for glob in self._globs if not glob.is_exception]
        return tuple(glob.text for glob in wanted if not any(map(glob.pattern.fullmatch, paths)))

    def covers(self, path: str) -> bool:
        return os.fsencode(path) in self._kept

    def touched(self) -> tuple[str, ...]:
        """The protected files that were changed or deleted, and new ones that would be protected."""
        return tuple(shown(path) for path in self._differences())

    def restore(self) -> tuple[str, ...]:
        """Puts back what was touched, and names it."""
        differences = self._differences()
        try:
            if differences:
                self._clear(differences)
            for path in differences:
                if path in self._kept:
                    self._put_back(self._kept[path])
        except OSError as error:
            raise UserError(
                f"cannot restore protected files: {error.filename!r}: {error.strerror}", "restore them by hand"
            ) from None
        self._drop_compiled()
        return tuple(map(shown, differences))

    def watch(self) -> Callable[[], tuple[str, ...]]:
        """Begins to look at the files. Asked at the end, it names those that are others now, or were in between: nobody
        can set the time of a change at will. They are put back. Nor can others take their place for a moment by that
        of their folder, of which they themselves bear no trace."""
        before = {path: stamp(seen) for path, seen in self._found()}
        ways = {os.path.dirname(path) for path in before}
        while above := {os.path.dirname(way) for way in ways} - ways:
            ways |= above
        moves = FolderMoves.watch({self._place(way): way + b"/" for way in ways})

        def moved() -> tuple[str, ...]:
            now = {path: stamp(seen) for path, seen in self._found()}
            paths = {path for path in {*before, *now} if before.get(path) != now.get(path)}.union(moves.seen())
            if paths:
                self.restore()
            return tuple(map(shown, sorted(paths)))

        return moved

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Folders of libraries and caches that the patterns match, and that are not protected unless they are named."""
        known = {os.fsencode(name) for name in (LIBRARIES | CACHES) - {"__pycache__"}}  # that one is dropped each time
        met = {path.rstrip(b"/") for path in self._passed if path.rstrip(b"/").rpartition(b"/")[2] in known}
        named = {os.fsencode(glob.start) for glob in self._globs}
        return tuple(sorted(shown(path) for path in met - named if matches(self._globs, os.fsdecode(path))))

    @property
    def led_to(self) -> tuple[str, ...]:
        """What protected links lead to in the workspace and no pattern matches: it may be changed all the same."""
        links = (self._place(one.path) for one in self._kept.values() if stat.S_ISLNK(one.mode))
        there = {os.path.relpath(os.path.realpath(place), self._root) for place in links}
        return tuple(sorted(shown(path) for path in there - self._kept.keys() if not path.startswith(b"..")))

    def _differences(self) -> list[bytes]:
        found = dict(self._found())
        same = {path for path, seen in found.items() if path in self._kept and self._is_same(self._kept[path], seen)}
        return sorted({*found, *self._kept} - same)

    def _found(self) -> Iterator[tuple[bytes, os.stat_result]]:
        """Every file that the patterns match now. Folders behind links are not entered."""
        for start in sorted({os.fsencode(glob.start) for glob in self._globs if not glob.is_exception}):
            for path, seen in self._below(start):
                is_file = stat.S_ISREG(seen.st_mode) or stat.S_ISLNK(seen.st_mode)
                if is_file and not is_run_data(path) and matches(self._globs, os.fsdecode(path)):
                    yield path, seen

    def _below(self, start: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
        top = self._place(start)
        if os.path.realpath(os.path.dirname(top)) != os.path.dirname(top) and start:
            return
        try:
            seen = os.lstat(top)
        except OSError:
            return
        if not stat.S_ISDIR(seen.st_mode):
            yield start, seen
            return
        is_named = any(os.fsdecode(part) in SKIPPED for part in start.split(b"/"))
        passed: list[bytes] = []
        for path, below in files_below(top, OWN if is_named else SKIPPED, passed):
            yield os.path.join(start, path), below
        self._passed.update(os.path.join(start, path) for path in passed)

    def _is_same(self, kept: ProtectedFile, seen: os.stat_result) -> bool:
        if self._stamps.get(kept.path) == stamp(seen):
            return True
        if kept.mode != seen.st_mode or kept.size not in (None, seen.st_size):
            return False
        if kept.digest != self._digest(kept.path, seen):
            return False
        self._trust(kept.path, seen)
        return True

    def _trust(self, path: bytes, seen: os.stat_result) -> None:
        """From now on its times tell whether the file was changed. Nobody can set its time of change at will."""
        if time.time_ns() - seen.st_ctime_ns > JUST_NOW_NS:
            self._stamps[path] = stamp(seen)

    def _digest(self, path: bytes, seen: os.stat_result) -> str:
        from hashlib import sha256

        place = self._place(path)
        try:
            if stat.S_ISLNK(seen.st_mode):
                return sha256(os.readlink(place)).hexdigest()
            return _digest(place, seen.st_size, self._wants_end)
        except OSError:
            return "unreadable"

    def _keep(self) -> dict[bytes, ProtectedFile]:
        folder = self._store / "files"
        try:
            self._store.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(exist_ok=True)
            kept = {path: self._copy(path, seen, folder) for path, seen in self._found()}
            replace_file(self._store / "protected.json", json.encode(list(kept.values())))
        except OSError as error:
            raise UserError(
                f"cannot keep a copy of the protected file {error.filename!r}: {error.strerror}",
                "make it readable, or leave it out with --protect '!PATTERN'",
            ) from None
        return kept

    def _recall(self) -> dict[bytes, ProtectedFile] | None:
        try:
            kept = json.decode(read_file(self._store / "protected.json"), type=list[ProtectedFile])
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            raise UserError(f"the list of protected files in {self._store} cannot be read: {error}") from None
        return {one.path: one for one in kept}

    def _copy(self, path: bytes, seen: os.stat_result, folder: Path) -> ProtectedFile:
        import shutil

        digest = self._digest(path, seen)
        copy = folder / digest
        if stat.S_ISLNK(seen.st_mode):
            copy.write_bytes(os.readlink(self._place(path)))
        elif not copy.exists():
            shutil.copyfile(self._place(path), copy)
        self._trust(path, seen)
        return ProtectedFile(path, seen.st_mode, digest, seen.st_size)

    def _put_back(self, kept: ProtectedFile) -> None:
        import shutil

        copy = self._store / "files" / kept.digest
        if not self._held.heal(kept.digest, copy):
            raise UserError(f"the saved copy of {shown(kept.path)} was changed", "restore the file by hand")
        place = self._place(kept.path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if stat.S_ISLNK(kept.mode):
            os.symlink(read_file(copy), place)
            return
        # A new time of change, so that nothing built from the agent's version passes for up to date.
        shutil.copyfile(copy, place)
        os.chmod(place, stat.S_IMODE(kept.mode))

    def _clear(self, paths: list[bytes]) -> None:
        """Moves aside whatever is at these places, or is no folder on the way to them."""
        import shutil

        number = 1
        while (aside := self._store / "aside" / f"{number:03d}").exists():
            number += 1
        for path in paths:
            found = self._occupied(path)
            if found:
                target = aside / os.fsdecode(found)
                make_folder(str(target.parent))
                shutil.move(os.fsdecode(self._place(found)), target)

    def _occupied(self, path: bytes) -> bytes:
        parts = path.split(b"/")
        for depth in range(1, len(parts) + 1):
            here = b"/".join(parts[:depth])
            place = self._place(here)
            is_folder = os.path.isdir(place) and not os.path.islink(place)
            if os.path.lexists(place) and not (is_folder and depth < len(parts)):
                return here
        return b""

    def _drop_compiled(self) -> None:
        """Python may run a compiled copy instead of the file: one that the agent forged must not count."""
        modules = {path.removesuffix(b".py") for path in self._kept if path.endswith(b".py")}
        for folder in {os.path.dirname(module) for module in modules}:
            cache = os.path.join(self._place(folder), b"__pycache__")
            with suppress(OSError):
                for name in os.listdir(cache):
                    if os.path.join(folder, name.partition(b".")[0]) in modules:
                        os.unlink(os.path.join(cache, name))

    def _place(self, path: bytes) -> bytes:
        return os.path.join(self._root, path).rstrip(b"/") or b"/"


class FolderMoves:
    """Folders that are moved meanwhile, be it for a moment. Only Linux tells of it, and not where too many are watched
    already."""

    def __init__(self, file: int, watched: Mapping[int, bytes]) -> None:
        self._file, self._watched = file, watched

    @classmethod
    def watch(cls, folders: Mapping[bytes, bytes]) -> "FolderMoves":
        """Begins to look at these places, by what they are called."""
        file = c_call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC) if sys.platform == "linux" else -1
        asked = folders.items() if file >= 0 else ()
        return cls(file, {c_call("inotify_add_watch", file, place, _MOVED): name for place, name in asked})

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._file)

    def seen(self) -> set[bytes]:
        said = b""
        with suppress(OSError):
            while True:
                said += os.read(self._file, 1 << 16)
        return {self._watched[watch] for watch, mask, _, _ in struct.iter_unpack("iIII", said) if mask & _MOVED}


_MOVED = 0x800  # IN_MOVE_SELF


class Held:
    """Copies in a file that has no name: whoever deletes or changes the folder does not reach them."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._spans: dict[str, tuple[int, int]] = {}
        self._end = 0

    @classmethod
    def open(cls, folder: Path) -> "Held":
        path = folder / f"held-{os.getpid()}"
        with suppress(FileNotFoundError):
            path.unlink()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        path.unlink()
        return cls(file)

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self._file)

    def add(self, digest: str, copy: Path, size: int | None) -> None:
        """Takes the copy in, if it is what it was."""
        if _digest(copy, size) != digest:
            return
        begin = self._end
        with open(open_given(copy), "rb", buffering=0) as source:
            while chunk := source.read(1 << 20):
                self._end += os.pwrite(self._file, chunk, self._end)
        self._spans[digest] = begin, self._end

    def heal(self, digest: str, copy: Path) -> bool:
        """Makes the copy what it was, where it is not. Whether it is now."""
        begin, end = self._spans.get(digest, (0, -1))
        with suppress(OSError):
            if _digest(copy, end - begin if end >= begin else None) == digest:
                return True
        if end < begin:
            return False
        make_folder(str(copy.parent))
        with open(open_fresh(copy), "wb") as target:
            while chunk := os.pread(self._file, min(end - begin, 1 << 20), begin):
                begin += target.write(chunk)
        return _digest(copy) == digest


def _digest(place: bytes | Path, size: int | None = None, wants_end: Callable[[], bool] = lambda: False) -> str:
    """What names the content of a file that has this `size`, or had it a moment ago; one of another is not read."""
    from hashlib import sha256

    digest = sha256()
    with open(open_given(place), "rb", buffering=0) as file:
        if size not in (None, os.fstat(file.fileno()).st_size):
            return "another size"
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            if wants_end():
                raise UserError("the protected files were not read to the end")
    return digest.hexdigest()


class Glob(Struct, frozen=True):
    """One pattern. `start` is the part before its first wildcard: all that it matches is there, or below."""

    text: str
    start: str
    pattern: Pattern[str]
    is_exception: bool = False


def parse_glob(text: str) -> Glob:
    is_exception = text.startswith("!")
    body = text.removeprefix("!").rstrip("/")
    if body.startswith("./"):
        body = body[1:]
    is_anchored = "/" in body
    body = body.lstrip("/")
    if not body or ".." in body.split("/"):
        raise UserError(f"{text!r} is no pattern for files in the workspace", "write it like tests/** or *.lock")
    anywhere = "" if is_anchored else "(?:.*/)?"
    try:
        pattern = re.compile(f"{anywhere}{_regex(body)}(?:/.*)?", re.DOTALL)
    except re.error as error:
        raise UserError(f"cannot read the pattern {text!r}: {error}", "check its brackets") from None
    return Glob(text, _start(body) if is_anchored else "", pattern, is_exception)


def matches(globs: Sequence[Glob], path: str) -> bool:
    """Whether the last pattern that speaks of `path` is not an exception. Below a matched folder everything matches."""
    for glob in reversed(globs):
        if glob.pattern.fullmatch(path):
            return not glob.is_exception
    return False


def _start(body: str) -> str:
    parts = body.split("/")
    plain = next((i for i, part in enumerate(parts) if any(c in part for c in "*?[\\")), len(parts))
    return "/".join(parts[:plain])


def _regex(body: str) -> str:
    """Each wildcard but the last takes as little as it can, and is never tried again: what it leaves is the most that
    there can be for the rest. So no name takes longer than it is long, whatever an agent calls its files."""
    token = (
        r"(?P<deep>(?<![^/])\*\*/)|(?P<all>(?<![^/])\*\*\Z)|(?P<some>\*+)|(?P<one>\?)"
        r"|\[(?P<not>[!^]?)(?P<of>\]?[^\]]*)\]|\\(?P<plain>.)|."
    )
    fixed = {"deep": _DEEP, "all": ".+", "some": _SOME, "one": "[^/]"}

    def translated(found: "re.Match[str]") -> str:
        if found["of"] is not None:
            chosen = re.sub(r"[\\\[&~|]", r"\\\g<0>", found["of"]).replace("--", r"-\-")
            return f"(?!/)[{'^' if found['not'] else ''}{chosen}]"
        return fixed.get(found.lastgroup or "") or re.escape(found["plain"] or found[0])

    first, *deeper = _split([translated(one) for one in re.finditer(token, body, re.DOTALL)], _DEEP)
    found = [f"(?:.*?/)??{_folders(part)}" for part in deeper]
    found[-1:] = [f"{last}{_END}" for last in found[-1:]]
    return _folders(first) + "".join(f"(?>{part})" for part in found)


_DEEP, _SOME = "**/", "*"  # what stands for any folders, and for any part of a name
_END = r"(?=/|\Z)"


def _folders(parts: list[str]) -> str:
    """The expression for folders, and perhaps a file, one in the other."""
    names = []
    for name in _split(parts, "/"):
        first, *rest = map("".join, _split(name, _SOME))
        early = "".join(f"(?>[^/]*?{part})" for part in rest[:-1])
        names.append(first + early + (f"[^/]*{rest[-1]}" if rest else ""))
    return "/".join(names)


def _split(parts: list[str], mark: str) -> list[list[str]]:
    split: list[list[str]] = [[]]
    for part in parts:
        if part == mark:
            split.append([])
        else:
            split[-1].append(part)
    return split
