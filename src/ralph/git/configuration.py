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
        self._git = git.as_user()
        self._first: GitSettings = {}
        self._settings: GitSettings = {}
        self._files: tuple[str, ...] = ()
        self._stamps: dict[str, Stamp] = {}

    def begin(self) -> None:
        self._first = self._settings = self._read_settings()
        self._stamps = self._take_stamps()

    def changes(self) -> tuple[str, ...]:
        """Return the names of the settings and files that changed since the last call."""
        before, self._stamps = self._stamps, self._take_stamps()
        files = _differing(before, self._stamps)
        if not files:
            return ()
        old, self._settings = self._settings, self._read_settings()
        others = sorted(self._name_of(path) for path in files if path not in self._files)
        return (*sorted(_differing(old, self._settings)), *others)

    def refuse_changed_push(self) -> None:
        """Raise if the settings that decide where, or through which program, git pushes have changed since `begin`."""
        refuse_changed_push(self._git, push_settings(self._first))

    def _read_settings(self) -> GitSettings:
        settings, files = read_settings(self._git)
        common = self._git.common_dir
        self._files = (f"{common}/config", f"{common}/config.worktree", f"{self._git.git_dir}/config.worktree", *files)
        return settings

    def _take_stamps(self) -> dict[str, Stamp]:
        paths = [*self._files, *self._attribute_files()]
        with suppress(OSError):
            paths += [entry.path for entry in os.scandir(self._hooks_folder()) if not entry.name.endswith(".sample")]
        return {path: stamp_of(path) for path in paths}

    def _hooks_folder(self) -> str:
        named = self._settings.get("core.hookspath", ("",))[-1] or os.path.join(self._git.common_dir, "hooks")
        return os.path.join(self._git.root, os.path.expanduser(named))

    def _attribute_files(self) -> list[str]:
        named = self._settings.get("core.attributesfile", ("",))[-1]
        files = [f"{self._git.common_dir}/info/attributes", f"{self._git.root}/.gitattributes"]
        return [*files, *([os.path.join(self._git.root, os.path.expanduser(named))] if named else [])]

    def _name_of(self, path: str) -> str:
        name, folder = os.path.basename(path), os.path.basename(os.path.dirname(path))
        is_hook = os.path.dirname(path) == self._hooks_folder().rstrip("/")
        return f"hooks/{name}" if is_hook else name if name.startswith(".") else f"{folder}/{name}"


def read_settings(git: Git) -> tuple[GitSettings, list[str]]:
    """Return git's settings and the files that git reads them from, including files that don't exist yet."""
    printed = git.as_user().run("config", "--list", "--show-origin", "-z").decode("utf-8", "surrogateescape")
    entries = printed.split("\0")
    settings: dict[str, list[str]] = {}
    files = [os.path.expanduser("~/.gitconfig")]
    for origin, entry in zip(entries[::2], entries[1::2], strict=False):
        name, _, value = entry.partition("\n")
        settings.setdefault(name, []).append(value)
        path = os.path.join(git.root, origin.removeprefix("file:"))
        files.append(path)
        if name.startswith(("include.", "includeif.")):
            files.append(os.path.join(os.path.dirname(path), os.path.expanduser(value)))
    return {name: tuple(values) for name, values in settings.items()}, [*dict.fromkeys(files)]


def push_settings(settings: Mapping[str, tuple[str, ...]]) -> GitSettings:
    """Return the settings that decide where, and through which program, git pushes."""
    return {name: values for name, values in settings.items() if name.startswith(PUSH_SETTINGS)}


def refuse_changed_push(git: Git, before: GitSettings | None) -> None:
    """Raise if git's push settings differ from those `before`; None means unknown."""
    if before is None:
        return
    if changed := sorted(_differing(before, push_settings(read_settings(git)[0]))):
        names = ", ".join(changed[:3])
        raise UserError(f"git's push settings changed during this run: {names}", "check them, then push")


def _differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [name for name in {*before, *now} if before.get(name) != now.get(name)]
