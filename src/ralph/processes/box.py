"""What does a program in the box see of the machine? A table of places, made of what is asked for and what is there,
and bubblewrap's words for it: data, made without a look at the machine. Can bubblewrap make a box here? If it cannot:
why, and what is to be done about it? And what is left to do when a box is given up? It is written down, so that the
next run, or the keeper, can do it for one that was killed."""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct

from ralph.errors import UNREADABLE, UserError
from ralph.files import hold, open_file, remove_tree

How = Literal["read", "write", "empty", "blank", "device", "dev", "proc"]

# Variables that lead to a person's session: its keys, its screen, its bus.
SESSION = frozenset({"SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_DISPLAY"})
MARK = "RALPH_SANDBOX"

# What makes a box: names of its own for users, processes, hosts and shared memory, and no rights to change any of it.
# As root bubblewrap would keep its capabilities, and `mount -o remount` would write outside.
WALLS = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup",
    "--die-with-parent", "--new-session", "--cap-drop", "ALL",
)  # fmt: skip

# In a repository: what makes git run programs or leads it elsewhere, and ralph's own checkpoints.
GIT_KEPT = ("config", "hooks", "info", "refs/ralph")
GIT_PINNED = ("objects",)
GIT_LINKLESS = ("", "objects", "logs", "logs/refs", "logs/refs/heads")
GIT_ABSENT = ("commondir", "config.worktree", "objects/info/alternates", "objects/info/http-alternates")
WORKTREE_KEPT = ("commondir", "gitdir", "config.worktree")
RALPH_KEPT = ("runs", "hook", "lock")
# Git tidies up nowhere in the box: it would pack ralph's checkpoints, which it cannot write. And nobody has keys there.
GIT_SETTINGS = (("gc.auto", "0"), ("maintenance.auto", "false"), ("commit.gpgSign", "false"), ("tag.gpgSign", "false"))

# Where the programs of a person lie below home, beside those that PATH leads to. Read-only; their caches are not here.
TOOLCHAINS = (
    ".local/bin", ".local/lib", ".local/share/claude", ".local/share/fnm", ".local/share/mise", ".local/share/pipx",
    ".local/share/pnpm", ".local/share/pypoetry", ".local/share/rtx", ".local/share/uv", ".local/pipx",
    ".asdf", ".bun/bin", ".bun/install/global", ".cargo/bin", ".deno/bin", ".dotnet", ".ghcup", ".goenv",
    ".gvm", ".jenv", ".juliaup", ".julia/juliaup", ".linuxbrew", ".nix-profile", ".nodenv", ".npm-global", ".nvm",
    ".opam", ".perlbrew", ".phpenv", ".proto", ".pyenv", ".rbenv", ".rustup", ".rvm", ".sdkman", ".tfenv", ".volta",
    "go/bin", "miniconda3", "miniforge3", "anaconda3",
)  # fmt: skip
READABLE = (".gitconfig", ".config/git/config", ".config/git/ignore", ".config/git/attributes", ".gitignore_global")
# Folders that many programs share, and that hold more than programs: of these only what PATH names is shown.
_SHARED = (".local", ".cargo", ".bun", ".deno", "go", ".config")
_PROGRAM_FOLDERS = ("bin", "sbin", "shims")
_LIBRARIES = ("lib", "lib64", "libexec", "share", "pyvenv.cfg", "versions", "install", "conda-meta")


class Mount(Struct, frozen=True, order=True):
    """How a path looks from inside. `source`: what is seen there, where that is not what lies there outside."""

    path: str
    how: How
    source: str = ""

    def words(self) -> tuple[str, ...]:
        source = self.source or self.path
        match self.how:
            case "read":
                return ("--ro-bind", source, self.path)
            case "write":
                return ("--bind", source, self.path)
            case "device":
                return ("--dev-bind", source, self.path)
            case "empty":
                return ("--tmpfs", self.path)
            case "blank":
                return ("--ro-bind", "/dev/null", self.path)
            case _:
                return (f"--{self.how}", self.path)


class GuardedFolder(Struct, frozen=True):
    """A folder that can be written, and the names in it that must stay as they are: those that are `there` are shown
    read-only, those that are `missing` are taken away again where somebody has made them, and folders in it that are
    `pinned` can be written, but not be moved. New links in folders which are `linkless` are taken away, too: whoever
    writes there from outside would follow them."""

    folder: str
    there: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    linkless: tuple[str, ...] = ()


class GitFolders(Struct, frozen=True, kw_only=True):
    """The git repository around a workspace, whose working tree begins at `top`. `own` is the folder that git calls its
    own here, `common` what all worktrees share: the same, unless this is a linked one."""

    top: str
    own: str
    common: str
    kept: tuple[GuardedFolder, ...] = ()
    branch_folder: str = "refs/heads/ralph"

    @property
    def is_linked(self) -> bool:
        return self.own != self.common

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """What a linked worktree may write of that which all share: objects, and the branches beside its own."""
        parts = ("objects", self.branch_folder, f"logs/{self.branch_folder}")
        return tuple(f"{self.common}/{part}" for part in parts) if self.is_linked else ()


class Surroundings(Struct, frozen=True, kw_only=True):
    """What a box is made of: what was asked for, and what of it was found on this machine. Every path is a real one,
    but for `aliases`: other names under which real ones are known."""

    workspace: str
    home: str
    private_home: str  # a folder that stands in for home
    private_tmp: str  # a folder that stands in for /tmp
    hidden: tuple[str, ...] = ()  # folders that are empty inside: other homes, /run, /var/tmp, ralph's records
    blank: tuple[str, ...] = ()  # what is neither for others' eyes nor for their calls: files, folders and sockets
    shown: tuple[str, ...] = ()  # what programs need of that which is hidden
    aliases: Mapping[str, str] = {}
    repository: GitFolders | None = None
    kept: tuple[GuardedFolder, ...] = ()  # ralph's own folders, and the agents' state
    opened: tuple[str, ...] = ()  # what else may be written
    closed: tuple[str, ...] = ()  # what may only be read, wherever it lies
    nothing: tuple[str, ...] = ()  # what a person wants to hide


def places(around: Surroundings, is_folder: Callable[[str], bool]) -> tuple[Mount, ...]:
    """All places of a box, outer ones first. What is said later about the same path counts."""
    said = [Mount("/", "read"), Mount("/dev", "dev"), Mount("/proc", "proc")]
    said += [Mount(path, "empty") for path in around.hidden]
    said += [Mount("/tmp", "write", around.private_tmp), Mount(around.home, "write", around.private_home)]
    said += [Mount(path, "read") for path in around.shown]
    for alias, real in around.aliases.items():
        said.append(Mount(alias, "write" if real == around.private_home else "read", real))
    said += _repository(around.repository) if around.repository else ()
    said.append(Mount(around.workspace, "write"))
    for kept in all_kept(around):
        said.append(Mount(kept.folder, "write"))
        said += [Mount(f"{kept.folder}/{name}", "read") for name in kept.there]
        said += [Mount(f"{kept.folder}/{name}", "write") for name in kept.pinned]
    for path in around.opened:
        is_device = is_inside(path, ("/dev",)) and not is_inside(path, ("/dev/shm",))
        said.append(Mount(path, "device" if is_device else "write"))
    said += [Mount(path, "read") for path in around.closed]
    said += [Mount(path, "empty" if is_folder(path) else "blank") for path in (*around.blank, *around.nothing)]
    return tuple(_needed(_pinned({place.path: place for place in said})))


def all_kept(around: Surroundings) -> tuple[GuardedFolder, ...]:
    return (*around.kept, *(around.repository.kept if around.repository else ()))


def folders(around: Surroundings) -> Iterator[str]:
    """Folders that have to be there before the box is made: what is missing could not be held in place."""
    if around.repository:
        yield f"{around.repository.common}/refs/ralph"
        yield from around.repository.shared_parts
    for kept in around.kept:
        if kept.folder.endswith("/.ralph"):
            yield from (f"{kept.folder}/runs", f"{kept.folder}/hook")


def _repository(repository: GitFolders) -> Iterator[Mount]:
    yield Mount(repository.top, "read")
    if repository.is_linked:
        yield Mount(repository.common, "read")
        yield Mount(f"{repository.top}/.git", "read")
    yield from (Mount(part, "write") for part in repository.shared_parts)
    yield Mount(repository.own, "write")


def _pinned(table: dict[str, Mount]) -> dict[str, Mount]:
    """A folder that is not a place of its own could be moved away with the places in it, and another one put there: so
    every folder between a writable place and one inside it becomes a place."""
    pins: dict[str, Mount] = {}
    for place in table.values():
        between: list[str] = []
        for folder in parents(place.path):
            outer = table.get(folder)
            if outer is None:
                between.append(folder)
                continue
            if outer.how == "write" and not outer.source:
                pins.update((pin, Mount(pin, "write")) for pin in between)
            break
    return {**pins, **table}


def _needed(table: dict[str, Mount]) -> Iterator[Mount]:
    """Less what changes nothing: what is read-only in a place that is so already, and what is hidden anyway. A place
    that bubblewrap does not find it makes, and what it makes outside of our own folders would stay there."""
    for path in sorted(table, key=lambda path: path.rstrip("/").split("/")):
        place = table[path]
        outer = next((table[folder] for folder in parents(path) if folder in table), None)
        if outer and place.how in ("empty", "blank") and (outer.how == "empty" or outer.source):
            continue
        if outer and place.how == outer.how == "read" and not place.source and not outer.source:
            continue
        yield place


def parents(path: str) -> Iterator[str]:
    """The folders that a path lies in, the nearest first."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


def is_inside(path: str, folders: Iterable[str]) -> bool:
    """Whether a path is one of the folders, or lies in one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def words(bubblewrap: str, places: Sequence[Mount], cwd: str, is_online: bool) -> tuple[str, ...]:
    """The command line that makes the box, up to the program in it. Where it is not `is_online`, bubblewrap says on
    descriptor 3 which process is the first inside, and that one waits on 4 until somebody has come into its network."""
    closed = () if is_online else ("--unshare-net", "--info-fd", "3", "--block-fd", "4")
    seen = [word for place in places for word in place.words()]
    return (bubblewrap, *WALLS, *closed, *seen, "--chdir", cwd, "--")


def root_of(entry: str, home: str, apart: Sequence[str], has: Callable[[str], bool]) -> str:
    """What has to be shown for the programs in a folder on PATH: the folder around it if it `has` their libraries, but
    never one that many share, or that holds one of those that are kept `apart`."""
    around, _, name = entry.rpartition("/")
    shared = (home, *(f"{home}/{folder}" for folder in _SHARED))
    if name not in _PROGRAM_FOLDERS or not around or around in shared:
        return entry
    if any(is_inside(other, (around,)) for other in (home, *apart)):
        return entry
    return around if any(has(f"{around}/{library}") for library in _LIBRARIES) else entry


def environment(env: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """What is left of a person's environment in the box, and what there is instead."""
    kept = {name: value for name, value in env.items() if name not in SESSION}
    count = int(kept["GIT_CONFIG_COUNT"]) if kept.get("GIT_CONFIG_COUNT", "").isdigit() else 0
    git = {"GIT_CONFIG_COUNT": str(count + len(GIT_SETTINGS))}
    for at, (key, value) in enumerate(GIT_SETTINGS, count):
        git |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
    temporary: dict[str, str] = {name: "/tmp" for name in ("TMPDIR", "TEMP", "TMP") if name in kept}
    return {**kept, **temporary, **git, MARK: "1", **more}


OLDEST = (0, 4, 0)
INSTALL = "install it: `apt-get install bubblewrap` (dnf, pacman, zypper and apk call it the same)"
GUIDE = "docs/guides/sandbox.md"


class Refusing(Struct, frozen=True):
    """What on a machine can keep programs from making namespaces."""

    is_container: bool = False
    has_apparmor: bool = False
    has_no_namespaces: bool = False


def find_bubblewrap(env: Mapping[str, str], workspace: str = "") -> str:
    """Its path; never one in the workspace, where an agent may have put it."""
    if sys.platform != "linux":
        raise UserError("a box needs Linux", f"use a container, or another user: {GUIDE}")
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "bwrap")
        is_ours = not workspace or not is_inside(os.path.realpath(path), (os.path.realpath(workspace),))
        if is_ours and os.path.isabs(path) and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise UserError("a box needs bubblewrap, which is not installed", INSTALL)


def version_in(text: str) -> tuple[int, ...]:
    """The numbers in what `bwrap --version` prints."""
    return tuple(int(part) for part in text.split()[-1].split(".") if part.isdecimal()) if text.split() else ()


def refusal(said: str, refusing: Refusing) -> UserError:
    """What it means that bubblewrap could not make a box, by what it `said` and what the machine is like."""
    reason = said.strip().partition("\n")[0].removeprefix("bwrap: ")
    if "nknown option" in reason:
        return UserError(f"bubblewrap is too old: {reason}", f"version {'.'.join(map(str, OLDEST))} or later is needed")
    if any(words in reason for words in ("No space left", "Disk quota", "I/O error")):  # the last is a shell's word
        return UserError(
            f"a box has no room for its temporary files: {reason}", "free some space, or name another TMPDIR"
        )
    is_forbidden = any(word in reason for word in ("ermission", "not permitted", "amespace"))
    if is_forbidden and refusing.has_apparmor:
        return UserError(
            "AppArmor lets no program make namespaces without a profile, so there is no box",
            f"give bwrap one, as {GUIDE} shows; or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
        )
    if is_forbidden and refusing.is_container:
        return UserError(
            f"this container lets no program make namespaces, so there is no box ({reason})",
            f"the container is one: leave --sandbox out, or start it as {GUIDE} shows",
        )
    if is_forbidden and refusing.has_no_namespaces:
        return UserError(
            "the kernel lets nobody but root make namespaces, so there is no box",
            "`sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000`",
        )
    return UserError(f"bubblewrap could not make a box: {reason or 'it said nothing'}", f"see {GUIDE}")


def refusing(env: Mapping[str, str]) -> Refusing:
    """As this machine is."""
    return Refusing(
        is_container="container" in env
        or any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv"))
        or any(name in _text("/proc/1/cgroup") for name in ("docker", "kubepods", "containerd", "lxc")),
        has_apparmor=_text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1",
        has_no_namespaces=_text("/proc/sys/kernel/unprivileged_userns_clone").strip() == "0"
        or _text("/proc/sys/user/max_user_namespaces").strip() == "0",
    )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""


class BoxNote(msgspec.Struct):
    """What has to be done when a box is given up: its /tmp is removed, and what stands at the `watched` paths is put
    aside, unless nothing does, or the link that leads where it led before; and so is every link in the folders that are
    `linkless`, but for those that were there."""

    tmp: str
    watched: dict[str, str | None] = {}
    linkless: dict[str, list[str]] = {}


class BoxNoteFile:
    """Where a box keeps its note, for those who come after a sudden end: it is locked for as long as the box lives."""

    def __init__(self, path: str, fd: int) -> None:
        self._path, self._fd, self._written = path, fd, b""

    @classmethod
    def open(cls, path: str) -> "BoxNoteFile":
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        hold(fd, path)
        return cls(path, fd)

    def write(self, note: BoxNote) -> None:
        text = msgspec.json.encode(note)
        if text != self._written:
            self._written = text
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)

    def close(self) -> None:
        os.unlink(self._path)
        os.close(self._fd)


def links_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def put_aside(note: BoxNote, folder: str) -> Iterator[tuple[str, str]]:
    """What was planted, and where it is now. Links come first: they may lie on the way to the rest."""
    for place, known in note.linkless.items():
        for name in links_in(place):
            if name not in known and f"{place}/{name}" not in note.watched:
                yield f"{place}/{name}", _moved(f"{place}/{name}", folder)
    for path, link in note.watched.items():
        if os.path.lexists(path) and not (os.path.islink(path) and os.readlink(path) == link):
            yield path, _moved(path, folder)
            if link is not None:
                os.symlink(link, path)


def _moved(path: str, folder: str) -> str:
    from shutil import move

    kept = f"{folder}/{time.time_ns()}-{os.path.basename(path)}"
    move(path, kept)
    return kept


def tidy_up(folder: str) -> None:
    """Does what is left to do after runs that were killed, and could not do it themselves."""
    try:
        names = os.listdir(f"{folder}/open")
    except FileNotFoundError:
        return
    for name in names:
        path = f"{folder}/open/{name}"
        # Whoever holds the lock lives; who cannot be read was killed before it began.
        with suppress(OSError, *UNREADABLE), open(open_file(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
            note = msgspec.json.decode(file.read(), type=BoxNote)
            list(put_aside(note, f"{folder}/planted"))
            remove(note.tmp)


def remove(folder: str) -> None:
    """A folder with all that is in it, as far as that can be."""
    with suppress(OSError):
        remove_tree(folder)
