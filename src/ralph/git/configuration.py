"""Notice when a run changes git's settings, hooks or attributes, and refuse to push if the push settings changed."""

import os
from collections.abc import Mapping
from contextlib import suppress

from ralph.errors import UserError
from ralph.files import Stamp, stamp_of
from ralph.git.client import Git

# Settings that decide where git pushes, and through which program.
PUSH_SETTINGS = ("remote.", "url.", "branch.", "push.", "http.", "credential.", "core.sshcommand", "core.gitproxy")

GitSettings = dict[str, tuple[str, ...]]


class GitConfigWatch:
    """Compares git's settings, hooks and attributes with those at `begin`."""

    def __init__(self, git: Git) -> None:
        self._git = git
        self._first: GitSettings = {}
        self._settings: GitSettings = {}
        self._stamps: dict[str, Stamp] = {}

    def begin(self) -> None:
        self._first = self._settings = read_settings(self._git)
        self._stamps = self._take_stamps()

    def changes(self) -> list[str]:
        """Return the names of the settings, hooks and attributes files that changed since the last call."""
        settings, stamps = self._settings, self._stamps
        self._settings = read_settings(self._git)
        self._stamps = self._take_stamps()
        return sorted(_differing(settings, self._settings)) + sorted(_differing(stamps, self._stamps))

    def refuse_changed_push(self) -> None:
        """Raise if the settings that decide where, or through which program, git pushes have changed since `begin`."""
        refuse_changed_push(self._git, push_settings(self._first))

    def _take_stamps(self) -> dict[str, Stamp]:
        """Return the stamps of the hooks and attributes files, by their names in messages."""
        common = self._git.common_dir
        hooks = self._path_in("core.hookspath") or f"{common}/hooks"
        paths = {".gitattributes": f"{self._git.root}/.gitattributes", "info/attributes": f"{common}/info/attributes"}
        if attributes := self._path_in("core.attributesfile"):
            paths[attributes] = attributes
        with suppress(OSError):
            names = (name for name in os.listdir(hooks) if not name.endswith(".sample"))
            paths |= {f"hooks/{name}": os.path.join(hooks, name) for name in names}
        return {name: stamp_of(path) for name, path in paths.items()}

    def _path_in(self, setting: str) -> str:
        """Return the path that a setting names; empty if it is not set."""
        path = self._settings.get(setting, ("",))[-1]
        return os.path.join(self._git.root, os.path.expanduser(path)) if path else ""


def read_settings(git: Git) -> GitSettings:
    """Return the values of each of git's settings, as the user's commands see them."""
    listed = git.as_user().run("config", "--list", "-z").decode("utf-8", "surrogateescape")
    settings: dict[str, list[str]] = {}
    for entry in listed.split("\0")[:-1]:
        name, _, value = entry.partition("\n")
        settings.setdefault(name, []).append(value)
    return {name: tuple(values) for name, values in settings.items()}


def push_settings(settings: Mapping[str, tuple[str, ...]]) -> GitSettings:
    """Return the settings that decide where, and through which program, git pushes."""
    return {name: values for name, values in settings.items() if name.startswith(PUSH_SETTINGS)}


def refuse_changed_push(git: Git, before: GitSettings | None) -> None:
    """Raise if git's push settings differ from those `before`; None means unknown."""
    if before is None:
        return
    if changed := sorted(_differing(before, push_settings(read_settings(git)))):
        names = ", ".join(changed[:3])
        raise UserError(f"git's push settings changed during this run: {names}", "check them, then push")


def _differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [name for name in {*before, *now} if before.get(name) != now.get(name)]
