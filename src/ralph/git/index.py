"""The private index: turns the workspace, new files included, into one git tree.

The user's index, branch and stash are not touched. The objects go to the repository's own store, where a checkpoint
keeps them; garbage collection removes the others.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache

from msgspec import Struct

from ralph.core.secrets import Redactor, secret_values
from ralph.files import add_to_file, new_hash, read_given, temporary_folder, write_file
from ralph.git.client import Git, GitError, git_error
from ralph.git.look import PrivateGitFolder
from ralph.git.nested import GITLINK, files_in, without_submodules
from ralph.store.folder import cannot_write

BIG_FILE = 50_000_000  # bytes; larger new files are not saved
MAX_NEW_FILES = 1_000_000_000  # bytes of new files that are saved, all together
MAX_UNREADABLE = 20  # files
REFRESH_INTERVAL = 30.0  # seconds; `git status` writes what it learned to the index at most this often
NO_COMMIT = "0" * 40
ADDED = "added"  # file in the private folder: trees of the user's index, whose files have been through their filters
MAX_INDEX = 1 << 30  # bytes; the index of a million files has a tenth of it
# File modes as `git status` prints them; the last two are ours.
GONE, UNKNOWN, UNMERGED = b"000000", b"", b"several"

# Files that ralph itself writes while it runs. Never part of a tree, even if they were committed once.
RUN_DATA = (b"runs/", b"progress.md", b"lock", b"guardrail_", b"prompt_")

STATUS = (
    "-c", "core.preloadIndex=true",
    "-c", "core.untrackedCache=true",
    "-c", "status.showUntrackedFiles=all",
    "status", "--porcelain=v2", "-z",
    "--untracked-files=all", "--no-renames", "--ignore-submodules=dirty",
)  # fmt: skip

INTERRUPT_INTERVAL = 10_000  # file names between two checks for an interruption


class GitStatus(Struct):
    """What `git status` says against the private index: files by their modes now, and nested repositories.

    `taken` are new files that the index already has as they are.
    """

    head: str = ""
    changed: dict[bytes, bytes] = {}
    new: dict[bytes, bytes] = {}
    taken: set[bytes] = set()
    nested: list[bytes] = []


class PrivateIndex:
    """A copy of the user's index that follows the working tree; copied, so that git need not read every file again."""

    def __init__(self, git: Git, folder: str) -> None:
        self.git = git
        self.left_out: tuple[str, ...] = ()
        self.nested: tuple[str, ...] = ()  # nested repositories that the user had, of which only the commit is known
        self.new_nested: list[bytes] = []  # those that the run made: their files are in the tree
        self._path = os.path.join(os.path.abspath(folder), "index")
        self._env = {"GIT_INDEX_FILE": self._path}
        self._tree = ""  # the tree of what is in the index
        self._look = PrivateGitFolder(git, os.path.abspath(folder))
        self._submodules: list[bytes] = []
        self._options: tuple[str, ...] = ()
        self._refreshed_at = -REFRESH_INTERVAL
        self._sizes: dict[bytes, int] = {}  # of the new files in the latest tree

    def begin(self) -> None:
        """Start from the user's index, and from the repository's settings of the moment when the run began."""
        self._look.open()
        self._copy_users_index()
        with suppress(GitError):  # unmerged files have no tree
            tree = self.run("write-tree", "--missing-ok")
            add_to_file(f"{self._look.folder}/{ADDED}", tree)

    def added_objects(self, paths: Sequence[bytes]) -> set[tuple[bytes, bytes]]:
        """Return path and object of those of the files that the user's index had at a `begin` of this run."""
        trees = {*read_given(f"{self._look.folder}/{ADDED}", MAX_INDEX).decode().split()}
        names = [os.fsdecode(path) for path in paths]
        args = ("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree")
        rows = [row for tree in trees for row in self.git.try_run(*args, tree, "--", *names).out.split(b"\0") if row]
        return {(path, about.split()[2]) for about, _, path in (row.partition(b"\t") for row in rows)}

    def tree(self, whole: bool = False) -> str:
        """Return a fingerprint `HEAD:tree[:rest]` that changes with HEAD and with any file's content, mode or name.

        Big new files are only read with `whole`, unreadable ones never; `left_out` names them. Like nested
        repositories, they count by size and time.
        """
        if not os.path.isfile(self._path) or os.path.islink(self._path):
            self.begin()
        if whole:  # a file that was rewritten unchanged must be known as such before git overwrites it
            self._refreshed_at = -REFRESH_INTERVAL
        seen = self._status()
        self._enter_new_nested(seen)
        kept = seen.changed | (seen.new if whole else self._fitting(seen))
        tree, unreadable = self._add(kept)
        left_out = sorted({*seen.new} - {*kept} | {*unreadable})
        self.left_out = tuple(display_path(path) for path in left_out)
        self.nested = tuple(display_path(path) for path in seen.nested)
        rest = self._digest(left_out, seen.nested)
        return f"{seen.head or NO_COMMIT}:{tree}" + (f":{rest}" if rest else "")

    @property
    def unsaved(self) -> tuple[str, ...]:
        """What exists and is not in the latest tree."""
        return (*self.left_out, *self.nested)

    def take(self, paths: list[bytes]) -> None:
        """Add these files, even if git ignores them."""
        if paths and (unreadable := self._update(paths)):
            raise GitError(f"git cannot save {display_path(unreadable[0])}", "move it away first")
        self._tree = ""

    def run(self, *args: str, stdin: bytes = b"", head: str = "") -> bytes:
        """Run git with this index, and nothing of the repository that could start a program."""
        return self._look.at(head).run(*self._options, *args, stdin=stdin, env=self._env)

    def check_out(self, now: str, target: str) -> None:
        """Turn the files of the tree `now` into those of the tree `target`, byte for byte except line ends."""
        self._make_younger()
        self.run("read-tree", "--no-sparse-checkout", "-m", "-u", now, target)
        self._tree = target

    def smudge(self, paths: Sequence[bytes]) -> None:
        """Write these files again, through the user's filters: what the tree has of them went through those before."""
        for path in paths:
            os.utime(self._place(path), (1, 1))  # or git takes them for up to date
        self.git.run("checkout-index", "-f", "-u", "-z", "--stdin", stdin=b"\0".join([*paths, b""]), env=self._env)
        self._make_younger()

    def _make_younger(self) -> None:
        """Have git trust the index: it compares entries as young as that by content, which a filter changes."""
        soon = time.time() + 2  # some gits compare whole seconds
        os.utime(self._path, (soon, soon))

    def _copy_users_index(self) -> None:
        self._tree = ""
        try:
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}.lock")  # from a killed git; only ralph writes this index
            try:
                self._copy_index_file()
                self._prepare()
            except (FileNotFoundError, GitError):  # there is none, or it is split or broken: git reads all files
                with suppress(FileNotFoundError):
                    os.unlink(self._path)
                self.run("read-tree", self.git.resolve("HEAD") or "--empty")
                self._prepare()
        except OSError as error:
            raise cannot_write(self._path, error) from None

    def _copy_index_file(self) -> None:
        source = os.path.join(self.git.git_dir, "index")
        times = os.stat(source)
        try:
            content = read_given(source, MAX_INDEX)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise
            raise GitError(f"{source} is not an index: {error.strerror}", "remove it: git makes a new one") from None
        write_file(self._path, content)
        # Git trusts an entry that is older than its index: a younger copy would hide edits made in the same moment.
        os.utime(self._path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _prepare(self) -> None:
        """Drop ralph's run data from the copy, find submodules, and clear flags that hide changes.

        Files marked assume-unchanged can change like any other, and must not get lost.
        """
        rows = [row.partition(b"\t") for row in self.run("ls-files", "-v", "--stage", "-z").split(b"\0")[:-1]]
        if any(about[:1] in b"Ss" for about, _, _ in rows):
            self._options = ("-c", "core.sparseCheckout=true")  # leave out files that a sparse checkout does not have
        self._submodules = [path for about, _, path in rows if about[2:].startswith(GITLINK)]
        if data := [path for _, _, path in rows if is_run_data(path)]:
            self._change_entries("--force-remove", data)
        if assumed := [path for about, _, path in rows if about[:1].islower() and not is_run_data(path)]:
            self._change_entries("--no-assume-unchanged", assumed)

    def _change_entries(self, option: str, paths: Sequence[bytes]) -> None:
        self.run("update-index", option, "-z", "--stdin", stdin=b"\0".join([*paths, b""]))

    def _status(self) -> GitStatus:
        now = time.monotonic()
        is_fresh = now - self._refreshed_at < REFRESH_INTERVAL
        if not is_fresh:
            self._refreshed_at = now
        lock = ("--no-optional-locks",) if is_fresh else ()
        scope = ("--", *self.git.scope) if self.git.scope else ()
        head = self.git.resolve("HEAD")
        seen = parse_status(self.run(*lock, *STATUS, *scope, head=head), self.git.time_left)
        seen.head = head
        seen.nested = sorted({*seen.nested, *self._submodules})
        return seen

    def _enter_new_nested(self, seen: GitStatus) -> None:
        """Count the files of nested repositories that the user did not have when the run began as new files."""
        path = f"{self._look.folder}/nested"
        if not os.path.exists(path):
            write_file(path, b"\0".join(seen.nested))
        had = {*read_given(path, MAX_INDEX).split(b"\0")}
        folders = [folder.rstrip(b"/") for folder in seen.nested if folder.endswith(b"/") and folder not in had]
        look = self._look.at(seen.head)
        for folder in without_submodules(look, folders) if folders else ():
            if files := [file for files in files_in(look, folder) for file in files]:
                seen.nested.remove(folder + b"/")
                seen.new |= dict.fromkeys(files, UNKNOWN)
                if folder not in self.new_nested:
                    self.new_nested.append(folder)

    def _add(self, changes: dict[bytes, bytes]) -> tuple[str, list[bytes]]:
        """Return the tree with these changes, and the files that git cannot read."""
        # Files that are gone because a link replaced their folder go with the folder: git refuses to look behind it.
        paths = [path for path, mode in changes.items() if mode != GONE or not changes.keys() & folders_to(path)]
        unreadable = self._update(paths) if paths else []
        if changes or not self._tree:
            self._tree = self.run("write-tree", "--missing-ok").decode().strip()
        return self._tree, unreadable

    def _fitting(self, seen: GitStatus) -> dict[bytes, bytes]:
        """Return the new files that fit into MAX_NEW_FILES. Those in the latest tree come first, or a tree would
        change without any file changing."""
        sizes = {path: size for path, size in self._sizes.items() if path in seen.taken}
        room = MAX_NEW_FILES - sum(sizes.values())
        for path in interruptible(sorted(seen.new, key=lambda path: path not in self._sizes), self.git.time_left):
            size = self._size(path)
            if size <= min(BIG_FILE, room):
                room -= size
                sizes[path] = size
        self._sizes = sizes
        return {path: mode for path, mode in seen.new.items() if path in sizes}

    def _size(self, path: bytes) -> int:
        try:
            return os.lstat(self._place(path)).st_size
        except OSError:
            return 0  # git will say what is wrong

    def _update(self, paths: list[bytes]) -> list[bytes]:
        """Bring the index up to date with these files; return those that git cannot read."""
        self._refreshed_at = time.monotonic()
        args = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        unreadable: list[bytes] = []
        batches = [paths]
        while batches:
            batch = batches.pop()
            result = self._look.at().try_run(*self._options, *args, stdin=b"\0".join(batch) + b"\0", env=self._env)
            if result.code == 0:
                continue
            if len(batch) > 1:  # one bad file spoils the whole call: find it by halves
                batches += [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
                continue
            unreadable += batch
            if len(unreadable) > MAX_UNREADABLE:
                raise git_error(args, result, "git cannot save the workspace")
        return unreadable

    def _digest(self, left_out: list[bytes], nested: list[bytes]) -> str:
        """Return a hash of size, time and mode of what is not in the tree; empty if everything is."""
        if not left_out and not nested:
            return ""
        digest = new_hash(size=20)
        for path in left_out:
            with suppress(FileNotFoundError):
                seen = os.lstat(self._place(path))
                digest.update(b"%b\0%d %d %o\n" % (path, seen.st_size, seen.st_mtime_ns, seen.st_mode))
        for path in nested:
            digest.update(b"%b\0%b\n" % (path, walk_fingerprint(os.fsdecode(self._place(path))).encode()))
        return digest.hexdigest()

    def _place(self, path: bytes) -> bytes:
        return os.path.join(os.fsencode(self.git.root), path)


def parse_status(output: bytes, time_left: Callable[[], float] = lambda: 1.0) -> GitStatus:
    """Return the files that differ from the index, from the output of `git status --porcelain=v2 -z`."""
    seen = GitStatus()
    for line in interruptible(output.split(b"\0"), time_left):
        match line[:2]:
            case b"? " if line.endswith(b"/"):
                seen.nested.append(line[2:])
            case b"? " if b"/.ralph/" not in b"/" + line[2:]:
                seen.new[line[2:]] = UNKNOWN
            case b"u ":
                seen.changed[line.split(b" ", 10)[10]] = UNMERGED
            case b"1 ":
                _sort_changed(line, seen)
    return seen


def interruptible(items: Iterable[bytes], time_left: Callable[[], float]) -> Iterator[bytes]:
    """Iterate, but raise GitError if the run must end; checked every INTERRUPT_INTERVAL items."""
    for number, item in enumerate(items):
        if number % INTERRUPT_INTERVAL == 0 and time_left() <= 0:
            raise GitError("the look at the workspace was cut off")
        yield item


def _sort_changed(line: bytes, seen: GitStatus) -> None:
    _, state, submodule, in_head, _, mode, _, _, path = line.split(b" ", 8)
    if state == b"A.":
        seen.taken.add(path)
    if state[1:] == b"." or is_run_data(path):
        return
    if submodule[:1] == b"S" and submodule[2:] != b"..":
        seen.nested.append(path)
    if submodule[:2] == b"S." and state[1:] == b"M":
        return
    # A file that HEAD does not have was added as a new one, and may have grown too big since.
    (seen.new if in_head == GONE and mode != GONE else seen.changed)[path] = mode


def folders_to(path: bytes) -> set[bytes]:
    """Return the folders that a file is in."""
    parts = path.split(b"/")
    return {b"/".join(parts[:depth]) for depth in range(1, len(parts))}


def is_run_data(path: bytes) -> bool:
    """Whether ralph wrote this file while it ran."""
    _, inside, name = (b"/" + path).partition(b"/.ralph/")
    return bool(inside) and name.startswith(RUN_DATA)


def tree_of(fingerprint: str) -> str:
    """Return the git tree in a fingerprint; any other name of a tree is returned as it is."""
    return fingerprint.split(":")[1] if ":" in fingerprint else fingerprint


def head_of(fingerprint: str) -> str:
    """Return the commit that was checked out; empty before the first one."""
    head = fingerprint.split(":")[0] if ":" in fingerprint else ""
    return "" if head == NO_COMMIT else head


def changed_at(path: bytes) -> float:
    """Return when a file, or its name, last changed, by the kernel's clock; 0 if there is none."""
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0


def display_path(path: bytes) -> str:
    """Return a path as printable text, without any secret that is part of it."""
    return _redactor()(path).decode("utf-8", "backslashreplace")


@cache
def _redactor() -> Redactor:
    return Redactor(secret_values(os.environ))


CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
LIBRARIES = frozenset({"node_modules", ".venv", "venv", ".tox", ".nox"})
OWN = frozenset({".git", ".hg", ".jj", ".svn", ".ralph"})
SKIPPED = CACHES | LIBRARIES | OWN
MAX_WALKED = 200_000


def walk_fingerprint(root: str | os.PathLike[str]) -> str:
    """Return a digest of path, size, time of change and mode of every file below `root`.

    It misses edits that keep size and time, the folders `SKIPPED`, unreadable folders, what links lead to, and
    everything after the first `MAX_WALKED` files. A new time alone counts as a change.
    """
    digest = new_hash(size=20)
    for count, (path, seen) in enumerate(files_below(os.fsencode(root))):
        if count == MAX_WALKED:
            break
        digest.update(b"%b\0%d %d %o\n" % (path, seen.st_size, seen.st_mtime_ns, seen.st_mode))
    return digest.hexdigest()


def files_below(
    top: bytes, skipped: frozenset[str] = SKIPPED, passed: list[bytes] | None = None
) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield every file and link below `top` by its path, in a fixed order; append skipped folders to `passed`."""
    names = {os.fsencode(name) for name in skipped}
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        for entry in _entries(os.path.join(top, folder)):
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            path = folder + entry.name
            if not stat.S_ISDIR(seen.st_mode):
                yield path, seen
            elif entry.name not in names:
                waiting.append(path + b"/")
            elif passed is not None:
                passed.append(path)


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


TreeEntry = tuple[bytes, str]  # mode, and hash of the object


def tree_with(git: Git, base: str, entries: Mapping[bytes, TreeEntry | None]) -> str:
    """Return the tree or commit `base`, by its full hash, with these files in it; None removes one."""
    lines = [
        b"%b %b\t%b" % (*(entry[0], entry[1].encode()), path) if entry else b"0 %b\t%b" % (b"0" * len(base), path)
        for path, entry in entries.items()
    ]
    with temporary_folder() as folder:
        env = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        git.run("read-tree", base, env=env)
        git.run("update-index", "-z", "--index-info", stdin=b"\0".join([*lines, b""]), env=env)
        return git.run("write-tree", env=env).decode().strip()
