"""The `Git` object: a repository, and the policy by which git runs in it.

There are three policies. *look* runs nothing that the repository's settings, hooks or attributes name: git gets a
private git folder with the repository's objects and none of its settings. The private folder of a run is in ralph's
state folder, outside the workspace; it is written once, and later only its HEAD changes. *own* is for ralph's
worktrees, refs and checkpoints: the user's filters and merge drivers apply, hooks do not. *user* is for commands that
the user could have typed: their hooks and settings apply, but git may not prompt or open an editor.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.text import head, short
from ralph.errors import UserError
from ralph.files import make_folder, read_given, replace_file, state_folder, temporary_folder, write_file
from ralph.process.own_process import OwnProcess
from ralph.process.program import Command, own_program, search_path
from ralph.process.signals import Cancelled, Deadline
from ralph.store.folder import report_write_errors

# Settings that ralph's own commands do not take from the repository.
PINNED_SETTINGS = (
    "-c", f"core.hooksPath={os.devnull}",
    "-c", "core.fsmonitor=false",
    "-c", "core.quotePath=false",
    "-c", "core.safecrlf=false",
    "-c", "core.fsyncMethod=batch",
    "-c", "core.splitIndex=false",
    "-c", "submodule.recurse=false",
    "-c", "color.ui=false",
    "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
)  # fmt: skip

# Variables that lead git to another repository, or change how it reads paths and objects.
MISLEADING = frozenset({
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH", "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE", "GIT_NO_REPLACE_OBJECTS", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS",
    "GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS",
    "GIT_EXTERNAL_DIFF", "GIT_DIFF_OPTS", "GIT_ATTR_SOURCE", "GIT_INDEX_VERSION", "GIT_IMPLICIT_WORK_TREE",
})  # fmt: skip
RALPH_IDENTITY = {
    "GIT_AUTHOR_NAME": "ralph",
    "GIT_AUTHOR_EMAIL": "ralph@localhost",
    "GIT_COMMITTER_NAME": "ralph",
    "GIT_COMMITTER_EMAIL": "ralph@localhost",
}
# These commands change nothing, or only add objects: it is safe to run them again.
READS = frozenset({
    "cat-file", "check-attr", "check-ignore", "check-ref-format", "commit-tree", "config", "diff", "diff-index",
    "for-each-ref", "grep", "hash-object", "ls-files", "ls-tree", "merge-base", "merge-tree", "remote", "rev-list",
    "diff-tree", "rev-parse", "status", "var", "version",
})  # fmt: skip

Env = Mapping[str, str] | None

killed_commands: list[str] = []
"""The git commands of this process that were killed: a step that failed because of that may be retried."""


class GitPolicy(Enum):
    """How git runs; the value is the time limit in seconds."""

    LOOK = 120.0
    OWN = 600.0
    USER = 300.0


class GitError(UserError):
    """Git failed: its message in one line."""


class GitTimeout(GitError):
    """Git did not finish within the time limit of its policy."""


class GitResult(Struct, frozen=True):
    code: int
    out: bytes
    error: str

    @property
    def was_killed(self) -> bool:
        """Whether git, or a program that it started, was killed."""
        return self.code < 0 or " died of signal " in self.error

    @property
    def found_lock(self) -> bool:
        """Whether git failed because of another git's lock."""
        return "File exists" in self.error


class Git(Struct, frozen=True, kw_only=True):
    """A repository, and the policy by which git runs in it.

    `root` is the top of the working tree, `git_dir` its git folder, `prefix` the path from `root` to the workspace.
    `env` is added to the environment of every command.
    """

    root: str
    git_dir: str
    prefix: str = ""
    policy: GitPolicy = GitPolicy.OWN
    env: Mapping[str, str] = {}
    deadline: Deadline | None = None

    @property
    def common_dir(self) -> str:
        """The folder with objects, refs and settings, which linked worktrees share."""
        name = read_line(os.path.join(self.git_dir, "commondir"))
        folder, parent = os.path.split(os.path.dirname(self.git_dir))
        if name and parent == "worktrees":  # git puts them only there; the file could name an agent's settings
            return os.path.normpath(folder)
        return os.path.normpath(os.path.join(self.git_dir, name)) if name else self.git_dir

    @property
    def location(self) -> dict[str, str]:
        """The variables with which git uses this repository, whatever the files in the working tree say."""
        return {"GIT_DIR": self.git_dir, "GIT_COMMON_DIR": self.common_dir, "GIT_WORK_TREE": self.root}

    @property
    def scope(self) -> tuple[str, ...]:
        """The pathspecs to use: the workspace if the repository contains the home folder, else none (all files)."""
        home = os.path.realpath(os.path.expanduser("~"))
        if self.prefix and os.path.commonpath((self.root, home)) == self.root:
            return (f":(top,literal){self.prefix}",)
        return ()

    def as_user(self) -> "Git":
        """Return the same repository for commands in the user's name."""
        return replace(self, policy=GitPolicy.USER)

    def place(self, path: bytes) -> bytes:
        """Return the absolute path of a file in the working tree."""
        return os.path.join(os.fsencode(self.root), path)

    def run(self, *args: str, stdin: bytes = b"", env: Env = None) -> bytes:
        """Return what git prints; raise GitError if it fails."""
        result = self.try_run(*args, stdin=stdin, env=env)
        if result.code:
            raise git_error(args, result)
        return result.out

    def try_run(self, *args: str, stdin: bytes = b"", env: Env = None) -> GitResult:
        """Return exit code and output. If a command that only reads (`READS`) was killed, run it again once."""
        command = _command(args)
        for _ in range(2):
            with self.stream(*args, stdin=stdin, env=env) as process:
                out = process.output(self.policy.value)
            result = GitResult(process.code, out, process.error)
            if not result.was_killed:
                return result
            killed_commands.append(command)
            if command not in READS:
                return result
        raise git_error(args, result)

    @contextmanager
    def stream(self, *args: str, stdin: bytes = b"", env: Env = None) -> Iterator[OwnProcess]:
        """Start git; it is killed if the caller leaves before reading all output."""
        settings: tuple[str, ...] = PINNED_SETTINGS
        pinned = {**self.location, "GIT_NO_REPLACE_OBJECTS": "1"}
        if self.policy is GitPolicy.USER:  # hooks inherit the environment, and may run git in another repository
            settings, pinned = (), {}
        user = user_environment(self.deadline)
        environment = user | {"LC_ALL": "C.UTF-8"} | pinned | dict(self.env) | dict(env or {})
        command = Command(argv=("git", "-C", self.root, *settings, *args), env=environment, stdin=stdin)
        try:
            with OwnProcess(command, deadline=self.deadline) as process:
                yield process
        except Cancelled as error:
            raise GitError(f"git {_command(args)} was cut off: {error}") from None
        except TimeoutError:
            limit = f"{self.policy.value:.0f} seconds"
            raise GitTimeout(f"git {_command(args)} took longer than {limit} in {self.root}") from None

    def resolve(self, name: str) -> str:
        """Return the commit that a name such as HEAD or refs/heads/main points to; empty if it doesn't exist."""
        result = self.try_run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return result.out.decode().strip() if result.code == 0 else ""

    def head(self) -> str:
        """Return the commit that is checked out; empty if there is none.

        A branch is usually one small file, which is read here: every iteration asks, and a git takes two milliseconds.
        """
        text = read_line(f"{self.git_dir}/HEAD")
        if branch := _ORDINARY_BRANCH.fullmatch(text):
            text = read_line(os.path.join(self.common_dir, branch[1]))
        return text if _OBJECT_NAME.fullmatch(text) else self.resolve("HEAD")

    def tree_at(self, commit: str) -> str:
        """Return the tree of a commit."""
        return self.run("rev-parse", f"{commit}^{{tree}}").decode().strip()

    def commit_tree(
        self, tree: str, parents: Iterable[str], message: str, identity: Mapping[str, str] = RALPH_IDENTITY
    ) -> str:
        """Make a commit of a tree and return it; no branch moves."""
        args = [word for parent in dict.fromkeys(parents) for word in ("-p", parent)]
        text = message.encode("utf-8", "replace").replace(b"\0", b"")
        return self.run("commit-tree", tree, *args, stdin=text or b"\n", env=identity).decode().strip()

    def contains(self, later: str, earlier: str) -> bool:
        args = ("merge-base", "--is-ancestor", earlier, later)
        result = self.try_run(*args)
        if result.code > 1:
            raise git_error(args, result)
        return result.code == 0

    def identity(self) -> Mapping[str, str]:
        """Return the environment for a commit: the user's name if git knows it without guessing, else ralph's."""
        result = self.try_run("-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT")
        return {} if result.code == 0 else RALPH_IDENTITY

    def has_hook(self, *names: str) -> bool:
        result = self.as_user().try_run("rev-parse", "--git-path", "hooks")
        folder = os.path.join(self.root, os.fsdecode(result.out).strip())
        return result.code == 0 and any(os.access(os.path.join(folder, name), os.X_OK) for name in names)

    def time_left(self) -> float:
        """Return the seconds until the run must end."""
        return self.deadline.remaining() if self.deadline else math.inf


def user_environment(deadline: Deadline | None = None) -> dict[str, str]:
    """Return the user's environment without variables that mislead git or make it verbose; git may not prompt."""
    untrusted = deadline.untrusted if deadline else ()
    inherited = {n: value for n, value in os.environ.items() if n not in MISLEADING and not n.startswith("GIT_TRACE")}
    inherited["PATH"] = search_path(untrusted)
    if "GIT_SSH" not in inherited and (ssh := own_program("ssh", untrusted)):
        inherited["GIT_SSH"] = ssh
    return inherited | {"GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true"}


def git_error(args: tuple[str, ...], result: GitResult, what: str = "") -> GitError:
    """Return git's own message as an error that begins with `what`; by default: "git COMMAND failed"."""
    lines = [line.strip() for line in result.error.splitlines() if line.strip()]
    at = next((at for at, line in enumerate(lines) if line.startswith(("fatal:", "error:"))), 0)
    message = lines[at] if lines else ""
    ended = f"exit code {result.code}" if result.code >= 0 else f"it was killed by signal {-result.code}"
    message = message.removeprefix("fatal: ").removeprefix("error: ") or ended
    if message.endswith(":") and lines[at + 1 :]:  # the subject is on the next line
        message = f"{message} {lines[at + 1]}"
    hint = "nothing is lost: start again" if result.was_killed else ""
    if "dubious ownership" in result.error:
        hint = next((line for line in lines if line.startswith("git config")), "")
    return GitError(f"{what or f'git {_command(args)} failed'}: {head(message, 500, '…')}", hint)


def _command(args: tuple[str, ...]) -> str:
    """Return the git command in `args`, without the options before it."""
    return next((word for word in args if not word.startswith("-") and "=" not in word), "")


def find_git(workspace: Path, deadline: Deadline | None = None) -> Git | None:
    """Return the repository around `workspace`; None if there is none, or no git. A broken or bare one is an error."""
    if not os.path.isdir(workspace):
        raise UserError(f"no such folder: {short(str(workspace), 200)}", "name an existing folder")
    args = ("rev-parse", "--is-bare-repository", "--absolute-git-dir")
    try:
        result = Git(root=str(workspace), git_dir="", policy=GitPolicy.USER, deadline=deadline).try_run(*args)
    except FileNotFoundError:
        return None
    place = os.path.realpath(workspace)
    if result.code:
        is_marked = any((folder / ".git").exists() for folder in (Path(place), *Path(place).parents))
        if "not a git repository (or any" in result.error and not is_marked:
            return None
        raise git_error(args, result, f"the git repository around {workspace} cannot be used")
    is_bare, _, git_dir = os.fsdecode(result.out).removesuffix("\n").partition("\n")
    root = _top_of(place, git_dir) if is_bare == "false" else ""
    if not root:
        raise UserError(
            f"{workspace} is inside a git repository, but not in its working tree",
            "name a checked-out folder with -C DIR; a bare repository has none",
        )
    if read_line(f"{git_dir}/HEAD") == "ref: refs/heads/.invalid":  # git's placeholder for programs that read HEAD
        raise UserError(
            f"the branches of {root} are in a reftable, which ralph cannot read",
            "git 2.46 converts it to files: git refs migrate --ref-format=files",
        )
    prefix = os.path.relpath(place, root) if place != root else ""
    return Git(root=root, git_dir=git_dir, prefix=prefix, deadline=deadline)


def _top_of(place: str, git_dir: str) -> str:
    """Return the folder around `place` whose `.git` leads to `git_dir`; empty if `place` is inside `git_dir`."""
    for folder in map(str, (Path(place), *Path(place).parents)):
        mark = os.path.join(folder, ".git")
        if os.path.samefile(folder, git_dir):
            return ""
        if os.path.isfile(mark) or (os.path.isdir(mark) and os.path.samefile(mark, git_dir)):
            return os.path.normpath(folder)
    return ""


_OBJECT_NAME = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ORDINARY_BRANCH = re.compile(r"ref: (refs/heads/[\w-]+(?:[/.][\w-]+)*)")
MAX_NAME = 4096 + len("gitdir: \n")  # bytes; no path is longer


def read_line(path: str) -> str:
    """Return the stripped content of one of git's small files, up to the first NUL; empty if it cannot be read."""
    try:
        return os.fsdecode(read_given(path, MAX_NAME).partition(b"\0")[0]).strip()
    except OSError:
        return ""


def git_dir_of(worktree: str) -> str:
    """Return the git folder of a working tree: where its HEAD and index are."""
    mark = os.path.join(worktree, ".git")
    return os.path.join(worktree, read_line(mark).removeprefix("gitdir:").strip() or ".git")


def require_git(workspace: Path, deadline: Deadline | None = None) -> Git:
    """Return the repository around `workspace`; an error if there is none."""
    git = find_git(workspace, deadline)
    if git is None and not is_installed():
        raise UserError("git is not installed", "install git, or do without --worktree, --commit, diff and rewind")
    if git is None:
        raise UserError(f"{workspace} is not in a git repository", "make it one with `git init`, and commit once")
    return git


def git_at(worktree: str) -> Git:
    """Return the repository of a working tree, found without running git."""
    return Git(root=worktree, git_dir=git_dir_of(worktree))


def is_installed() -> bool:
    return bool(own_program("git"))


def version_line(folder: str) -> str:
    """Return the version of git as it prints it, such as "2.39.5"."""
    printed = Git(root=folder, git_dir="", policy=GitPolicy.USER).run("version")
    return printed.decode("utf-8", "replace").strip().removeprefix("git version ")


# Settings that say how files are read, and cannot name a program.
HARMLESS = frozenset({
    "core.filemode", "core.ignorecase", "core.symlinks", "core.precomposeunicode", "core.checkstat", "core.trustctime",
    "core.excludesfile", "core.attributesfile", "core.autocrlf", "core.eol", "extensions.objectformat",
})  # fmt: skip
SHA256_DIGITS = 64
# Missing objects are not fetched, and only the settings of the private folder apply.
LOOK_ENVIRONMENT = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "0",
}


def look_folder(run_id: str, env: Mapping[str, str] = os.environ) -> str:
    """Return where a run keeps its private git folder and index."""
    return os.path.join(state_folder(env, "look"), run_id)


class PrivateGitFolder:
    """The private git folder of a run, for the repository of `git`."""

    def __init__(self, git: Git, folder: str) -> None:
        self.git, self.folder = git, folder
        self._head: str | None = None

    def open(self) -> None:
        """Write the folder, unless an earlier process of this run has written it."""
        self._head = None
        if os.path.exists(f"{self.folder}/config"):
            return
        listed = self.git.run("config", "--list", "-z").decode("utf-8", "surrogateescape")
        settings = dict(entry.partition("\n")[::2] for entry in listed.split("\0") if entry)
        with report_write_errors(self.folder):
            make_folder(f"{self.folder}/refs")
            make_folder(f"{self.folder}/info")
            for name in ("info/exclude", "info/attributes"):
                with suppress(FileNotFoundError):
                    write_file(f"{self.folder}/{name}", read_given(os.path.join(self.git.common_dir, name)))
            harmless = {name: value for name, value in settings.items() if name in HARMLESS}
            replace_file(f"{self.folder}/config", _config(harmless))  # last, because it marks the folder as complete

    def at(self, head: str = "") -> Git:
        """Return git with this commit as HEAD; if it is empty, there is no HEAD."""
        if head != self._head:
            with report_write_errors(self.folder):
                replace_file(f"{self.folder}/HEAD", _head(head))
            self._head = head
        return _looking(self.git, self.folder)


@contextmanager
def look_at_objects(git: Git, name: str) -> Iterator[Git]:
    """Yield a git that reads only the repository's objects. `name` is the hash of any object: it shows the format."""
    extensions = {"extensions.objectformat": "sha256"} if len(name) == SHA256_DIGITS else {}
    with temporary_folder() as folder:
        os.mkdir(f"{folder}/refs")  # without it, git does not take the folder for one of its own
        for file, content in (("config", _config(extensions)), ("HEAD", _head(""))):
            write_file(f"{folder}/{file}", content)
        yield _looking(git, folder)


def _looking(git: Git, folder: str) -> Git:
    objects = os.path.join(git.common_dir, "objects")
    if not os.path.isdir(objects):
        raise GitError(f"{git.git_dir} is no longer a git repository", "restore it")
    private = {"GIT_DIR": folder, "GIT_COMMON_DIR": folder, "GIT_OBJECT_DIRECTORY": objects}
    return replace(git, policy=GitPolicy.LOOK, env=LOOK_ENVIRONMENT | private)


def _head(commit: str) -> bytes:
    return (commit or "ref: refs/heads/none").encode() + b"\n"


def _config(settings: Mapping[str, str]) -> bytes:
    version = 1 if "extensions.objectformat" in settings else 0
    lines = ["[core]", f"\trepositoryformatversion = {version}", "\tbare = false"]
    for name, value in settings.items():
        section, _, key = name.partition(".")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines += [f"[{section}]", f'\t{key} = "{quoted}"']
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
