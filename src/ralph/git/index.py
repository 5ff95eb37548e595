"""The private index turns the workspace, including new files, into a git tree.

The user's index, branch and stash are not touched. The objects go to the repository's own store. Checkpoints keep the
objects that they need; git's garbage collection removes the others.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Fingerprint
from ralph.core.secrets import Redactor, secret_values
from ralph.files import add_to_file, read_given, temporary_folder, write_file
from ralph.git.client import Git, GitError, PrivateGitFolder, git_error
from ralph.git.setup_files import SetupFiles, TreeEntry, is_unchanged, load_setup_files
from ralph.store.folder import report_write_errors

BIG_FILE = 50_000_000  # bytes; larger new files are not saved
MAX_NEW_FILES = 1_000_000_000  # bytes of new files that are saved, all together
MAX_UNREADABLE = 20  # files
ADDED = "added"  # file in the private folder that lists the trees of the user's index at each start of the run
MAX_INDEX = 1 << 30  # bytes; the index of a million files has a tenth of it
GITLINK = b"160000"  # the file mode of a submodule
# File modes as `git status` prints them; ralph adds the last two.
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


class GitStatus(Struct):
    """How the working tree differs from the private index and from HEAD."""

    head: str = ""
    changed: dict[bytes, bytes] = {}  # files that HEAD has, with their modes now
    new: dict[bytes, bytes] = {}  # files that HEAD doesn't have and the index doesn't have as they are now
    indexed: set[bytes] = set()  # files that HEAD doesn't have and the index has as they are now
    nested: list[bytes] = []  # nested repositories


class PrivateIndex:
    """A copy of the user's index, updated to the working tree. (With a new index git would have to read every file.)"""

    def __init__(self, git: Git, folder: str) -> None:
        self.git = git
        self.left_out: tuple[str, ...] = ()  # files that are too big for the latest tree, or unreadable
        self.nested: tuple[str, ...] = ()  # nested repositories that the user had: only their commit is in the tree
        self.new_nested: list[bytes] = []  # nested repositories that the run made: their files are in the tree
        self._path = os.path.join(os.path.abspath(folder), "index")
        self._env = {"GIT_INDEX_FILE": self._path}
        self._tree = ""  # the tree of what is in the index
        self._private = PrivateGitFolder(git, os.path.abspath(folder))
        self._submodules: list[bytes] = []
        self._options: tuple[str, ...] = ()
        self._setup = SetupFiles()
        self._added: set[bytes] = set()  # by `add`: they are in the tree even if the setup made them

    def begin(self) -> None:
        """Start from a copy of the user's index."""
        self._private.open()
        self._copy_users_index()
        with suppress(GitError):  # unmerged files have no tree
            tree = self.run("write-tree", "--missing-ok")
            add_to_file(f"{self._private.folder}/{ADDED}", tree)

    def added_objects(self, paths: Sequence[bytes]) -> set[tuple[bytes, bytes]]:
        """Return path and object of these files as they were in the user's index when the run started or resumed.

        A filter of the user may have written those objects.
        """
        trees = {*read_given(f"{self._private.folder}/{ADDED}", MAX_INDEX).decode().split()}
        names = [os.fsdecode(path) for path in paths]
        args = ("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree")
        rows = [row for tree in trees for row in self.git.try_run(*args, tree, "--", *names).out.split(b"\0") if row]
        return {(path, about.split()[2]) for about, _, path in (row.partition(b"\t") for row in rows)}

    def tree(self, whole: bool = False) -> Fingerprint:
        """Return a fingerprint that changes with HEAD and with any file's content, mode or name.

        Big new files are in the tree only if `whole`, unreadable files never; `left_out` names the missing files.
        `rest` is a hash of their sizes and times, and of the files in nested repositories.
        """
        if not os.path.isfile(self._path) or os.path.islink(self._path):
            self.begin()
        status = self._status()
        self._leave_out_setup_files(status)
        self._enter_new_nested(status)
        entered = status.changed | (status.new if whole else self._small_new_files(status))
        tree, unreadable = self._add(entered)
        left_out = sorted({*status.new} - {*entered} | {*unreadable})
        self.left_out = tuple(display_path(path) for path in left_out)
        self.nested = tuple(display_path(path) for path in status.nested)
        return Fingerprint(head=status.head, files=tree, rest=self._digest(left_out, status.nested))

    @property
    def unsaved(self) -> tuple[str, ...]:
        """The files and nested repositories that are not in the latest tree."""
        return (*self.left_out, *self.nested)

    def add(self, paths: list[bytes]) -> None:
        """Add these files to the index, even if git ignores them."""
        self._added |= {*paths}
        if paths and (unreadable := self._update(paths)):
            raise GitError(f"git cannot save {display_path(unreadable[0])}", "move it away first")
        self._tree = ""

    def add_setup_files(self, target: str) -> None:
        """Add the files of the setup that `target` has in another version: otherwise git refuses to replace them."""
        if files := {file.path for file in self._setup.files}:
            differing = self.run("diff-index", "--cached", "-z", "--name-only", target).split(b"\0")
            self.add([path for path in differing if path in files])

    def run(self, *args: str, stdin: bytes = b"", head: str = "") -> bytes:
        """Run git with this index. No program that the repository names is run."""
        return self._private.at(head).run(*self._options, *args, stdin=stdin, env=self._env)

    def check_out(self, now: str, target: str) -> None:
        """Turn the files of the tree `now` into those of the tree `target`, byte for byte except line ends."""
        self._make_younger()
        self.run("read-tree", "--no-sparse-checkout", "-m", "-u", now, target)
        self._tree, self._added = target, set()
        self._restore_setup_files()

    def smudge(self, paths: Sequence[bytes]) -> None:
        """Write these files again through the user's filters: their objects in the tree were written by filters."""
        for path in paths:
            os.utime(self.git.place(path), (1, 1))  # or git takes them for up to date
        self.git.run("checkout-index", "-f", "-u", "-z", "--stdin", stdin=b"\0".join([*paths, b""]), env=self._env)
        self._make_younger()

    def _make_younger(self) -> None:
        """Give the index a time in the future, so that git trusts it.

        If a file is as new as the index, git compares its content, which a filter may change.
        """
        soon = time.time() + 2  # some gits compare whole seconds
        os.utime(self._path, (soon, soon))

    def _copy_users_index(self) -> None:
        self._tree, self._setup = "", load_setup_files(self.git.root)
        source = os.path.join(self.git.git_dir, "index")
        with report_write_errors(self._path):
            Path(f"{self._path}.lock").unlink(missing_ok=True)  # from a killed git; only ralph writes this index
            with suppress(FileNotFoundError, GitError):
                times = os.stat(source)
                write_file(self._path, read_given(source, MAX_INDEX))
                # Git trusts a file that is older than its index: a newer copy would hide edits made in the same moment.
                os.utime(self._path, ns=(times.st_atime_ns, times.st_mtime_ns))
                self._prepare()
                return
            # There is no index, or it is split or broken. Start from HEAD: git reads all files then.
            Path(self._path).unlink(missing_ok=True)
            self.run("read-tree", self.git.resolve("HEAD") or "--empty")
            self._prepare()

    def _prepare(self) -> None:
        """Drop ralph's run data from the copy, find submodules, and clear flags that hide changes.

        Files marked assume-unchanged can change like any other, and must not get lost.
        """
        rows = [row.partition(b"\t") for row in self.run("ls-files", "-v", "--stage", "-z").split(b"\0")[:-1]]
        if any(about[:1] in b"Ss" for about, _, _ in rows):
            self._options = ("-c", "core.sparseCheckout=true")  # files outside a sparse checkout are not deleted
        self._submodules = [path for about, _, path in rows if about[2:].startswith(GITLINK)]
        if data := [path for _, _, path in rows if is_run_data(path)]:
            self._change_entries("--force-remove", data)
        if assumed := [path for about, _, path in rows if about[:1].islower() and not is_run_data(path)]:
            self._change_entries("--no-assume-unchanged", assumed)

    def _change_entries(self, option: str, paths: Sequence[bytes]) -> None:
        self.run("update-index", option, "-z", "--stdin", stdin=b"\0".join([*paths, b""]))

    def _status(self) -> GitStatus:
        scope = ("--", *self.git.scope) if self.git.scope else ()
        head = self.git.head()
        status = parse_status(self.run(*STATUS, *scope, head=head))
        status.head = head
        status.nested = sorted({*status.nested, *self._submodules})
        return status

    def _leave_out_setup_files(self, status: GitStatus) -> None:
        """Make the tree have these files as the commit has them, as long as they are as the setup left them."""
        root, differing = self.git.root, (status.changed.keys() | status.new.keys()) - self._added
        ours = [file for file in self._setup.files if file.path in differing]
        unchanged = {file.path: file.before for file in ours if is_unchanged(root, file)}
        unchanged |= dict.fromkeys(self._setup.included & differing)
        untracked = {path for path, mode in status.new.items() if mode == UNKNOWN}
        for path in unchanged:
            status.changed.pop(path, None)
            status.new.pop(path, None)
        self._set_entries({path: before for path, before in unchanged.items() if path not in untracked})

    def _restore_setup_files(self) -> None:
        """Write the files again that the setup made, unless the tree has another version of them."""
        changed = {file.path: file for file in self._setup.files if not is_unchanged(self.git.root, file)}
        if not changed:
            return
        rows = (row.partition(b"\t") for row in self.run("ls-files", "--stage", "-z").split(b"\0"))
        entries = {path: (about.split()[0], about.split()[1].decode()) for about, _, path in rows if path in changed}
        missing = [file for path, file in changed.items() if entries.get(path) == file.before]
        self._set_entries({file.path: file.after for file in missing})
        there = [file.path for file in missing if file.after]
        self.run("checkout-index", "-f", "-z", "--stdin", stdin=b"\0".join([*there, b""]))
        for file in missing:
            if not file.after:
                Path(os.fsdecode(self.git.place(file.path))).unlink(missing_ok=True)
        self._set_entries({file.path: file.before for file in missing})

    def _set_entries(self, entries: Mapping[bytes, TreeEntry | None]) -> None:
        if entries:
            set_entries(self.run, entries)
            self._tree = ""

    def _enter_new_nested(self, status: GitStatus) -> None:
        """Treat the files of nested repositories that were added during the run as new files."""
        path = f"{self._private.folder}/nested"
        if not os.path.exists(path):
            write_file(path, b"\0".join(status.nested))
        had = {*read_given(path, MAX_INDEX).split(b"\0")}
        folders = [folder.rstrip(b"/") for folder in status.nested if folder.endswith(b"/") and folder not in had]
        look = self._private.at(status.head)
        for folder in without_submodules(look, folders) if folders else ():
            if files := [file for files in files_in(look, folder) for file in files]:
                status.nested.remove(folder + b"/")
                status.new |= dict.fromkeys(files, UNKNOWN)
                if folder not in self.new_nested:
                    self.new_nested.append(folder)

    def _add(self, changes: dict[bytes, bytes]) -> tuple[str, list[bytes]]:
        """Add these changes to the index; return its tree, and the files that git cannot read."""
        # If a link has replaced a folder, the files in that folder go with it: git refuses to look behind a link.
        paths = [path for path, mode in changes.items() if mode != GONE or not changes.keys() & folders_to(path)]
        unreadable = self._update(paths) if paths else []
        if changes or not self._tree:
            self._tree = self.run("write-tree", "--missing-ok").decode().strip()
        return self._tree, unreadable

    def _small_new_files(self, status: GitStatus) -> dict[bytes, bytes]:
        """Return the new files that are small enough for the tree."""
        room = MAX_NEW_FILES - sum(size for size in map(self._size, status.indexed) if size <= BIG_FILE)
        fitting = {}
        # Files that are in the index already come first: otherwise the tree could change without a file changing.
        for path, mode in sorted(status.new.items(), key=lambda item: item[1] == UNKNOWN):
            size = self._size(path)
            if size <= min(BIG_FILE, room):
                room -= size
                fitting[path] = mode
        return fitting

    def _size(self, path: bytes) -> int:
        try:
            return os.lstat(self.git.place(path)).st_size
        except OSError:
            return 0  # git will report what is wrong

    def _update(self, paths: list[bytes]) -> list[bytes]:
        """Bring the index up to date with these files; return those that git cannot read."""
        args = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        unreadable: list[bytes] = []
        batches = [paths]
        while batches:
            batch = batches.pop()
            result = self._private.at().try_run(*self._options, *args, stdin=b"\0".join(batch) + b"\0", env=self._env)
            if result.code == 0:
                continue
            if len(batch) > 1:  # git refuses all files because of one: find it by trying halves
                batches += [batch[: len(batch) // 2], batch[len(batch) // 2 :]]
                continue
            unreadable += batch
            if len(unreadable) > MAX_UNREADABLE:
                raise git_error(args, result, "git cannot save the workspace")
        return unreadable

    def _digest(self, left_out: list[bytes], nested: list[bytes]) -> str:
        """Return a hash of size, time and mode of the files that are not in the tree; empty if there are none."""
        if not left_out and not nested:
            return ""
        digest = blake2b(digest_size=20)
        for path in left_out:
            with suppress(FileNotFoundError):
                info = os.lstat(self.git.place(path))
                digest.update(b"%b\0%d %d %o\n" % (path, info.st_size, info.st_mtime_ns, info.st_mode))
        for path in nested:
            digest.update(b"%b\0%b\n" % (path, walk_fingerprint(os.fsdecode(self.git.place(path))).rest.encode()))
        return digest.hexdigest()


def parse_status(output: bytes) -> GitStatus:
    """Parse the output of `git status --porcelain=v2 -z`."""
    status = GitStatus()
    for line in output.split(b"\0"):
        match line[:2]:
            case b"? " if line.endswith(b"/"):
                status.nested.append(line[2:])
            case b"? " if b"/.ralph/" not in b"/" + line[2:]:
                status.new[line[2:]] = UNKNOWN
            case b"u ":
                status.changed[line.split(b" ", 10)[10]] = UNMERGED
            case b"1 ":
                _add_changed(line, status)
    return status


def _add_changed(line: bytes, status: GitStatus) -> None:
    _, state, submodule, in_head, _, mode, _, _, path = line.split(b" ", 8)
    if state == b"A.":
        status.indexed.add(path)
    if state[1:] == b"." or is_run_data(path):
        return
    if submodule[:1] == b"S" and submodule[2:] != b"..":
        status.nested.append(path)
    if submodule[:2] == b"S." and state[1:] == b"M":
        return
    # A file that was added as a new one may have become too big since then.
    (status.new if in_head == GONE and mode != GONE else status.changed)[path] = mode


def folders_to(path: bytes) -> set[bytes]:
    parts = path.split(b"/")
    return {b"/".join(parts[:depth]) for depth in range(1, len(parts))}


def is_run_data(path: bytes) -> bool:
    """Return whether ralph itself writes this file during a run."""
    _, inside, name = (b"/" + path).partition(b"/.ralph/")
    return bool(inside) and name.startswith(RUN_DATA)


def changed_at(path: bytes) -> float:
    """Return when a file was last changed or renamed, by the kernel's clock; 0 if it doesn't exist."""
    try:
        return os.lstat(path).st_ctime
    except OSError:
        return 0.0


def display_path(path: bytes) -> str:
    """Return a path as printable text, with secrets in it redacted."""
    return _redactor()(path).decode("utf-8", "backslashreplace")


@cache
def _redactor() -> Redactor:
    return Redactor(secret_values(os.environ))


CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"})
LIBRARIES = frozenset({"node_modules", ".venv", "venv", ".tox", ".nox"})
OWN = frozenset({".git", ".hg", ".jj", ".svn", ".ralph"})
SKIPPED = CACHES | LIBRARIES | OWN
MAX_WALKED = 200_000


def walk_fingerprint(root: str | os.PathLike[str]) -> Fingerprint:
    """Return a digest of path, size, modification time and mode of every file below `root`.

    Left out are the folders `SKIPPED`, unreadable folders, the targets of links, and everything after the first
    `MAX_WALKED` files.
    """
    digest = blake2b(digest_size=20)
    for count, (path, info) in enumerate(files_below(os.fsencode(root))):
        if count == MAX_WALKED:
            break
        digest.update(b"%b\0%d %d %o\n" % (path, info.st_size, info.st_mtime_ns, info.st_mode))
    return Fingerprint(rest=digest.hexdigest())


def files_below(
    top: bytes, skipped: frozenset[str] = SKIPPED, passed: list[bytes] | None = None
) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield path and status of every file and link below `top`, in a fixed order.

    Folders with a name in `skipped` are not entered; their paths are appended to `passed`.
    """
    names = {os.fsencode(name) for name in skipped}
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        for entry in _entries(os.path.join(top, folder)):
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            path = folder + entry.name
            if not stat.S_ISDIR(info.st_mode):
                yield path, info
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


# Nested repositories are folders of the working tree that have their own `.git`. Git sees such a folder as one unit and
# saves at most the hash of a commit in it, which exists nowhere else. If the run made the folder, its files belong to
# the work. Once the index has one of them, git treats the folder as an ordinary one.


def submodule_paths(git: Git) -> dict[bytes, str]:
    """Return path and name of each submodule that `.gitmodules` declares."""
    args = ("config", "-z", "--file", os.path.join(git.root, ".gitmodules"), "--get-regexp", r"^submodule\..*\.path$")
    entries = (entry.partition(b"\n") for entry in git.try_run(*args).out.split(b"\0") if entry)
    return {path: os.fsdecode(key)[len("submodule.") : -len(".path")] for key, _, path in entries}


def gitlinks(git: Git) -> dict[bytes, str]:
    """Return path and commit of each submodule and nested repository in the index."""
    rows = (row.partition(b"\t") for row in git.run("ls-files", "--stage", "-z").split(b"\0"))
    return {path: about.split()[1].decode() for about, _, path in rows if about.startswith(GITLINK)}


def find_nested(git: Git) -> list[bytes]:
    """Return the nested repositories with files, apart from submodules: git would not save those files."""
    folders = without_submodules(git, {*new_repositories(git), *gitlinks(git)})
    return sorted(path for path in folders if next(files_in(git, path), None))


def new_repositories(git: Git) -> list[bytes]:
    """Return the nested repositories that are not in the index."""
    new = git.run("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    return [path.rstrip(b"/") for path in new if path.endswith(b"/")]


def without_submodules(git: Git, folders: Iterable[bytes]) -> list[bytes]:
    """Return the folders that are repositories, apart from declared submodules and linked worktrees."""
    there = [folder for folder in folders if os.path.isdir(os.path.join(git.place(folder), b".git"))]
    declared = submodule_paths(git) if there else {}
    return [folder for folder in there if folder not in declared]


def files_in(git: Git, folder: bytes) -> Iterator[list[bytes]]:
    """Yield the files of a nested repository, then those of each repository inside it, without ignored files."""
    inside = replace(git, root=os.path.join(git.root, os.fsdecode(folder)))
    no_index = {"GIT_INDEX_FILE": os.path.join(git.git_dir, "ralph-no-index")}
    out = inside.run("ls-files", "--others", "--exclude-standard", "-z", env=no_index)
    paths = [os.path.join(folder, name) for name in out.split(b"\0")[:-1] if b"/.ralph/" not in b"/" + name]
    files = [path for path in paths if not path.endswith(b"/")]
    ignored = {*git.try_run("check-ignore", "--no-index", "-z", "--stdin", stdin=b"\0".join(files)).out.split(b"\0")}
    if tracked := [path for path in files if path not in ignored]:
        yield tracked
    for path in paths:
        if path.endswith(b"/"):
            yield from files_in(git, path.rstrip(b"/"))


def set_entries(run: Callable[..., bytes], entries: Mapping[bytes, TreeEntry | None]) -> None:
    """Write these entries into the index; None removes one. The files stay as they are. `run` runs git."""
    if removed := [path for path, entry in entries.items() if not entry]:
        run("update-index", "--force-remove", "-z", "--stdin", stdin=b"\0".join([*removed, b""]))
    if lines := [b"%b %b\t%b" % (entry[0], entry[1].encode(), path) for path, entry in entries.items() if entry]:
        run("update-index", "-z", "--index-info", stdin=b"\0".join([*lines, b""]))


def tree_with(git: Git, base: str, entries: Mapping[bytes, TreeEntry | None]) -> str:
    """Return the tree of `base`, the full hash of a tree or commit, with these files in it; None removes a file."""
    with temporary_folder() as folder:
        env = {"GIT_INDEX_FILE": os.path.join(folder, "index")}
        git.run("read-tree", base, env=env)
        set_entries(partial(git.run, env=env), entries)
        return git.run("write-tree", env=env).decode().strip()
