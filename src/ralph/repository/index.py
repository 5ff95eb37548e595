"""What does the workspace look like right now? A private index turns all of it, new files included, into one git tree.

The user's index, branch and stash are not touched. The objects go to the repository's own store, where a checkpoint
keeps them and garbage collection takes them otherwise.
"""

import errno
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from msgspec import Struct

from ralph.core.secrets import Redactor, secret_values
from ralph.files import is_hole, new_hash, read_given, temporary_folder, write_file
from ralph.processes.program import seconds_left
from ralph.records.folder import cannot_write
from ralph.repository.git import STORING, GitError, Looking, Repository, git_version, refusal

BIG_FILE = 50_000_000
ALL_NEW_FILES = 1_000_000_000
MOST_UNREADABLE = 20
# What git learns of times and folders when it looks is worth writing to the index (5 ms) once in so many seconds.
NOTED_EVERY = 30.0
NOTHING = "0" * 40
_LARGEST_INDEX = 1 << 30  # bytes; that of a million files has a tenth of it
# Modes, as `git status` tells them.
GONE, UNKNOWN, UNMERGED = b"000000", b"", b"several"

# What ralph itself writes while it runs. Never part of a tree, not even where somebody once committed it.
RUN_DATA = (b"runs/", b"progress.md", b"lock", b"guardrail_", b"prompt_")

STATUS = (
    "-c", "core.preloadIndex=true",
    "-c", "core.untrackedCache=true",
    "-c", "status.showUntrackedFiles=all",
    "status", "--porcelain=v2", "-z",
    "--untracked-files=all", "--no-renames", "--ignore-submodules=dirty",
)  # fmt: skip

# New files in such a number become packs: to make a file of its own for each takes git twice as long, and whoever owns
# the repository would have to tidy it up. In one pack no more than this: git looks for each object among all others.
MANY, A_PACKFUL = 1_000, 10_000
A_MOMENT = 10_000  # names that are looked at in one
_PACKED = ("-c", "core.bigFileThreshold=1")
_PACKS_SINCE = (2, 38)  # before that, `update-index` makes a pack for each file

# Most of an index stays as it is from one iteration to the next: git writes it once, and then only what has changed
# since, beside the settings that it is told of. A fifth of it makes it write anew, and leave nothing of the old.
_IN_TWO = ("-c", "core.splitIndex=true", "-c", "splitIndex.sharedIndexExpire=now")


class GitStatus(Struct):
    """What `git status` says against the private index: files by their modes now, and repositories inside. `taken` are
    new files that the index has as they are."""

    head: str = ""
    changed: dict[bytes, bytes] = {}
    new: dict[bytes, bytes] = {}
    taken: set[bytes] = set()
    nested: list[bytes] = []


class PrivateIndex:
    """A copy of the user's index that follows the working tree. Copied, so that files need not be read again."""

    def __init__(self, repository: Repository, path: Path) -> None:
        self.repository = repository
        self.left_out: tuple[str, ...] = ()
        self.nested: tuple[str, ...] = ()  # repositories inside, of which only the commit is known
        self._path = path.absolute()
        self._env = {"GIT_INDEX_FILE": str(self._path)}
        self._tree = ""  # of what is in the index
        self._looking = Looking(repository, f"{self._path}.git")
        self._submodules: list[bytes] = []
        self._manner: tuple[str, ...] = _IN_TWO
        self._written_at = -NOTED_EVERY
        self._sizes: dict[bytes, int] = {}  # of the new files in the latest tree

    def begin(self, settings: Mapping[str, str] | None = None) -> None:
        """Takes the user's index as its beginning, and these settings of the repository, or those it has now."""
        self._looking.begin(settings)
        self._seed()

    def tree(self, whole: bool = False) -> str:
        """A fingerprint `HEAD:tree[:rest]`: it changes when HEAD or the content, mode or name of any file does.

        New files that are very big, alone or together, are not read unless `whole` is asked for, and files that cannot
        be read never are: `left_out` names them; like nested repositories, they are known by their size and time only.
        """
        if not os.path.isfile(self._path) or os.path.islink(self._path):  # an agent has removed it, or led it elsewhere
            self._seed()
        if whole:  # a file that was written anew as it was has to be known as such before git writes over it
            self._written_at = -NOTED_EVERY
        try:
            seen = self._look()
        except GitError as error:
            if "sharedindex." not in error.message:
                raise
            self._seed()  # the other half was removed
            seen = self._look()
        kept = seen.changed | (seen.new if whole else self._fitting(seen))
        holes = {path for path in kept if (whole or path in seen.changed) and self._is_hole(path)}
        tree, unreadable = self._with({path: mode for path, mode in kept.items() if path not in holes})
        left_out = sorted({*seen.new} - {*kept} | holes | {*unreadable})
        self.left_out = tuple(shown(path) for path in left_out)
        self.nested = tuple(shown(path) for path in seen.nested)
        rest = self._stamp(left_out, seen.nested)
        return f"{seen.head or NOTHING}:{tree}" + (f":{rest}" if rest else "")

    @property
    def unsaved(self) -> tuple[str, ...]:
        """What is there, and not in the latest tree."""
        return (*self.left_out, *self.nested)

    def take(self, paths: list[bytes]) -> None:
        """Follows these files too, though git may be told to ignore them."""
        if paths and (unreadable := self._take(paths)):
            raise GitError(f"git cannot save {shown(unreadable[0])}", "move it away first")
        self._tree = ""

    def git(self, *words: str, stdin: bytes = b"") -> bytes:
        """Git with this index, and nothing of the repository that could start a program."""
        return self._looking.git(*self._manner, *words, stdin=stdin, env=self._env)

    def check_out(self, now: str, target: str, by_filters: bool = True) -> None:
        """Makes the files of the tree `now` those of the tree `target`, as the user's own git would write them; or,
        where it is not known which filters are the user's, without any."""
        ask = self.repository.git if by_filters else self._looking.git
        # The user's own git would look for the other half at a place of its own.
        self.git("-c", "core.splitIndex=false", "update-index", "--no-split-index")
        # Entries as young as their index are compared by content, which a filter makes another: so it becomes younger.
        soon = time.time() + 2  # many a git compares by the second
        os.utime(self._path, (soon, soon))
        ask("read-tree", "--no-sparse-checkout", "-m", "-u", now, target, env=self._env)

    def _seed(self) -> None:
        self._tree, content = "", b""
        try:
            with suppress(FileNotFoundError):
                content = self._copy()
            if not content or not self._is_made_ours(content):
                self._path.unlink(missing_ok=True)  # there is none, or it is broken: files are read anew
        except OSError as error:
            raise cannot_write(self._path, error) from None

    def _is_made_ours(self, content: bytes) -> bool:
        try:
            self._make_ours(content)
        except GitError:
            return False
        return True

    def _make_ours(self, content: bytes) -> None:
        is_legible = content[7:8] in (b"\2", b"\3") and b"link" not in content
        if b".ralph/" in content or not is_legible:
            committed = [f":(top,glob)**/.ralph/{name.decode()}**" for name in RUN_DATA]
            words = ("rm", "--cached", "-r", "-f", "--quiet", "--ignore-unmatch", "--", *committed)
            self.git(*words)
        if b"link" in content:
            self.git("update-index", "--no-split-index")
        if b"\xe0\0" in content:  # the mode of a submodule: git would look into it by the settings that it finds there
            rows = self.git("ls-files", "--stage", "-z").split(b"\0")
            self._submodules = [row.partition(b"\t")[2] for row in rows if row.startswith(b"160000")]
        self._unhide()

    def _unhide(self) -> None:
        """Files that git was told not to look at, be it by the user or by an agent, are looked at: they can be changed
        like any other, and must not get lost. Those that a sparse checkout leaves out are not there."""
        flagged = [row for row in self.git("ls-files", "-v", "-z").split(b"\0") if row[:2] not in (b"H ", b"")]
        if any(row[:1] in b"Ss" for row in flagged):
            self._manner = (*_IN_TWO, "-c", "core.sparseCheckout=true")  # "leave out what is not there", for a look
        if assumed := [row[2:] for row in flagged if row[:1].islower()]:
            self.git("update-index", "--no-assume-unchanged", "-z", "--stdin", stdin=b"\0".join([*assumed, b""]))

    def _copy(self) -> bytes:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._path}.lock")  # of a git that was killed; nobody else writes this index
        place = os.path.join(self.repository.git_dir, "index")
        times = os.stat(place)
        try:
            content = read_given(place, _LARGEST_INDEX)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise
            raise GitError(f"{place} is not an index: {error.strerror}", "remove it: git makes a new one") from None
        if b"link" in content:  # an index may lie in several files, which git looks for beside its settings
            self._looking.borrow_shared_index()
        write_file(self._path, content)
        # Git trusts an entry that is older than its index: a younger copy would hide edits made in the same moment.
        os.utime(self._path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return content

    def _look(self) -> GitStatus:
        now = time.monotonic()
        is_fresh = now - self._written_at < NOTED_EVERY
        if not is_fresh:
            self._written_at = now
        self._refuse_pipes()
        lock = ("--no-optional-locks",) if is_fresh else ()
        scope = ("--", *self.repository.scope) if self.repository.scope else ()
        head = self._looking.head()
        seen = parse_status(self._looking.git(*self._manner, *lock, *STATUS, *scope, head=head, env=self._env))
        seen.head = head
        seen.nested = sorted({*seen.nested, *self._submodules})
        return seen

    def _refuse_pipes(self) -> None:
        """Git would wait for what nobody says. In folders below it does; there it is ended when its time is over."""
        for name in (".gitignore", ".gitattributes"):
            with suppress(OSError):
                place = os.path.join(self.repository.root, name)
                if not stat.S_ISREG(os.stat(place).st_mode) and not os.path.isdir(place):
                    raise GitError(f"{place} is not a file", "remove it")

    def _with(self, changes: dict[bytes, bytes]) -> tuple[str, list[bytes]]:
        """The tree with these changes, and the files that git cannot read."""
        # What is gone because a link took the place of its folder goes with that: git refuses to look behind it.
        paths = [path for path, mode in changes.items() if mode != GONE or not changes.keys() & folders_to(path)]
        unreadable = self._take(paths) if paths else []
        if changes or not self._tree:
            self._tree = self.git("write-tree", "--missing-ok").decode().strip()
        return self._tree, unreadable

    def _fitting(self, seen: GitStatus) -> dict[bytes, bytes]:
        """The new files that there is room for. Those in the latest tree come first: or a tree would change though no
        file did."""
        sizes = {path: size for path, size in self._sizes.items() if path in seen.taken}
        room = ALL_NEW_FILES - sum(sizes.values())
        for path in _in_time(sorted(seen.new, key=lambda path: path not in self._sizes)):
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

    def _is_hole(self, path: bytes) -> bool:
        try:
            return is_hole(os.lstat(self._place(path)))
        except OSError:
            return False

    def _take(self, paths: list[bytes]) -> list[bytes]:
        """Brings the index up to date with these files; those that git cannot read are returned."""
        self._written_at = time.monotonic()
        words = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        unreadable: list[bytes] = []
        waiting = [paths[at : at + A_PACKFUL] for at in range(0, len(paths), A_PACKFUL)]
        packs = len(paths) > MANY and git_version(self.repository.root) >= _PACKS_SINCE
        manner = (*self._manner, *_PACKED) if packs else self._manner
        while waiting:
            some = waiting.pop()
            answer = self._looking.ask(*manner, *words, stdin=b"\0".join(some) + b"\0", env=self._env | STORING)
            if answer.code == 0:
                continue
            if len(some) > 1:  # one bad file spoils a call without a trace of the others: find it by halves
                waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
                continue
            unreadable += some
            if len(unreadable) > MOST_UNREADABLE:
                raise refusal(words, answer, "git cannot save the workspace")
        return unreadable

    def _stamp(self, left_out: list[bytes], nested: list[bytes]) -> str:
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
        return os.path.join(os.fsencode(self.repository.root), path)


def parse_status(output: bytes) -> GitStatus:
    """The files that differ from the index, by what `git status --porcelain=v2 -z` printed."""
    seen = GitStatus()
    for line in _in_time(output.split(b"\0")):
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


def _in_time(items: Iterable[bytes]) -> Iterator[bytes]:
    """Each of very many names: no signal ends what this process does with them by itself."""
    for number, item in enumerate(items):
        if number % A_MOMENT == 0 and seconds_left() <= 0:
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
    # What HEAD does not have was taken as a new file, and may have grown too big since.
    (seen.new if in_head == GONE and mode != GONE else seen.changed)[path] = mode


def folders_to(path: bytes) -> set[bytes]:
    """The folders that a file is in."""
    parts = path.split(b"/")
    return {b"/".join(parts[:depth]) for depth in range(1, len(parts))}


def is_run_data(path: bytes) -> bool:
    """Whether ralph wrote this while it ran."""
    _, inside, name = (b"/" + path).partition(b"/.ralph/")
    return bool(inside) and name.startswith(RUN_DATA)


def tree_of(fingerprint: str) -> str:
    """The git tree (or any other name of one) in a fingerprint."""
    return fingerprint.split(":")[1] if ":" in fingerprint else fingerprint


def head_of(fingerprint: str) -> str:
    """The commit that was checked out, or nothing before the first one."""
    head = fingerprint.split(":")[0] if ":" in fingerprint else ""
    return "" if head == NOTHING else head


def changed_at(path: bytes) -> float:
    """When a file, or its name, was last changed, by a clock that nobody sets for it; 0 where there is none."""
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0


def shown(path: bytes) -> str:
    """A path as text that can be printed and written down, whatever bytes it has: a key that it bears is struck out."""
    return _strike()(path).decode("utf-8", "backslashreplace")


@cache
def _strike() -> Redactor:
    return Redactor(secret_values(os.environ))


CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
LIBRARIES = frozenset({"node_modules", ".venv", "venv", ".tox", ".nox"})
OWN = frozenset({".git", ".hg", ".jj", ".svn", ".ralph"})
SKIPPED = CACHES | LIBRARIES | OWN
MOST = 200_000


def walk_fingerprint(root: str | os.PathLike[str]) -> str:
    """A digest of the path, size, time of change and mode of every file below `root`.

    It does not see an edit that keeps size and time, what lies in the folders `SKIPPED`, in folders that cannot be read
    or behind links, nor anything after the first `MOST` files; and it takes a file for changed when only its time did.
    """
    digest = new_hash(size=20)
    for count, (path, seen) in enumerate(files_below(os.fsencode(root))):
        if count == MOST:
            break
        digest.update(b"%b\0%d %d %o\n" % (path, seen.st_size, seen.st_mtime_ns, seen.st_mode))
    return digest.hexdigest()


def files_below(
    top: bytes, skipped: frozenset[str] = SKIPPED, passed: list[bytes] | None = None
) -> Iterator[tuple[bytes, os.stat_result]]:
    """Every file and link below `top`, by its path from there, in a fixed order. Folders that were skipped are added to
    those `passed`."""
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


Leaf = tuple[bytes, str]  # mode, and name of the object


def tree_with(repository: Repository, base: str, leaves: Mapping[bytes, Leaf | None]) -> str:
    """The tree or commit `base`, by its whole name, with these files in it or without them, whatever the working tree
    holds."""
    lines = [
        b"%b %b\t%b" % (*(leaf[0], leaf[1].encode()), path) if leaf else b"0 %b\t%b" % (b"0" * len(base), path)
        for path, leaf in leaves.items()
    ]
    with temporary_folder() as folder:
        env = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        repository.git("read-tree", base, env=env)
        repository.git("update-index", "-z", "--index-info", stdin=b"\0".join([*lines, b""]), env=env)
        return repository.git("write-tree", env=env).decode().strip()
