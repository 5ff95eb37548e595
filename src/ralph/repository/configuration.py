"""By whose settings does git commit, check out and push? By the user's, as they were when the run started: hooks,
filters and identities go on working, and what an agent has written since has no say. They are kept outside the
workspace, for what is done later: a resume, a rewind, the next item of a backlog."""

import itertools
import os
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct, json

from ralph.errors import UNREADABLE, UserError
from ralph.files import Stamp, stamp_of, state_folder, temporary_folder
from ralph.repository.git import (
    UNFETCHED,
    Repository,
    find_repository,
    obeying,
    own_folder,
    run,
    shared_by,
    shared_folder,
)
from ralph.repository.index import files_below

_LARGEST, _MOST_HOOKS, _MOST_CHANGED = 1 << 24, 500, 2000  # bytes that are kept of a file, hooks, settings
# Where work is sent: git takes several values of these together, so what was added cannot be undone by a word.
_WAYS = ("remote.", "url.", "branch.", "push.", "http.", "credential.", "core.sshcommand", "core.gitproxy")
# Where what is missing comes from: to git the first of several values counts here, whatever is said later.
_SOURCES = ("remote.", "url.", "http.", "credential.", "core.sshcommand", "core.gitproxy")
_INCLUDES = ("include.", "includeif.")
# A setting that was not there is said to be empty, which to git is "no" or "none", but of these an error. A driver for
# merges would be a program without a name: it is what git does where there is none.
_MERGE = "git merge-file -q --marker-size=%L %A %O %B"
_DEFAULTS = """
branch.autosetuprebase=never checkout.thresholdforparallelism=100 checkout.workers=1 commit.cleanup=default
commitgraph.generationversion=2 core.bigfilethreshold=512m core.commentchar=# core.compression=-1
core.createobject=link core.deltabasecachelimit=96m core.filesreflocktimeout=100 core.loosecompression=1
core.packedgitlimit=1g core.packedgitwindowsize=32m diff.algorithm=default diff.colormovedws=no diff.context=3
diff.ignoresubmodules=none diff.interhunkcontext=0 diff.orderfile=/dev/null diff.renamelimit=1000
diff.statgraphwidth=-1 diff.submodule=short fetch.negotiationalgorithm=default gc.auto=6700 gc.autopacklimit=50
gpg.format=openpgp gpg.mintrustlevel=undefined gpg.program=gpg gpg.ssh.program=ssh-keygen grep.patterntype=default
grep.threads=0 index.version=2 merge.conflictstyle=merge merge.renamelimit=1000 merge.verbosity=2 pack.compression=-1
pack.packsizelimit=0 push.default=simple status.renamelimit=1000 status.showuntrackedfiles=normal
"""

GitSettings = dict[str, tuple[str, ...]]
Files = dict[str, tuple[int, bytes]]  # mode and content


class _Kept(Struct):
    """As it is written down. Names and values may be any bytes."""

    settings: list[tuple[bytes, bytes]]
    hooks: dict[str, tuple[int, bytes]]
    attributes: dict[str, tuple[int, bytes]]
    origins: list[bytes] = []
    stamp: list[Stamp] = []


class Configuration:
    """The settings, hooks and attributes of a repository at the moment of `begin`."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._settings: GitSettings = {}
        self._hooks: Files = {}
        self._attributes: Files = {}
        self._origins: tuple[str, ...] = ()
        self._stamp: object = None  # of what `_told` is about
        self._told: tuple[str, ...] = ()
        self._seen: tuple[list[Stamp], GitSettings] = ([], {})  # when git was last asked for them, and what it said
        self._seen_in: dict[str, tuple[list[Stamp], GitSettings]] = {}  # the same for other working trees

    def begin(self, kept_as: str = "", env: Mapping[str, str] = os.environ) -> None:
        """Takes them as they are now, or those that were kept under this name, and keeps them."""
        if kept_as and self.recall(kept_as, env):
            return
        self._settings = self._read()  # they say where the others are
        self._seen = (self._settings_stamp(), self._settings)
        self._hooks, self._attributes = self._read_hooks(), self._read_attributes()
        self._stamp = self._stamped()
        if kept_as:
            self._keep(_place(kept_as, env))

    def recall(self, kept_as: str, env: Mapping[str, str] = os.environ) -> bool:
        """Takes those that were kept under this name; False where there are none."""
        try:
            kept = json.decode(_content(_place(kept_as, env), 1 << 28)[1], type=_Kept)
        except (OSError, *UNREADABLE):
            return False
        found: dict[str, list[str]] = {}
        for name, value in kept.settings:
            found.setdefault(os.fsdecode(name), []).append(os.fsdecode(value))
        self._settings = {name: tuple(values) for name, values in found.items()}
        self._hooks, self._attributes = kept.hooks, kept.attributes
        self._origins = tuple(map(os.fsdecode, kept.origins))
        self._seen = (kept.stamp, self._settings)
        return True

    def _keep(self, path: str) -> None:
        pairs = [(os.fsencode(name), os.fsencode(value)) for name in self._settings for value in self._settings[name]]
        origins = [*map(os.fsencode, self._origins)]
        data = json.encode(_Kept(pairs, self._hooks, self._attributes, origins, self._seen[0]))
        with suppress(OSError):  # who cannot write there is told so elsewhere
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):
                os.unlink(path)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(data)

    @property
    def settings(self) -> dict[str, str]:
        """What each of them says; of several values the last, as git does."""
        return {name: values[-1] for name, values in self._settings.items()}

    def news(self) -> tuple[str, ...]:
        """What is another than at the beginning, where that has not been told yet."""
        stamp = self._stamped()
        if stamp == self._stamp:
            return ()
        self._stamp = stamp
        changed = self.changed()
        told, self._told = self._told, changed
        return changed if changed != told else ()

    def changed(self) -> tuple[str, ...]:
        names = sorted(_differing(self._now(), self._settings))
        hooks = sorted(_differing(self._read_hooks(), self._hooks))
        attributes = sorted(_differing(self._read_attributes(), self._attributes))
        return (*names, *(f"hooks/{name}" for name in hooks), *attributes)

    def refuse_other_ways(self) -> None:
        """Work is not sent to places, or by programs, that came up while the run was at work; a hook of a remote that a
        person has taken away since starts nothing."""
        gone = self._attributes.keys() - self._read_attributes().keys()
        if ways := [name for name in self.changed() if name.startswith(_WAYS) and name not in gone]:
            raise UserError(f"git's settings for where work is sent were changed meanwhile: {', '.join(ways[:3])}")

    def overrides(self, folder: str) -> dict[str, str]:
        """The environment that makes git obey the settings of the beginning in a working tree of the repository, which
        may have got some of its own since; hooks are another matter."""
        return self._variables(self._pairs(folder))

    @contextmanager
    def as_it_was(self) -> Iterator[dict[str, str]]:
        """The environment for a git that obeys the settings and hooks of the beginning. Those of another repository,
        to which an agent has led the folder since, or which it has made nearer to it, nobody knows."""
        place = Path(self._repository.root, self._repository.prefix)
        if find_repository(place) != self._repository:
            raise UserError(f"{place} is part of another repository than when the run began", "put its .git back")
        pairs = self._pairs(self._repository.root)
        with temporary_folder() as folder:
            if self._read_hooks() != self._hooks:
                for name, (mode, content) in self._hooks.items():
                    path = os.path.join(folder, name)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as file:
                        file.write(content)
                    os.chmod(path, mode)
                pairs.append(("core.hooksPath", folder))
            yield self._variables(pairs)

    def _variables(self, pairs: list[tuple[str, str]]) -> dict[str, str]:
        """Nothing is fetched from places, or by programs, that came up while the run was at work."""
        return _as_variables(pairs) | (UNFETCHED if any(name.startswith(_SOURCES) for name, _ in pairs) else {})

    def _pairs(self, folder: str) -> list[tuple[str, str]]:
        """What has to be said so that everything is as it was; what an include brings is among it by itself."""
        found = _differing(self._now(), self._settings) | _differing(self._now_in(folder), self._settings)
        differing = {name for name in found if not name.startswith(_INCLUDES)}
        if len(differing) > _MOST_CHANGED:
            raise UserError(f"{len(differing)} of git's settings were changed since the run began", "put them right")
        was = {name: self._settings.get(name) or (self._unsaid(name),) for name in sorted(differing)}
        return [(name, value) for name, values in was.items() for value in values]

    def _unsaid(self, name: str) -> str:
        """What a setting has to say so that it is as if it said nothing."""
        if name.startswith("merge.") and name.endswith(".driver"):
            return _MERGE
        places = {
            "core.hookspath": os.path.join(shared_folder(self._repository), "hooks"),
            "core.excludesfile": os.path.join(_XDG, "git", "ignore"),
            "core.attributesfile": os.path.join(_XDG, "git", "attributes"),
        }
        return places.get(name) or dict(said.split("=") for said in _DEFAULTS.split()).get(name, "")

    def _now(self) -> GitSettings:
        """What they are. Git is asked only where one of their files is another, be it for a process that comes later:
        what is asked most of all is whether anything has changed."""
        stamp = self._settings_stamp()
        if stamp != self._seen[0]:
            self._seen = (stamp, self._read())
        return self._seen[1]

    def _now_in(self, folder: str) -> GitSettings:
        """The same in another working tree: there is a file that says more of it alone, or it is as everywhere."""
        if folder == self._repository.root:
            return self._now()
        try:
            git_dir = own_folder(folder)
            is_ours = os.path.samefile(shared_by(git_dir), shared_folder(self._repository))
        except (OSError, UserError):  # git will say what is wrong
            return self._now()
        if not is_ours:
            raise UserError(f"{folder} is part of another repository than when the run began", "put its .git back")
        own = os.path.join(git_dir, "config.worktree")
        if not os.path.lexists(own):
            return self._now()
        stamp = [*self._settings_stamp(), stamp_of(own)]
        if self._seen_in.get(folder, ([],))[0] != stamp:
            self._seen_in[folder] = (stamp, self._listed(folder)[0])
        return self._seen_in[folder][1]

    def _read(self) -> GitSettings:
        found, self._origins = self._listed(self._repository.root)
        return found

    def _listed(self, root: str) -> tuple[GitSettings, tuple[str, ...]]:
        """What git says they are in a working tree, and which files it reads for that, or would if they were there."""
        with obeying(None):
            listed = run(root, "config", "--list", "--show-origin", "-z")
        entries = listed.decode("utf-8", "surrogateescape").split("\0")
        found: dict[str, list[str]] = {}
        origins: list[str] = []
        for origin, entry in zip(entries[::2], entries[1::2], strict=False):
            name, is_said, value = entry.partition("\n")
            value = value if is_said else "true"
            found.setdefault(name, []).append(value)
            place = os.path.join(root, origin.removeprefix("file:"))
            origins.append(place)
            if name.startswith(_INCLUDES):
                origins.append(os.path.join(os.path.dirname(place), os.path.expanduser(value)))
        theirs = {name: values[:-1] if name in _OURS else values for name, values in found.items()}
        return {name: tuple(values) for name, values in theirs.items() if values}, tuple(dict.fromkeys(origins))

    def _folder(self) -> str:
        """Where the user's hooks are."""
        named = self._settings.get("core.hookspath", ("",))[-1]
        if named:
            return os.path.join(self._repository.root, os.path.expanduser(named))
        return os.path.join(shared_folder(self._repository), "hooks")

    def _read_hooks(self) -> Files:
        found: Files = {}
        folder = os.fsencode(self._folder())
        for path, _ in itertools.islice(files_below(folder, frozenset()), _MOST_HOOKS):
            if not path.endswith(b".sample"):
                with suppress(OSError):
                    found[os.fsdecode(path)] = _content(os.path.join(folder, path))
        return found

    def _read_attributes(self) -> Files:
        found: Files = {}
        for name, path in self._attribute_files().items():
            with suppress(OSError):
                found[name] = _content(path)
        return found

    def _attribute_files(self) -> dict[str, str]:
        common, root = shared_folder(self._repository), self._repository.root
        files = {"info/attributes": f"{common}/info/attributes", ".gitattributes": f"{root}/.gitattributes"}
        if named := self._settings.get("core.attributesfile", ("",))[-1]:
            files[named] = os.path.join(root, os.path.expanduser(named))
        return files | self._of_remotes_here()

    def _of_remotes_here(self) -> dict[str, str]:
        """What git obeys in a remote that is a folder of this machine, where it is pushed to: named as ways are."""
        places: list[tuple[str, str]] = []
        for name in [name for name in self._settings if name.startswith("remote.") and name.endswith("url")]:
            for own in {own for url in self._settings[name] for own in self._git_folders_at(url)}:
                places.append((name, f"{own}/config"))
                with suppress(OSError):
                    hooks = [hook for hook in os.listdir(f"{own}/hooks") if not hook.endswith(".sample")]
                    places += [(name, f"{own}/hooks/{hook}") for hook in hooks[:_MOST_HOOKS]]
        return {f"{name}: {place}": place for name, place in places}

    def _git_folders_at(self, url: str) -> Iterator[str]:
        """Where git would look for a repository, were this a place of this machine."""
        others = [
            (len(short), base[4:].rpartition(".")[0] + url[len(short) :])
            for base, values in self._settings.items()
            if base.startswith("url.") and base.endswith("insteadof")
            for short in values
            if url.startswith(short)
        ]
        path = max(others, default=(0, url))[1]
        path = path if not path.startswith("file://") else "/" + path.removeprefix("file://").partition("/")[2]
        for folder in (os.path.join(self._repository.root, path), os.path.join(self._repository.root, f"{path}.git")):
            if os.path.isdir(folder):
                yield folder
                with suppress(OSError, UserError):
                    yield shared_by(own_folder(folder))

    def _settings_files(self) -> list[str]:
        common = shared_folder(self._repository)
        paths = [f"{common}/config", f"{common}/config.worktree", f"{self._repository.git_dir}/config.worktree"]
        return [*paths, *_USUAL, os.environ.get("GIT_CONFIG_GLOBAL", ""), *self._origins]

    def _settings_stamp(self) -> list[Stamp]:
        said = sorted(pair for pair in os.environ.items() if pair[0].startswith("GIT_CONFIG"))
        # Each path in its place, though some may be the same: so a worktree has the stamp of the repository itself.
        return [(zlib.crc32(repr(said).encode()),), *map(stamp_of, self._settings_files())]

    def _stamped(self) -> object:
        """Whether anything may be another than before, without asking git."""
        paths = [*self._settings_files(), *self._attribute_files().values()]
        with suppress(OSError):
            paths += [entry.path for entry in os.scandir(self._folder())]
        return [stamp_of(path) for path in dict.fromkeys(paths)]


def configuration_of(repository: Repository, kept_as: str) -> Configuration:
    """The settings that were kept under this name, or those of now, which are kept under it."""
    made = Configuration(repository)
    made.begin(kept_as)
    return made


_XDG = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
_USUAL = ("/etc/gitconfig", os.path.expanduser("~/.gitconfig"), os.path.join(_XDG, "git", "config"))
# What `-c` words of ours say, which are the same for every git that we start.
_OURS = frozenset({
    "core.hookspath", "core.fsmonitor", "core.quotepath", "core.safecrlf", "core.fsyncmethod", "core.splitindex",
    "submodule.recurse", "color.ui", "gc.auto", "maintenance.auto",
})  # fmt: skip


def forget(kept_as: str, env: Mapping[str, str]) -> None:
    """Nobody will go by what was kept under this name any more."""
    with suppress(OSError):
        os.unlink(_place(kept_as, env))


def _place(kept_as: str, env: Mapping[str, str]) -> str:
    return os.path.join(state_folder(env, "git"), f"{kept_as}.json")


def _differing(now: Mapping[str, object], then: Mapping[str, object]) -> set[str]:
    return {name for name in {*now, *then} if now.get(name) != then.get(name)}


def _as_variables(pairs: list[tuple[str, str]]) -> dict[str, str]:
    own = os.environ.get("GIT_CONFIG_COUNT", "")  # what the user says in the same way stays said
    first = int(own) if own.isdecimal() else 0
    said = {"GIT_CONFIG_COUNT": str(first + len(pairs))} if pairs else {}
    for number, (name, value) in enumerate(pairs, first):
        said |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return said


def _content(path: str | bytes, most: int = _LARGEST) -> tuple[int, bytes]:
    """Mode and content of a regular file; an agent may have put a pipe or a link to a terminal there."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(f"{os.fsdecode(path)} is no file")
        return stat.S_IMODE(seen.st_mode), file.read(most)
