"""What does a tree become when a few files change? Git reads the files; only the folders around them are written anew.

The other way, `update-index` and `write-tree`, reads and writes the index of the whole repository twice: with 10,000
files that takes as long as most of a `git status`, however little has changed.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Mapping

from ralph.repository.git import STORING, GitError, Repository
from ralph.repository.objects import write

# Modes, as `git status` tells them.
GONE, UNKNOWN, FILE, EXECUTABLE = b"000000", b"", b"100644", b"100755"
_FOLDER = b"40000"

# To have git read one small file, or so much of a big one, is one piece of work. The index costs about so many of them.
_PIECE = 10_000
_WORTH = 300

Leaf = tuple[bytes, bytes]  # mode, and name of the object
Folder = dict[bytes, Leaf]


class _ForTheIndex(Exception):
    """Not a plain change of a plain file."""


class Grafts:
    """Trees that differ little from one that is in the index."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._base = ""
        self._folders: dict[bytes, Folder] = {}  # those of the base, as far as they were needed
        self._last: dict[bytes, Leaf | None] = {}
        self._idle = 0  # work spent on files that had not changed since the last time

    def tree(self, base: str, changes: Mapping[bytes, bytes]) -> str:
        """The tree `base` with these files as they are in the workspace now; nothing where that is for the index: what
        is not a plain file, or too much."""
        if base != self._base:
            self._base, self._folders, self._last, self._idle = base, {}, {}, 0
        if max(len(changes), self._idle) > _WORTH:
            return ""
        try:
            work = {path: self._work(path, mode) for path, mode in changes.items()}
            known = (path for path, mode in changes.items() if mode not in (GONE, UNKNOWN))
            if sum(work.values()) > _WORTH or any(map(self._has_foreign_lines, known)):
                return ""
            leaves = self._leaves(changes)
            self._read(leaves)
            tree = self._grafted(b"", leaves)
        except (_ForTheIndex, GitError):
            return ""
        self._idle += sum(work[path] for path, leaf in leaves.items() if leaf and self._last.get(path) == leaf)
        self._last = leaves
        return tree or write(self._repository, "tree", b"", base)

    def with_leaves(self, base: str, leaves: Mapping[bytes, Leaf | None]) -> str:
        """The tree `base` with these files in it, or without them, whatever the workspace holds."""
        if base != self._base:
            self._base, self._folders, self._last, self._idle = base, {}, {}, 0
        self._read(leaves)
        return self._grafted(b"", leaves) or write(self._repository, "tree", b"", base)

    def _work(self, path: bytes, mode: bytes) -> int:
        """How much it is to have git read this file."""
        if mode == GONE:
            return 0
        if mode not in (UNKNOWN, FILE, EXECUTABLE) or not _fits_a_line(path):
            raise _ForTheIndex
        try:
            seen = os.lstat(self._place(path))
        except OSError:
            raise _ForTheIndex from None
        # Whether git is to believe that a new file can be executed is a setting of the repository.
        if not stat.S_ISREG(seen.st_mode) or (mode == UNKNOWN and seen.st_mode & 0o111):
            raise _ForTheIndex
        return 1 + seen.st_size // _PIECE

    def _has_foreign_lines(self, path: bytes) -> bool:
        """Whether lines end with CR LF: what git makes of them can depend on the version in the index."""
        try:
            with open(self._place(path), "rb") as file:
                return b"\r\n" in file.read()
        except OSError:
            return False  # git will say what is wrong

    def _place(self, path: bytes) -> bytes:
        return os.path.join(os.fsencode(self._repository.root), path)

    def _leaves(self, changes: Mapping[bytes, bytes]) -> dict[bytes, Leaf | None]:
        """Has git take the files into its store, with the filters and line ends that the repository asks for."""
        paths = [path for path, mode in changes.items() if mode != GONE]
        words = ("hash-object", "-w", "--stdin-paths")
        names = self._repository.git(*words, stdin=b"\n".join([*paths, b""]), env=STORING).split() if paths else []
        found: dict[bytes, Leaf | None] = dict.fromkeys(changes)
        for path, name in zip(paths, names, strict=True):
            found[path] = (changes[path] or FILE, bytes.fromhex(name.decode()))
        return found

    def _read(self, paths: Iterable[bytes]) -> None:
        """Asks git for the folders on the way to these files, where they are not yet known."""
        unknown = sorted({folder for path in paths for folder in folders_to(path)} - {*self._folders})
        if not unknown:
            return
        if not all(map(_fits_a_line, unknown)):
            raise _ForTheIndex
        asked = b"".join(b"%b:%b\n" % (self._base.encode(), folder) for folder in unknown)
        output = self._repository.git("cat-file", "--batch", stdin=asked)
        at = 0
        for folder in unknown:
            end = output.index(b"\n", at)
            head = output[at:end].split(b" ")
            is_missing = not head[-1].isdigit()
            if is_missing and not folder:
                raise _ForTheIndex  # git has lost all of it
            self._folders[folder], at = {}, end + 1
            if is_missing:
                continue
            size = int(head[-1])
            if head[-2] == b"tree":
                self._folders[folder] = _parsed(output[at : at + size], len(self._base) // 2)
            at += size + 1

    def _grafted(self, folder: bytes, changes: Mapping[bytes, Leaf | None]) -> str:
        """The folder with the changes below it; nothing if it is empty then."""
        entries = dict(self._folders[folder])
        below: dict[bytes, dict[bytes, Leaf | None]] = {}
        here: dict[bytes, Leaf] = {}
        for path, leaf in changes.items():
            name, slash, rest = path.partition(b"/")
            if slash:
                below.setdefault(name, {})[rest] = leaf
            elif leaf:
                here[name] = leaf
            else:
                entries.pop(name, None)
        for name, inner in below.items():
            place = folder + b"/" + name if folder else name
            known = entries.pop(name, None)
            if known and known[0] == _FOLDER and not self._folders[place]:
                raise _ForTheIndex  # git has lost it
            if tree := self._grafted(place, inner):
                entries[name] = (_FOLDER, bytes.fromhex(tree))
        entries |= here
        return write(self._repository, "tree", _content(entries), self._base) if entries else ""


def folders_to(path: bytes) -> Iterator[bytes]:
    """The folders that a file is in, from the top."""
    yield b""
    at = path.find(b"/")
    while at > 0:
        yield path[:at]
        at = path.find(b"/", at + 1)


def _fits_a_line(path: bytes) -> bool:
    """Whether git takes this path as it is where it reads one from each line: it knows quotes, and lines of DOS."""
    return b"\n" not in path and not path.endswith(b"\r") and not path.startswith(b'"')


def _parsed(content: bytes, length: int) -> Folder:
    entries: Folder = {}
    at = 0
    while at < len(content):
        end = content.index(b"\0", at)
        mode, _, name = content[at:end].partition(b" ")
        at = end + 1 + length
        entries[name] = (mode, content[end + 1 : at])
    return entries


def _content(entries: Folder) -> bytes:
    """In the order that git wants: a folder as if its name ended with a slash."""
    in_order = sorted(entries.items(), key=lambda entry: entry[0] + b"/" if entry[1][0] == _FOLDER else entry[0])
    return b"".join(b"%b %b\0%b" % (mode, name, oid) for name, (mode, oid) in in_order)
