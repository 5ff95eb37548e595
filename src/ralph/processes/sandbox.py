"""How is the box of a run made, proven and looked after? A real one is tried before anything is spent; what was planted
in it is put aside after each process; and when the run is over nothing is left of it but caches. And what of this
machine does it need, and must it hide? Looked up before anything is started: the places of programs, of the repository
and of ralph's own records, and what other people and services have left in the open."""

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
from ralph.processes import box, network
from ralph.processes.box import (
    BoxNote,
    BoxNoteFile,
    GitFolders,
    GuardedFolder,
    Mount,
    Surroundings,
    find_bubblewrap,
    is_inside,
    links_in,
    parents,
    put_aside,
    refusal,
    refusing,
    remove,
    root_of,
    tidy_up,
)
from ralph.processes.keeper import Keeper, KeeperLost
from ralph.processes.network import Network, Reachable
from ralph.processes.process import Limits, run_command
from ralph.processes.program import Command, find_program

HIDDEN = ("/home", "/root", "/run", "/var/run", "/var/tmp")
_CERTIFICATES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
_INTERPRETERS = ("sh", "bash", "python", "python3", "node", "ruby", "perl", "deno", "bun")
_MOST_BYTES = 1 << 20


class AgentState(Struct, frozen=True):
    """A folder in which an agent keeps its login and its sessions. `kept` are the names in it that it only reads."""

    folder: str
    kept: tuple[str, ...] = ()


class Wanted(Struct, frozen=True, kw_only=True):
    """What a box is wanted for. `records` is ralph's state folder, `ours` are folders with a `.ralph` or with runs;
    `programs` are the command lines that will be started in it."""

    workspace: str
    env: Mapping[str, str]
    records: str
    private_home: str
    private_tmp: str
    ours: tuple[str, ...] = ()
    run_folder: str = ""
    programs: tuple[tuple[str, ...], ...] = ()
    states: tuple[AgentState, ...] = ()
    configuration: tuple[str, ...] = ()  # of the agents, elsewhere than in their state
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()


def look_around(wanted: Wanted) -> Surroundings:
    """Everything that a box is made of, as it is now; an error where it would hold nothing back."""
    workspace = os.path.realpath(wanted.workspace)
    spoken = wanted.env.get("HOME") or os.path.expanduser("~")
    home = os.path.realpath(spoken)
    refuse_what_holds_all(wanted.workspace, wanted.env)
    hidden = [path for path in (*HIDDEN, wanted.records) if os.access(path, os.X_OK) and not os.path.islink(path)]
    zone = (*hidden, home, "/tmp", "/dev/shm")
    read, write = (_given(paths, workspace, home) for paths in (wanted.read, wanted.write))
    hide = tuple(path for path in _full(wanted.hide, workspace, home) if os.path.lexists(path))
    shown = _Shown(zone, home, (workspace, *write), os.path.realpath(wanted.records))
    shown.programs_on(wanted.env.get("PATH", os.defpath))
    shown.all(f"{home}/{name}" for name in box.TOOLCHAINS)
    shown.all(_git_settings(wanted.env, home))
    shown.all(wanted.env.get(name, "") for name in _CERTIFICATES)
    shown.all((sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(__file__))))
    for argv in wanted.programs:
        shown.program(argv)
    shown.all(("/etc/resolv.conf", wanted.run_folder, *wanted.configuration))
    aliases = shown.aliases
    if spoken.rstrip("/") != home and os.path.isabs(spoken):
        aliases[os.path.normpath(spoken)] = wanted.private_home
    around = Surroundings(
        workspace=workspace,
        home=home,
        private_home=wanted.private_home,
        private_tmp=wanted.private_tmp,
        hidden=tuple(hidden),
        shown=tuple(shown.paths),
        aliases=aliases,
        opened=write,
        closed=read,
        nothing=hide,
    )
    return as_of_now(around, wanted)


def as_of_now(around: Surroundings, wanted: Wanted) -> Surroundings:
    """The same with what may have changed since: what has to be kept in place, and what must not be seen."""
    repository = _repository(around.workspace)
    ours = [
        _ralph(folder)
        for folder in dict.fromkeys((around.workspace, *wanted.ours))
        if os.path.isdir(f"{folder}/.ralph")
    ]
    states = [_state(state) for state in wanted.states if os.path.lexists(state.folder)]
    # In a folder of a repository, another one in that folder would come between.
    between = (
        [GuardedFolder(around.workspace, missing=(".git",))]
        if repository and repository.top != around.workspace
        else []
    )
    secrets = [path for path in for_root_alone() if os.path.exists(path)]
    kernel = ("/proc/sys",) if os.geteuid() == 0 else ()  # writable for its owner, whatever else was taken from him
    seen = (*around.hidden, around.home, "/tmp", "/dev", "/proc", "/sys", around.workspace, *around.opened)
    return replace(
        around,
        shown=tuple(path for path in around.shown if os.path.exists(path)),
        repository=repository,
        kept=(*ours, *states, *between),
        closed=(*(path for path in around.closed if path not in kernel), *kernel),
        blank=(*secrets, *_sockets(seen)),
    )


def refuse_what_holds_all(workspace: str, env: Mapping[str, str]) -> None:
    workspace, home = os.path.realpath(workspace), os.path.realpath(env.get("HOME") or os.path.expanduser("~"))
    if workspace == "/" or is_inside(home, (workspace,)):
        what = "the whole machine" if workspace == "/" else "all of your home"
        raise UserError(f"a box around {what} holds nothing back: {workspace}", "name a project's folder with -C DIR")


def _full(paths: Sequence[str], workspace: str, home: str) -> Iterator[str]:
    """Paths of the settings: relative ones lie in the workspace."""
    for path in paths:
        own = home + path[1:] if path == "~" or path.startswith("~/") else path
        yield os.path.realpath(os.path.join(workspace, own))


def _given(paths: Sequence[str], workspace: str, home: str) -> tuple[str, ...]:
    found = tuple(_full(paths, workspace, home))
    for path, full in zip(paths, found, strict=True):
        if not os.path.exists(full):
            raise UserError(f"sandbox: no such path: {path}", "take it out of the settings, or make it")
        if full in ("/", home):
            raise UserError(f"sandbox: {path} would leave nothing hidden", "name the folders in it that are needed")
    return found


class _Shown:
    """What must be seen of the places that are hidden, and the names under which it is asked for."""

    def __init__(self, zone: Sequence[str], home: str, opened: Sequence[str], records: str) -> None:
        self.paths: dict[str, None] = {}
        self.aliases: dict[str, str] = {}
        self._zone, self._home, self._opened, self._apart = zone, home, opened, (*opened, records)

    def all(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._add(path)

    def _add(self, path: str) -> None:
        real = os.path.realpath(path)
        if not os.path.isabs(path) or not os.path.exists(real) or real in (*self._zone, "/"):
            return
        alias = os.path.abspath(path)
        if is_inside(real, self._zone) and not is_inside(real, self._opened):
            self.paths[real] = None
        known = (*self.paths, *self._opened, *self.aliases)
        if alias != real and is_inside(alias, self._zone) and not is_inside(alias, known):
            self.aliases[alias] = real

    def programs_on(self, path: str) -> None:
        """The folders on PATH. One that is not there is none of our business."""
        for entry in dict.fromkeys(path.split(os.pathsep)):
            if os.path.isabs(entry) and os.path.isdir(entry):
                self._folder(entry)
                self._add(entry)

    def _folder(self, programs: str) -> None:
        """A folder of programs, and what they stand on: links in the one lead to the other, by whatever name."""
        ways = (os.path.realpath(programs), os.path.abspath(programs))
        root, named = (root_of(way, self._home, self._apart, os.path.exists) for way in ways)
        self._add(root)
        if os.path.realpath(named) == root:
            self._add(named)

    def program(self, argv: Sequence[str]) -> None:
        """The file that is started, the script where that is an interpreter, and what they stand on."""
        files = [argv[0]]
        if os.path.basename(argv[0]) in _INTERPRETERS:
            files += [word for word in argv[1:] if not word.startswith("-")][:1]
        for file in files:
            if os.path.isabs(file) and os.path.isfile(file):
                self._add(_package_of(os.path.abspath(file)))
                self._add(file)
                self._add(_package_of(os.path.realpath(file)))
                if interpreter := _interpreter_of(file):
                    self._folder(os.path.dirname(interpreter))
                    self._folder(os.path.dirname(os.path.realpath(interpreter)))


def _package_of(file: str) -> str:
    """What has to be there for a program to run: itself, or all of the packages that it is one of."""
    before, found, _ = file.partition("/node_modules/")
    return f"{before}/node_modules" if found else file


def _interpreter_of(file: str) -> str:
    line = _head(file, 256).partition(b"\n")[0]
    word = os.fsdecode(line[2:].split(maxsplit=1)[0]) if line.startswith(b"#!") and line[2:].strip() else ""
    return word if os.path.isabs(word) else ""


def _git_settings(env: Mapping[str, str], home: str) -> Iterator[str]:
    """The person's settings of git, and the files that they name: without these, nobody knows who commits."""
    waiting = [env.get("GIT_CONFIG_GLOBAL", ""), *(f"{home}/{name}" for name in box.READABLE)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path and path not in seen and len(seen) < 32 and os.path.isfile(path):
            seen.add(path)
            yield path
            for line in _head(path, _MOST_BYTES).decode("utf-8", "replace").splitlines():
                key, _, value = line.partition("=")
                if key.strip().lower() in ("path", "excludesfile", "attributesfile", "template"):
                    name = value.strip().strip('"')
                    name = home + name[1:] if name.startswith("~/") else name
                    waiting.append(os.path.join(os.path.dirname(path), name))


def _head(path: str, size: int) -> bytes:
    try:
        return read_head(path, size)
    except OSError:
        return b""


def _state(state: AgentState) -> GuardedFolder:
    if os.path.islink(state.folder) or os.path.realpath(state.folder) != state.folder:
        raise UserError(
            f"{state.folder} is a link to {os.path.realpath(state.folder)}, which a box cannot hold in place",
            "put the folder itself there, or name it with the agent's own variable",
        )
    return _kept(state.folder, state.kept)


def _kept(folder: str, names: Iterable[str]) -> GuardedFolder:
    """A link is as good as missing: the agent could put another in its place."""
    there: list[str] = []
    missing: list[str] = []
    for name in names:
        path = f"{folder}/{name}"
        (there if os.path.exists(path) and not os.path.islink(path) else missing).append(name)
    return GuardedFolder(folder, tuple(there), tuple(missing))


def _ralph(folder: str) -> GuardedFolder:
    own = f"{folder}/.ralph"
    if os.path.islink(own):
        raise UserError(f"{own} is a link, which a box cannot hold in place", "put a folder there")
    settings = {
        "settings.json",
        "settings.local.json",
        *(name for name in os.listdir(own) if name.startswith("settings")),
    }
    return replace(_kept(own, (*box.RALPH_KEPT, *sorted(settings))), linkless=("",))


def _repository(workspace: str) -> GitFolders | None:
    """The repository that git would find from the workspace. Read without git: its settings have no say in this."""
    for top in (workspace, *parents(workspace)):
        mark = f"{top}/.git"
        if os.path.isdir(mark):
            own = os.path.realpath(mark)
            return GitFolders(top=top, own=own, common=own, kept=(_git_folder(own, box.GIT_KEPT), *_modules(own)))
        if os.path.isfile(mark):
            return _linked(top, mark)
    return None


def _linked(top: str, mark: str) -> GitFolders | None:
    """A linked worktree, or a submodule, whose `.git` is a file that names a folder."""
    text = _head(mark, 4096).decode("utf-8", "surrogateescape")
    if not text.startswith("gitdir:"):
        return None
    own = os.path.realpath(os.path.join(top, text.removeprefix("gitdir:").strip()))
    shared = _head(f"{own}/commondir", 4096).decode("utf-8", "surrogateescape").strip()
    if not shared:
        return GitFolders(top=top, own=own, common=own, kept=(_git_folder(own, box.GIT_KEPT), *_modules(own)))
    common = os.path.realpath(os.path.join(own, shared))
    head = _head(f"{own}/HEAD", 4096).decode("utf-8", "surrogateescape").strip()
    branch = head.removeprefix("ref: ") if head.startswith("ref: refs/heads/") else "refs/heads/ralph/"
    return GitFolders(
        top=top,
        own=own,
        common=common,
        kept=(
            replace(_kept(own, box.WORKTREE_KEPT), linkless=("", "logs")),
            GuardedFolder(f"{common}/objects", missing=("info/alternates", "info/http-alternates"), linkless=("",)),
        ),
        branch_folder=branch.rpartition("/")[0],
    )


def _git_folder(folder: str, names: Iterable[str]) -> GuardedFolder:
    return replace(_kept(folder, (*names, *box.GIT_ABSENT)), pinned=box.GIT_PINNED, linkless=box.GIT_LINKLESS)


def _modules(git_dir: str) -> Iterator[GuardedFolder]:
    """The repositories of submodules: git goes into them from outside, with their own settings."""
    waiting = [f"{git_dir}/modules"] if os.path.isdir(f"{git_dir}/modules") else []
    while waiting:
        for entry in os.scandir(waiting.pop()):
            if not entry.is_dir(follow_symlinks=False):
                continue
            if os.path.isfile(f"{entry.path}/HEAD"):
                yield _git_folder(entry.path, box.GIT_KEPT[:-1])
                yield from _modules(entry.path)
            else:
                waiting.append(entry.path)


@cache
def for_root_alone() -> tuple[str, ...]:
    """Inside, root is still the owner of what only root may read. A person finds these closed anyway."""
    return tuple(_closed_to_others("/etc")) if os.geteuid() == 0 else ()


def _closed_to_others(folder: str) -> Iterator[str]:
    for entry in os.scandir(folder):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode) and mode & stat.S_IROTH:
            yield from _closed_to_others(entry.path)
        elif not stat.S_ISLNK(mode) and not mode & stat.S_IROTH and entry.stat(follow_symlinks=False).st_size:
            yield entry.path


def _sockets(zone: Sequence[str]) -> Iterator[str]:
    """Where services listen in the open. A read-only place keeps nobody from talking to them."""
    for line in _head("/proc/net/unix", _MOST_BYTES).decode("utf-8", "surrogateescape").splitlines()[1:]:
        path = line.split(maxsplit=7)[-1]
        if path.startswith("/") and not is_inside(path, zone):
            try:
                if stat.S_ISSOCK(os.stat(path).st_mode):
                    yield os.path.realpath(path)
            except OSError:  # gone, or out of reach
                continue


_UNTOUCHED = b"untouched\n"
_PROBE = 'echo inside > /tmp/.probe && cat /tmp/.probe && rm /tmp/.probe; echo touched > "$1"'
_TO_PROBE = 60.0  # seconds


class Sandbox:
    """The box in which everything of a run is started. `folder` is its own, where nothing inside can see it."""

    def __init__(
        self,
        bubblewrap: str,
        wanted: Wanted,
        around: Surroundings,
        *,
        folder: str,
        note_file: "BoxNoteFile",
        net: Network | None,
        keeper: Keeper,
    ) -> None:
        self._bubblewrap, self._wanted, self._around = bubblewrap, wanted, around
        self._folder, self._note_file, self._network, self._keeper = folder, note_file, net, keeper
        self._note = BoxNote(wanted.private_tmp)

    def command(self, command: Command, scratch: str = "") -> Command:
        """The same command, to be started in the box. `scratch` is a folder of ralph's that it may write to."""
        program = find_program(command.argv[0], command.env, command.cwd)
        self._around = as_of_now(self._around, self._wanted)
        around = self._around
        if scratch:
            around = replace(around, opened=(*around.opened, os.path.realpath(scratch)))
        places = box.places(around, os.path.isdir)
        _clear_the_way(around, places)
        self._note.watched, self._note.linkless = {}, {}
        for kept in box.all_kept(around):
            for path in (f"{kept.folder}/{name}" for name in kept.missing):  # nothing may appear there but such a link
                self._note.watched[path] = os.readlink(path) if os.path.islink(path) else None
            for path in (f"{kept.folder}/{name}".rstrip("/") for name in kept.linkless):
                self._note.linkless[path] = links_in(path)
        self._note_file.write(self._note)
        fds = self._network.attach() if self._network else ()
        words = box.words(self._bubblewrap, places, os.path.realpath(command.cwd), is_online=not fds)
        env = box.environment(command.env, network.environment() if self._network else {})
        return replace(command, argv=(*words, program, *command.argv[1:]), env=env, fds=fds, boxed=True)

    def settle(self) -> list[str]:
        """What there is to tell after a process: what it planted, which is put aside now, and whom it did not reach."""
        told = [
            f"what the agent left at {path} was taken away; it is kept in {kept}"
            for path, kept in put_aside(self._note, f"{self._folder}/planted")
        ]
        return told + (self._network.news() if self._network else [])

    def close(self) -> list[str]:
        """The last of what there is to tell."""
        told = self.settle()
        if self._network:
            self._network.close()
        with suppress(KeeperLost):
            self._keeper.tidy("")
        remove(self._note.tmp)
        self._note_file.close()
        return told


def open_sandbox(
    wanted: Wanted, folder: str, run_id: str, hosts: Sequence[Reachable] | None, keeper: Keeper
) -> Sandbox:
    """A box that was tried: one that cannot be had is an error."""
    bubblewrap = find_bubblewrap(wanted.env, wanted.workspace)
    try:
        tidy_up(folder)
        around = look_around(wanted)
        for path in (*box.folders(around), wanted.private_home, f"{folder}/open", f"{folder}/planted"):
            os.makedirs(path, mode=0o700, exist_ok=True)
        note_file = BoxNoteFile.open(f"{folder}/open/{run_id}")
        note_file.write(BoxNote(wanted.private_tmp))
        os.mkdir(wanted.private_tmp, 0o700)
    except OSError as error:
        raise UserError(
            f"cannot make a box: {error.filename}: {error.strerror}", "free some space, or name another TMPDIR"
        ) from None
    net = None if hosts is None else Network.start(hosts, wanted.env)
    made = Sandbox(bubblewrap, wanted, around, folder=folder, note_file=note_file, net=net, keeper=keeper)
    keeper.tidy(folder)
    try:
        _probe(made, f"{folder}/canary-{run_id}", wanted, keeper)
    except BaseException:
        made.close()
        raise
    return made


def _probe(made: Sandbox, canary: str, wanted: Wanted, keeper: Keeper) -> None:
    """Starts a real box, and sees that what is written inside stays there."""
    with open(canary, "wb") as file:
        file.write(_UNTOUCHED)
    asked = Command(argv=("/bin/sh", "-c", _PROBE, "sh", canary), cwd=wanted.workspace, env=wanted.env)
    for _ in range(2):  # a service may end, and take its socket away, in the moment in which that is covered
        output = run_command(keeper, made.command(asked), head=4000, tail=0, limits=Limits(turn=_TO_PROBE))
        if not output.head.startswith("bwrap: Can't "):
            break
    with open(canary, "rb") as file:
        is_untouched = file.read() == _UNTOUCHED
    os.unlink(canary)
    if trouble := made.settle():
        raise UserError(trouble[0], "use --sandbox-net on, or see docs/guides/sandbox.md")
    if not is_untouched:
        raise UserError("a box was made, but a program in it could write outside", "do not rely on it; report this")
    if not output.head.startswith("inside\n"):
        raise refusal(output.head, refusing(wanted.env))


def _clear_the_way(around: Surroundings, places: Sequence[Mount]) -> None:
    """Inside, anything may be put into the folders that stand in for home and /tmp: a link there would lead the next
    box's places elsewhere."""
    stand_ins = {around.home: around.private_home, "/tmp": around.private_tmp}
    for place in places:
        for outer, stand_in in stand_ins.items():
            if place.path != outer and is_inside(place.path, (outer,)):
                _unlink_links(stand_in, place.path[len(outer) + 1 :])


def _unlink_links(folder: str, path: str) -> None:
    for name in path.split("/"):
        folder = f"{folder}/{name}"
        if os.path.islink(folder):
            os.unlink(folder)
        if not os.path.isdir(folder):
            return
