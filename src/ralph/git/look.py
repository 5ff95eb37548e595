"""Look at a repository without running anything that its settings, hooks or attributes name.

Git gets a private git folder with the repository's objects and none of its settings. The private folder of a run is in
ralph's state folder, outside the workspace. It is written once; later only its HEAD changes.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from ralph.files import make_folder, read_given, remove_tree, replace_file, state_folder, temporary_folder, write_file
from ralph.git.client import Git, GitError, GitPolicy
from ralph.store.folder import cannot_write

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


def remove_look_folder(run_id: str, env: Mapping[str, str] = os.environ) -> None:
    with suppress(OSError):
        remove_tree(look_folder(run_id, env))


class PrivateGitFolder:
    """A private git folder for the working tree of `git`."""

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
        try:
            make_folder(f"{self.folder}/refs")
            make_folder(f"{self.folder}/info")
            for name in ("info/exclude", "info/attributes"):
                with suppress(FileNotFoundError):
                    write_file(f"{self.folder}/{name}", read_given(os.path.join(self.git.common_dir, name)))
            kept = {name: value for name, value in settings.items() if name in HARMLESS}
            replace_file(f"{self.folder}/config", _config(kept))  # last, because it marks the folder as complete
        except OSError as error:
            raise cannot_write(self.folder, error) from None

    def at(self, head: str = "") -> Git:
        """Return git with this commit as HEAD; if it is empty, there is no HEAD."""
        if head != self._head:
            try:
                replace_file(f"{self.folder}/HEAD", _head(head))
            except OSError as error:
                raise cannot_write(self.folder, error) from None
            self._head = head
        return _looking(self.git, self.folder)


@contextmanager
def look_at_objects(git: Git, name: str) -> Iterator[Git]:
    """Yield a git that reads only the repository's objects. `name` is the hash of any object: it shows the format."""
    kept = {"extensions.objectformat": "sha256"} if len(name) == SHA256_DIGITS else {}
    with temporary_folder() as folder:
        os.mkdir(f"{folder}/refs")  # without it, git does not take the folder for one of its own
        for file, content in (("config", _config(kept)), ("HEAD", _head(""))):
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
