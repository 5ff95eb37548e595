"""Find out what a sandbox on this machine must show and hide.

It shows programs and the repository; it hides ralph's records, the user's home, and files and sockets of other users.
This module looks at the machine, but creates and starts nothing.
"""

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from ralph.errors import UserError
from ralph.files import read_head
from ralph.sandbox import mounts
from ralph.sandbox.mounts import GitFolders, GuardedFolder, SandboxView, is_inside, parents, program_root

HIDDEN_FOLDERS = ("/home", "/root", "/run", "/var/run", "/var/tmp")
_CERTIFICATES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
_INTERPRETERS = ("sh", "bash", "python", "python3", "node", "ruby", "perl", "deno", "bun")
_MOST_BYTES = 1 << 20
RALPH_BRANCHES = "refs/heads/ralph"


class AgentState(Struct, frozen=True):
    """A folder in which an agent keeps its login and its sessions. The `read_only` names in it are settings. Instead of
    the `private` folders in it, other folders appear; the `shared` folders in those are the real ones."""

    folder: str
    read_only: tuple[str, ...] = ()
    private: Mapping[str, str] = {}
    shared: tuple[str, ...] = ()


class SandboxRequest(Struct, frozen=True, kw_only=True):
    """What the sandbox is for. `records` is ralph's state folder, `ralph_folders` are more folders with a `.ralph`,
    `programs` are the command lines that will be started in it. If it is `sealed`, they can write only to the workspace
    and to /tmp: both are removed with it."""

    workspace: str
    env: Mapping[str, str]
    records: str
    private_home: str
    private_tmp: str
    ralph_folders: tuple[str, ...] = ()
    run_folder: str = ""
    programs: tuple[tuple[str, ...], ...] = ()
    states: tuple[AgentState, ...] = ()
    agent_files: tuple[str, ...] = ()  # settings of the agents outside their state folder
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    sealed: bool = False


def find_view(request: SandboxRequest) -> SandboxView:
    """Return the mounts of the sandbox. Raises UserError if they would hide nothing."""
    workspace = os.path.realpath(request.workspace)
    named_home = request.env.get("HOME") or os.path.expanduser("~")
    home = os.path.realpath(named_home)
    refuse_whole_machine(request.workspace, request.env)
    hidden = [
        path for path in (*HIDDEN_FOLDERS, request.records) if os.access(path, os.X_OK) and not os.path.islink(path)
    ]
    read, write = (_existing_paths(paths, workspace, home) for paths in (request.read, request.write))
    hide = tuple(path for path in resolve_paths(request.hide, workspace, home) if os.path.lexists(path))
    paths = _ShownPaths(
        (*hidden, home, "/tmp", "/dev/shm"), home, (workspace, *write), os.path.realpath(request.records)
    )
    paths.add_path_folders(request.env.get("PATH", os.defpath))
    paths.add(f"{home}/{name}" for name in mounts.TOOLCHAINS)
    paths.add(_git_settings(request.env, home))
    paths.add(request.env.get(name, "") for name in _CERTIFICATES)
    paths.add((sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(__file__))))
    for argv in request.programs:
        paths.add_program(argv)
    paths.add(("/etc/resolv.conf", request.run_folder, *request.agent_files))
    aliases = paths.aliases
    if named_home.rstrip("/") != home and os.path.isabs(named_home):
        aliases[os.path.normpath(named_home)] = request.private_home
    view = SandboxView(
        workspace=workspace,
        home=home,
        private_home=request.private_home,
        private_tmp=request.private_tmp,
        hidden=tuple(hidden),
        shown=tuple(paths.paths),
        aliases=aliases,
        writable=write,
        read_only=read,
        user_hidden=hide,
    )
    return refresh_view(view, request)


def refresh_view(view: SandboxView, request: SandboxRequest) -> SandboxView:
    """Return the view with what may have changed since: guarded folders, sockets, files that only root may read."""
    # The branches that a linked worktree may write stay those of the start: an agent can change its HEAD.
    chosen = view.repository.branch_folder if view.repository else ""
    repository = _find_repository(view.workspace, chosen, is_inside(view.workspace, (request.records,)))
    ralph = [
        _guard_ralph(folder)
        for folder in dict.fromkeys((view.workspace, *request.ralph_folders))
        if os.path.isdir(f"{folder}/.ralph")
    ]
    states = [state for state in request.states if os.path.lexists(state.folder)]
    for folder in (state.folder for state in states):
        if os.path.islink(folder) or os.path.realpath(folder) != folder:
            raise UserError(
                f"{folder} is a link to {os.path.realpath(folder)}, which a sandbox cannot guard",
                "put the folder itself there, or name it with the agent's own variable",
            )
    # A workspace below the top of its repository must not become a repository itself.
    is_nested = repository is not None and repository.top != view.workspace
    nested = [GuardedFolder(folder=view.workspace, absent=(".git",))] if is_nested else []
    secrets = [path for path in find_root_only_files() if os.path.exists(path)]
    kernel = ("/proc/sys",) if os.geteuid() == 0 else ()  # root could write there even without capabilities
    covered = (*view.hidden, view.home, "/tmp", "/dev", "/proc", "/sys", view.workspace, *view.writable)
    return replace(
        view,
        shown=tuple(path for path in view.shown if os.path.exists(path)),
        repository=repository,
        guarded=(*ralph, *map(_guard_state, states), *nested),
        read_only=(*(path for path in view.read_only if path not in kernel), *kernel),
        blank=(*secrets, *_find_sockets(covered)),
    )


def refuse_whole_machine(workspace: str, env: Mapping[str, str]) -> None:
    """Raise if the workspace contains the user's home."""
    workspace, home = os.path.realpath(workspace), os.path.realpath(env.get("HOME") or os.path.expanduser("~"))
    if workspace == "/" or is_inside(home, (workspace,)):
        what = "the whole machine" if workspace == "/" else "all of your home"
        raise UserError(
            f"a sandbox that contains {what} protects nothing: {workspace}", "name a project's folder with -C DIR"
        )


def resolve_paths(paths: Sequence[str], workspace: str, home: str) -> Iterator[str]:
    """Resolve paths of the settings: relative ones are in the workspace, `~` is `home`."""
    for path in paths:
        full = home + path[1:] if path == "~" or path.startswith("~/") else path
        yield os.path.realpath(os.path.join(workspace, full))


def _existing_paths(paths: Sequence[str], workspace: str, home: str) -> tuple[str, ...]:
    """Resolve paths of the settings; raise if one does not exist, or would show everything."""
    resolved = tuple(resolve_paths(paths, workspace, home))
    for path, full in zip(paths, resolved, strict=True):
        if not os.path.exists(full):
            raise UserError(f"sandbox: no such path: {path}", "remove it from the settings, or create it")
        if full in ("/", home):
            raise UserError(f"sandbox: {path} would leave nothing hidden", "name the folders in it that are needed")
    return resolved


class _ShownPaths:
    """Paths that must stay visible in the `hidden` folders, and other names by which programs ask for them."""

    def __init__(self, hidden: Sequence[str], home: str, writable: Sequence[str], records: str) -> None:
        self.paths: dict[str, None] = {}
        self.aliases: dict[str, str] = {}
        self._hidden, self._home, self._writable, self._excluded = hidden, home, writable, (*writable, records)

    def add(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._add(path)

    def _add(self, path: str) -> None:
        real = os.path.realpath(path)
        if not os.path.isabs(path) or not os.path.exists(real) or real in (*self._hidden, "/"):
            return
        alias = os.path.abspath(path)
        if is_inside(real, self._hidden) and not is_inside(real, self._writable):
            self.paths[real] = None
        covered = (*self.paths, *self._writable, *self.aliases)
        if alias != real and is_inside(alias, self._hidden) and not is_inside(alias, covered):
            self.aliases[alias] = real

    def add_path_folders(self, path: str) -> None:
        for folder in dict.fromkeys(path.split(os.pathsep)):
            if os.path.isabs(folder) and os.path.isdir(folder):
                self._add_program_folder(folder)
                self._add(folder)

    def _add_program_folder(self, folder: str) -> None:
        """Show a folder of programs with their libraries, under its real and its given name."""
        names = (os.path.realpath(folder), os.path.abspath(folder))
        real, literal = (program_root(name, self._home, self._excluded, os.path.exists) for name in names)
        self._add(real)
        if os.path.realpath(literal) == real:
            self._add(literal)

    def add_program(self, argv: Sequence[str]) -> None:
        """Show the program of a command line, the script if it is an interpreter, and what both need."""
        files = [argv[0]]
        if os.path.basename(argv[0]) in _INTERPRETERS:
            files += [word for word in argv[1:] if not word.startswith("-")][:1]
        for file in files:
            if os.path.isabs(file) and os.path.isfile(file):
                self._add(_package_of(os.path.abspath(file)))
                self._add(file)
                self._add(_package_of(os.path.realpath(file)))
                if interpreter := _interpreter_of(file):
                    self._add_program_folder(os.path.dirname(interpreter))
                    self._add_program_folder(os.path.dirname(os.path.realpath(interpreter)))


def _package_of(file: str) -> str:
    """Return what a program needs: the file itself, or the `node_modules` that it is a part of."""
    before, separator, _ = file.partition("/node_modules/")
    return f"{before}/node_modules" if separator else file


def _interpreter_of(file: str) -> str:
    """Return the absolute path after `#!`; empty if there is none."""
    line = read_start(file, 256).partition(b"\n")[0]
    word = os.fsdecode(line[2:].split(maxsplit=1)[0]) if line.startswith(b"#!") and line[2:].strip() else ""
    return word if os.path.isabs(word) else ""


def _git_settings(env: Mapping[str, str], home: str) -> Iterator[str]:
    """Yield the user's git settings and the files that they include: without them git cannot commit."""
    waiting = [env.get("GIT_CONFIG_GLOBAL", ""), *(f"{home}/{name}" for name in mounts.GIT_CONFIG_FILES)]
    visited: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path and path not in visited and len(visited) < 32 and os.path.isfile(path):
            visited.add(path)
            yield path
            for line in read_start(path, _MOST_BYTES).decode("utf-8", "replace").splitlines():
                key, _, value = line.partition("=")
                if key.strip().lower() in ("path", "excludesfile", "attributesfile", "template"):
                    name = value.strip().strip('"')
                    name = home + name[1:] if name.startswith("~/") else name
                    waiting.append(os.path.join(os.path.dirname(path), name))


def read_start(path: str, size: int) -> bytes:
    """Return up to `size` bytes of a file; empty if it cannot be read."""
    try:
        return read_head(path, size)
    except OSError:
        return b""


def _guard(folder: str, names: Iterable[str]) -> GuardedFolder:
    """Guard names in a folder. A link counts as absent: the agent could replace it."""
    read_only: list[str] = []
    absent: list[str] = []
    for name in names:
        path = f"{folder}/{name}"
        (read_only if os.path.exists(path) and not os.path.islink(path) else absent).append(name)
    return GuardedFolder(folder=folder, read_only=tuple(read_only), absent=tuple(absent))


def _guard_state(state: AgentState) -> GuardedFolder:
    guarded = _guard(state.folder, state.read_only)
    linked = [name for name in (*state.private, *state.shared) if os.path.islink(f"{state.folder}/{name}")]
    return replace(
        guarded,
        absent=(*guarded.absent, *linked),
        private={name: source for name, source in state.private.items() if name not in linked},
        pinned=tuple(name for name in state.shared if not {name, name.partition("/")[0]} & {*linked}),
    )


def _guard_ralph(folder: str) -> GuardedFolder:
    own = f"{folder}/.ralph"
    if os.path.islink(own):
        raise UserError(f"{own} is a link, which a sandbox cannot guard", "put a folder there")
    names = (name for name in os.listdir(own) if name.startswith("settings"))
    settings = {"settings.json", "settings.local.json", *names}
    return replace(_guard(own, (*mounts.RALPH_READ_ONLY, *sorted(settings))), linkless=("",))


def _find_repository(workspace: str, branch_folder: str, is_ralphs: bool) -> GitFolders | None:
    """Return the repository that git would find. Looks without git, which would obey the repository's settings.

    `branch_folder` is the folder of branches that a linked worktree may write; if it is empty, the one of its branch.
    """
    for top in (workspace, *parents(workspace)):
        mark = f"{top}/.git"
        if os.path.isdir(mark):
            repository = _plain_repository(top, os.path.realpath(mark))
            if os.path.islink(mark) and top == workspace:  # the agent could make it lead to another repository
                link = GuardedFolder(folder=top, absent=(".git",))
                repository = replace(repository, guarded=(*repository.guarded, link))
            return repository
        if os.path.isfile(mark):
            return _find_linked(top, mark, branch_folder, is_ralphs)
    return None


def _plain_repository(top: str, git_dir: str) -> GitFolders:
    guarded = (_guard_git(git_dir, mounts.GIT_READ_ONLY), *_guard_submodules(git_dir))
    return GitFolders(top=top, own=git_dir, common=git_dir, guarded=guarded)


def _find_linked(top: str, mark: str, branch_folder: str, is_ralphs: bool) -> GitFolders | None:
    """Return the repository of a linked worktree or a submodule, whose `.git` is a file that names a folder."""
    text = read_start(mark, 4096).decode("utf-8", "surrogateescape")
    if not text.startswith("gitdir:"):
        return None
    own = os.path.realpath(os.path.join(top, text.removeprefix("gitdir:").strip()))
    shared = read_start(f"{own}/commondir", 4096).decode("utf-8", "surrogateescape").strip()
    if not shared:
        return replace(_plain_repository(top, own), has_git_file=True)
    common = os.path.realpath(os.path.join(own, shared))
    folder = branch_folder or _branch_folder(f"{own}/HEAD", is_ralphs)
    alternates = ("info/alternates", "info/http-alternates")
    return GitFolders(
        top=top,
        own=own,
        common=common,
        guarded=(
            replace(_guard(own, mounts.WORKTREE_READ_ONLY), linkless=("",), linkless_trees=mounts.GIT_LINKLESS_TREES),
            GuardedFolder(folder=f"{common}/objects", absent=alternates, linkless=("",)),
            GuardedFolder(folder=f"{common}/{folder}", linkless_trees=("",)),
            *_guard_submodules(own),
        ),
        branch_folder=folder,
    )


def _branch_folder(head: str, is_ralphs: bool) -> str:
    """Return the folder of the branch that is checked out.

    An earlier run's agent may have written this HEAD: it can name no folder outside of refs/heads, and in a worktree
    that ralph made, none but ralph's.
    """
    text = read_start(head, 4096).decode("utf-8", "surrogateescape").strip()
    folder = os.path.normpath(text.removeprefix("ref: ")).rpartition("/")[0]
    top = RALPH_BRANCHES if is_ralphs else "refs/heads"
    return folder if text.startswith("ref: ") and is_inside(folder, (top,)) else RALPH_BRANCHES


def _guard_git(folder: str, names: Iterable[str]) -> GuardedFolder:
    """Guard a git folder.

    A git in another linked worktree obeys what is in its folder below `worktrees`, and one may be added at any time.
    """
    worktrees = [f"worktrees/{entry.name}" for entry in _folders_in(f"{folder}/worktrees")]
    return replace(
        _guard(folder, (*names, *mounts.GIT_ABSENT)),
        emptied=("worktrees",),
        visible=tuple(worktrees),
        pinned=mounts.GIT_PINNED,
        linkless=mounts.GIT_LINKLESS,
        linkless_trees=mounts.GIT_LINKLESS_TREES,
    )


def _guard_submodules(git_dir: str) -> Iterator[GuardedFolder]:
    """Guard the repositories of submodules: git outside enters them, and obeys their settings."""
    waiting = [f"{git_dir}/modules"]
    while waiting:
        for entry in _folders_in(waiting.pop()):
            if os.path.isfile(f"{entry.path}/HEAD"):
                yield _guard_git(entry.path, mounts.GIT_READ_ONLY[:-1])
                yield from _guard_submodules(entry.path)
            else:
                waiting.append(entry.path)


def _folders_in(folder: str) -> Iterator["os.DirEntry[str]"]:
    """Yield the folders in a folder, without links; nothing if it does not exist."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from (entry for entry in entries if entry.is_dir(follow_symlinks=False))


@cache
def find_root_only_files() -> tuple[str, ...]:
    """Return the files below /etc that only root may read: a sandboxed root is still their owner."""
    return tuple(_files_closed_to_others("/etc")) if os.geteuid() == 0 else ()


def _files_closed_to_others(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IROTH:
            yield from _files_closed_to_others(entry.path)
        elif not stat.S_ISLNK(mode) and not mode & stat.S_IROTH and entry.stat(follow_symlinks=False).st_size:
            yield entry.path


def _find_sockets(covered: Sequence[str]) -> Iterator[str]:
    """Yield sockets outside the `covered` folders. A read-only mount does not keep a program from connecting."""
    for line in read_start("/proc/net/unix", _MOST_BYTES).decode("utf-8", "surrogateescape").splitlines()[1:]:
        path = line.split(maxsplit=7)[-1]
        if path.startswith("/") and not is_inside(path, covered):
            try:
                if stat.S_ISSOCK(os.stat(path).st_mode):
                    yield os.path.realpath(path)
            except OSError:  # gone, or out of reach
                continue
