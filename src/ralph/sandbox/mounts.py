"""What a sandboxed program sees of the machine: a table of mounts, and bubblewrap's arguments for it.

Everything here is computed from data, without looking at the machine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from msgspec import Struct

from ralph.process.program import Command

MountAccess = Literal["read", "visible", "write", "empty", "blank", "device", "dev", "proc"]

# Variables that lead to the user's session: keys, display, message bus.
SESSION_VARIABLES = frozenset({
    "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY",
})  # fmt: skip
IN_SANDBOX = "RALPH_SANDBOX"

# Own namespaces, and no capabilities: as root, bubblewrap would keep them, and `mount -o remount` would write outside.
NAMESPACES = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
    "--die-with-parent", "--new-session", "--cap-drop", "ALL",
)  # fmt: skip

# In a repository: what makes git run programs or leads it to another one, and ralph's checkpoints. `branches` and
# `remotes` are old forms of a remote's address: a push to a local one runs the hooks there.
GIT_READ_ONLY = ("config", "hooks", "info", "branches", "remotes", "refs/ralph")
GIT_PINNED = ("objects",)
GIT_LINKLESS = ("", "objects")
GIT_LINKLESS_TREES = ("logs", "refs")  # git outside would follow a link at any depth: to the log of feature/x, say
GIT_ABSENT = ("commondir", "config.worktree", "objects/info/alternates", "objects/info/http-alternates")
WORKTREE_READ_ONLY = ("commondir", "gitdir", "config.worktree")
RALPH_READ_ONLY = ("runs", "hook", "lock")
# No housekeeping by git inside: it would pack ralph's checkpoints, which are read-only. And no signing: no keys.
GIT_SETTINGS = (("gc.auto", "0"), ("maintenance.auto", "false"), ("commit.gpgSign", "false"), ("tag.gpgSign", "false"))

# Programs of the user below home, besides those on PATH. Read-only, and without their caches.
TOOLCHAINS = (
    ".local/bin", ".local/lib", ".local/share/claude", ".local/share/fnm", ".local/share/mise", ".local/share/pipx",
    ".local/share/pnpm", ".local/share/pypoetry", ".local/share/rtx", ".local/share/uv", ".local/pipx",
    ".asdf", ".bun/bin", ".bun/install/global", ".cargo/bin", ".deno/bin", ".dotnet", ".ghcup", ".goenv",
    ".gvm", ".jenv", ".juliaup", ".julia/juliaup", ".linuxbrew", ".nix-profile", ".nodenv", ".npm-global", ".nvm",
    ".opam", ".perlbrew", ".phpenv", ".proto", ".pyenv", ".rbenv", ".rustup", ".rvm", ".sdkman", ".tfenv", ".volta",
    "go/bin", "miniconda3", "miniforge3", "anaconda3",
)  # fmt: skip
GIT_CONFIG_FILES = (
    ".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes", ".gitignore_global",
)  # fmt: skip
# Folders that hold more than programs: only what PATH names is shown.
_SHARED_FOLDERS = (".local", ".cargo", ".bun", ".deno", "go", ".config")
_PROGRAM_FOLDERS = ("bin", "sbin", "shims")
_LIBRARY_SIGNS = ("lib", "lib64", "libexec", "share", "pyvenv.cfg", "versions", "install", "conda-meta")


class Mount(Struct, frozen=True, order=True):
    """A path inside the sandbox. `source` is what appears there, if it is not the same path outside.

    A `visible` path is read-only, and left out if it has disappeared by the time the sandbox starts.
    """

    path: str
    access: MountAccess
    source: str = ""

    def arguments(self) -> tuple[str, ...]:
        if self.access in ("empty", "dev", "proc"):
            return ("--tmpfs" if self.access == "empty" else f"--{self.access}", self.path)
        source = "/dev/null" if self.access == "blank" else self.source or self.path
        binds = {"write": "--bind", "device": "--dev-bind", "visible": "--ro-bind-try"}
        return (binds.get(self.access, "--ro-bind"), source, self.path)


class GuardedFolder(Struct, frozen=True, kw_only=True):
    """A writable folder with names in it that must stay as they are.

    `read_only` names exist and are mounted read-only. `absent` names do not exist, and are removed again if something
    appears there. `pinned` folders are writable but cannot be moved. New links in `linkless` folders, and at any depth
    in `linkless_trees`, are removed: git or ralph would follow them outside. `emptied` folders are empty inside, apart
    from the `visible` names in them, which are read-only. A `private` folder shows another folder. Nothing that is
    written to these two reaches the real folder.
    """

    folder: str
    read_only: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    linkless: tuple[str, ...] = ()
    linkless_trees: tuple[str, ...] = ()
    emptied: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    private: Mapping[str, str] = {}


class GitFolders(Struct, frozen=True, kw_only=True):
    """The git repository around a workspace. `top` is its working tree, `own` its git folder, and `common` what all
    worktrees share: the same as `own`, except in a linked worktree."""

    top: str
    own: str
    common: str
    guarded: tuple[GuardedFolder, ...] = ()
    branch_folder: str = "refs/heads/ralph"
    has_git_file: bool = False  # `.git` is a file that names the git folder, as in a submodule

    @property
    def is_linked(self) -> bool:
        return self.own != self.common

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """The parts of the shared folder that a linked worktree may write: objects, and branches next to its own."""
        return (f"{self.common}/objects", f"{self.common}/{self.branch_folder}") if self.is_linked else ()

    @property
    def private_reflogs(self) -> tuple[str, ...]:
        """The reflogs of those branches. A sandbox gets an empty folder instead: while an agent runs, git outside would
        follow a link among them, for example when another task is merged."""
        return (f"{self.common}/logs/{self.branch_folder}",) if self.is_linked else ()


class SandboxView(Struct, frozen=True, kw_only=True):
    """The mounts of a sandbox. All paths are resolved, except `aliases`: other names for resolved paths."""

    workspace: str
    home: str
    private_home: str  # appears as home
    private_tmp: str  # appears as /tmp
    hidden: tuple[str, ...] = ()  # folders that are empty inside: other homes, /run, /var/tmp, ralph's records
    blank: tuple[str, ...] = ()  # files, folders and sockets that are blanked out, wherever they are
    shown: tuple[str, ...] = ()  # what programs need of the hidden folders
    aliases: Mapping[str, str] = {}
    repository: GitFolders | None = None
    guarded: tuple[GuardedFolder, ...] = ()  # ralph's folders, and the agents' state
    writable: tuple[str, ...] = ()  # sandbox.write
    read_only: tuple[str, ...] = ()  # sandbox.read
    user_hidden: tuple[str, ...] = ()  # sandbox.hide


def mount_table(view: SandboxView, is_folder: Callable[[str], bool]) -> tuple[Mount, ...]:
    """Return all mounts, outer ones first. A later entry for the same path replaces an earlier one."""
    mounts = [Mount("/", "read"), Mount("/dev", "dev"), Mount("/proc", "proc")]
    mounts += [Mount(path, "empty") for path in view.hidden]
    mounts += [Mount("/tmp", "write", view.private_tmp), Mount(view.home, "write", view.private_home)]
    mounts += [Mount(path, "read") for path in view.shown]
    for alias, real in view.aliases.items():
        mounts.append(Mount(alias, "write" if real == view.private_home else "read", real))
    if repository := view.repository:
        mounts.append(Mount(repository.top, "read"))
        if repository.is_linked:
            mounts.append(Mount(repository.common, "read"))
        if repository.is_linked or repository.has_git_file:
            mounts.append(Mount(f"{repository.top}/.git", "read"))
        mounts += [Mount(part, "write") for part in (*repository.shared_parts, repository.own)]
        mounts += [Mount(folder, "empty") for folder in repository.private_reflogs]
    mounts.append(Mount(view.workspace, "write"))
    for guarded in guarded_folders(view):
        mounts.append(Mount(guarded.folder, "write"))
        mounts += [Mount(f"{guarded.folder}/{name}", "read") for name in guarded.read_only]
        mounts += [Mount(f"{guarded.folder}/{name}", "write", source) for name, source in guarded.private.items()]
        mounts += [Mount(f"{guarded.folder}/{name}", "write") for name in guarded.pinned]
        mounts += [Mount(f"{guarded.folder}/{name}", "empty") for name in guarded.emptied]
        mounts += [Mount(f"{guarded.folder}/{name}", "visible") for name in guarded.visible]
    for path in view.writable:
        is_device = is_inside(path, ("/dev",)) and not is_inside(path, ("/dev/shm",))
        mounts.append(Mount(path, "device" if is_device else "write"))
    mounts += [Mount(path, "read") for path in view.read_only]
    mounts += [Mount(path, "empty" if is_folder(path) else "blank") for path in (*view.blank, *view.user_hidden)]
    return tuple(_drop_redundant(_pin_parents({mount.path: mount for mount in mounts})))


class CopyNamespace(Protocol):
    """The namespace in which a sandbox is started if its workspace is a copy that covers the user's tree."""

    @property
    def main(self) -> str:
        """The user's tree."""
        ...

    @property
    def kept(self) -> Sequence[str]:
        """Paths below it that are not covered."""
        ...

    @property
    def is_in_use(self) -> bool:
        """False if the copy is seen at its own path after all."""
        ...

    def inside(self, path: str) -> str:
        """Return the name of a path in the namespace."""
        ...

    def outside(self, path: str) -> str:
        """Return where a path in the namespace can be found outside."""
        ...

    def enter(self, command: Command) -> Command: ...


def rename_mounts(
    mounts: Iterable[Mount], namespace: CopyNamespace, exists: Callable[[str], bool]
) -> tuple[Mount, ...]:
    """Return the mounts with the names that their paths have in a namespace, outer ones first.

    What the copy covers is left out: its folder is mounted as a whole, with what is mounted in it. `exists` says
    whether a path that is to be hidden exists there.
    """
    renamed: dict[str, Mount] = {}
    for mount in mounts:
        path, source = namespace.inside(mount.path), namespace.inside(mount.source)
        is_covered = path == mount.path and is_inside(path, (namespace.main,)) and not is_inside(path, namespace.kept)
        if not is_covered or (mount.access in ("empty", "blank") and exists(path)):
            renamed[path] = Mount(path, mount.access, source)
    return tuple(renamed[path] for path in sorted(renamed, key=_by_depth))


def _by_depth(path: str) -> list[str]:
    """Return a key that sorts a folder before what it contains."""
    return path.rstrip("/").split("/")


def guarded_folders(view: SandboxView) -> tuple[GuardedFolder, ...]:
    return (*view.guarded, *(view.repository.guarded if view.repository else ()))


def required_folders(view: SandboxView) -> Iterator[str]:
    """Folders that must exist before the sandbox starts: a missing folder cannot be mounted read-only."""
    if view.repository:
        yield f"{view.repository.common}/refs/ralph"
        yield from (*view.repository.shared_parts, *view.repository.private_reflogs)
    for guarded in view.guarded:
        yield from (f"{guarded.folder}/{name}" for name in (*guarded.private, *guarded.pinned))
        yield from guarded.private.values()
        if guarded.folder.endswith("/.ralph"):
            yield from (f"{guarded.folder}/runs", f"{guarded.folder}/hook")


def _pin_parents(table: dict[str, Mount]) -> dict[str, Mount]:
    """Mount every folder between a writable mount and a mount inside it.

    A folder that is not a mount point could be moved away with the mounts in it, and replaced by another.
    """
    pins: dict[str, Mount] = {}
    for mount in table.values():
        between: list[str] = []
        for folder in parents(mount.path):
            outer = table.get(folder)
            if outer is None:
                between.append(folder)
                continue
            if outer.access == "write" and not outer.source:
                pins.update((pin, Mount(pin, "write")) for pin in between)
            break
    return {**pins, **table}


def _drop_redundant(table: dict[str, Mount]) -> Iterator[Mount]:
    """Leave out mounts that change nothing: read-only inside read-only, and hidden inside hidden.

    bubblewrap creates missing mount points, and those outside ralph's folders would stay there.
    """
    for path in sorted(table, key=_by_depth):
        mount = table[path]
        outer = next((table[folder] for folder in parents(path) if folder in table), None)
        if outer and mount.access in ("empty", "blank") and (outer.access == "empty" or outer.source):
            continue
        if outer and mount.access == outer.access == "read" and not mount.source and not outer.source:
            continue
        yield mount


def parents(path: str) -> Iterator[str]:
    """Yield the folders that contain a path, the nearest first."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


def is_inside(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is one of the folders, or below one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def bubblewrap_command(
    bubblewrap: str, mounts: Sequence[Mount], cwd: str, is_online: bool, only_writable: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the command line up to the sandboxed program. With `only_writable`, all other mounts become read-only.

    If it is not `is_online`, bubblewrap writes the first process inside to descriptor 3, and that process waits for
    descriptor 4 to be closed, until its network is set up.
    """
    offline = () if is_online else ("--unshare-net", "--info-fd", "3", "--block-fd", "4")
    arguments = [argument for mount in mounts for argument in mount.arguments()]
    if only_writable is not None:  # at the end: bubblewrap makes mount points inside writable mounts
        sealed = [mount.path for mount in mounts if mount.access == "write" and mount.path not in only_writable]
        arguments += [word for path in sealed for word in ("--remount-ro", path)]
    return (bubblewrap, *NAMESPACES, *offline, *arguments, "--chdir", cwd, "--")


def program_root(folder: str, home: str, excluded: Sequence[str], exists: Callable[[str], bool]) -> str:
    """Return what to show for the programs in a folder on PATH.

    That is the parent, if it has their libraries; but never a folder that many programs share, or that contains one of
    the `excluded`.
    """
    parent, _, name = folder.rpartition("/")
    shared = (home, *(f"{home}/{other}" for other in _SHARED_FOLDERS))
    if name not in _PROGRAM_FOLDERS or not parent or parent in shared:
        return folder
    if any(is_inside(other, (parent,)) for other in (home, *excluded)):
        return folder
    return parent if any(exists(f"{parent}/{sign}") for sign in _LIBRARY_SIGNS) else folder


def sandbox_environment(env: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for programs inside: the user's variables, except those of the session, and settings for
    git."""
    inherited = {name: value for name, value in env.items() if name not in SESSION_VARIABLES}
    count = int(inherited["GIT_CONFIG_COUNT"]) if inherited.get("GIT_CONFIG_COUNT", "").isdigit() else 0
    git = {"GIT_CONFIG_COUNT": str(count + len(GIT_SETTINGS))}
    for number, (key, value) in enumerate(GIT_SETTINGS, count):
        git |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    temporary: dict[str, str] = {name: "/tmp" for name in ("TMPDIR", "TEMP", "TMP") if name in inherited}
    return {**inherited, **temporary, **git, IN_SANDBOX: "1", **more}
