"""By whose settings does git commit, check out and push? By the user's, as they were when the run started: hooks,
filters and identities go on working, and what an agent has written since has no say."""

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ralph.errors import UserError
from ralph.repository.git import Repository
from ralph.repository.index import files_below
from ralph.repository.looking import shared_folder

_LARGEST, _MOST_HOOKS = 1 << 20, 500  # bytes that are kept of a hook, and files
# Where work is sent: git takes several values of these together, so what was added cannot be undone by a word.
_WAYS = ("remote.", "url.", "branch.", "push.", "http.", "credential.", "core.sshcommand", "core.gitproxy")

Settings = dict[str, tuple[str, ...]]
Hooks = dict[str, tuple[int, bytes]]  # mode and content


class Configuration:
    """The settings and hooks of a repository at the moment of `begin`."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._settings: Settings = {}
        self._hooks: Hooks = {}
        self._stamp: object = None
        self._told: tuple[str, ...] = ()

    def begin(self) -> None:
        self._settings, self._hooks, self._stamp = self._read(), self._read_hooks(), self._stamped()

    def news(self) -> tuple[str, ...]:
        """The settings and hooks that are others than at the beginning, where that has not been told yet."""
        stamp = self._stamped()
        if stamp == self._stamp:
            return ()
        self._stamp = stamp
        changed = self.changed()
        told, self._told = self._told, changed
        return changed if changed != told else ()

    def changed(self) -> tuple[str, ...]:
        now, hooks = self._read(), self._read_hooks()
        names = {name for name in {*now, *self._settings} if now.get(name) != self._settings.get(name)}
        files = {f"hooks/{name}" for name in {*hooks, *self._hooks} if hooks.get(name) != self._hooks.get(name)}
        return (*sorted(names), *sorted(files))

    def refuse_other_ways(self) -> None:
        """Work is not sent to places, or by programs, that came up while the run was at work."""
        if ways := [name for name in self.changed() if name.startswith(_WAYS)]:
            raise UserError(f"git's settings for where work is sent were changed meanwhile: {', '.join(ways[:3])}")

    @contextmanager
    def as_it_was(self) -> Iterator[dict[str, str]]:
        """The environment for a git that obeys the settings and hooks of the beginning."""
        import tempfile

        now = self._read()
        pairs: list[tuple[str, str]] = []
        for name in sorted({*now, *self._settings}):
            if now.get(name) != self._settings.get(name):
                pairs += [(name, value) for value in self._settings.get(name, ("",))]
        with tempfile.TemporaryDirectory(prefix="ralph-hooks-") as folder:
            if self._read_hooks() != self._hooks:
                for name, (mode, content) in self._hooks.items():
                    path = os.path.join(folder, name)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    with open(path, "wb") as file:
                        file.write(content)
                    os.chmod(path, mode)
                pairs.append(("core.hooksPath", folder))
            env = {"GIT_CONFIG_COUNT": str(len(pairs))}
            for number, (name, value) in enumerate(pairs):
                env |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
            yield env

    def _read(self) -> Settings:
        listed = self._repository.git("config", "--list", "-z").decode("utf-8", "surrogateescape")
        found: dict[str, list[str]] = {}
        for entry in listed.split("\0"):
            name, _, value = entry.partition("\n")
            if name:
                found.setdefault(name, []).append(value)
        theirs = {name: values[:-1] if name in _OURS else values for name, values in found.items()}
        return {name: tuple(values) for name, values in theirs.items() if values}

    def _folder(self) -> str:
        """Where the user's hooks are."""
        named = self._settings.get("core.hookspath", ("",))[-1]
        if named:
            return os.path.join(self._repository.root, os.path.expanduser(named))
        return os.path.join(shared_folder(self._repository), "hooks")

    def _read_hooks(self) -> Hooks:
        found: Hooks = {}
        folder = os.fsencode(self._folder())
        for path, seen in itertools.islice(files_below(folder, frozenset()), _MOST_HOOKS):
            if stat.S_ISREG(seen.st_mode) and not path.endswith(b".sample"):
                with suppress(OSError), open(os.path.join(folder, path), "rb") as file:
                    found[os.fsdecode(path)] = (stat.S_IMODE(seen.st_mode), file.read(_LARGEST))
        return found

    def _stamped(self) -> object:
        """Whether anything may be another than before, without asking git."""
        common = shared_folder(self._repository)
        paths = [f"{common}/config", f"{common}/config.worktree", f"{self._repository.git_dir}/config.worktree"]
        paths += [os.path.expanduser("~/.gitconfig"), f"{common}/info/attributes"]
        with suppress(OSError):
            paths += [entry.path for entry in os.scandir(self._folder())]
        return [_stamp_of(path) for path in paths]


# What `-c` words of ours say, which are the same for every git that we start.
_OURS = frozenset({
    "core.hookspath", "core.fsmonitor", "core.quotepath", "core.safecrlf", "core.fsyncmethod", "core.splitindex",
    "submodule.recurse", "color.ui", "gc.auto", "maintenance.auto",
})  # fmt: skip


def _stamp_of(path: str) -> tuple[int, ...]:
    try:
        seen = os.lstat(path)
    except OSError:
        return ()
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_mode
