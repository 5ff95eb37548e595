"""What a copy of a repository needs besides its tracked files: dependency folders and generated sources.

Never all ignored files: a `build/` that was made from newer sources than those of the copy keeps `make` from building
the copy, so its check is green on broken code.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from ralph.git.client import Git

FOLDERS = frozenset({
    ".venv", "venv", "env", ".tox", ".nox", "node_modules", ".pnpm-store", ".yarn", "vendor", ".bundle",
    "bower_components", "deps", "Pods", ".direnv", "elm-stuff",
})  # fmt: skip
"""Names of folders whose content is installed, not built from the sources around them."""

# What a generator or a compiler puts next to sources: `_version.py`, `_speed.cpython-311-x86_64-linux-gnu.so`.
_LIBRARIES = frozenset({".so", ".pyd", ".dylib", ".dll", ".node"})
# Ignored files of these kinds are often secrets or caches, even where tracked files have the same suffix.
_DATA = frozenset(
    {"", ".json", ".yaml", ".yml", ".toml", ".env", ".ini", ".cfg", ".txt", ".md", ".log", ".csv", ".lock"}
)
_MOST_BYTES = 64 << 20
_STRICT_EDITABLE = "__editable__."  # setuptools' strict mode keeps links to the sources in `build/__editable__.NAME`


class Dependencies(Struct, frozen=True):
    """Paths relative to the working tree. `folders` are mounted or cloned; `linked` folders, which contain only links,
    and generated `files` are copied."""

    folders: tuple[str, ...] = ()
    linked: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def find_dependencies(repository: Git) -> Dependencies:
    """Return what the user's working tree has and a new copy of it needs."""
    ignored = _paths(repository, "--others", "--ignored", "--exclude-standard", "--directory")
    folders = [path for name in ignored for path in _folders_in(repository, name.rstrip("/"))]
    linked = [path for path in folders if _has_only_links(os.path.join(repository.root, path))]
    files = (name for name in ignored if not name.endswith("/") and os.path.basename(name) not in FOLDERS)
    return Dependencies(
        folders=tuple(path for path in folders if path not in linked),
        linked=tuple(linked),
        files=tuple(_generated(repository, list(files))),
    )


def copy_generated(repository: Git, git: Git, dependencies: Dependencies) -> None:
    """Copy generated sources into a worktree. Files that it has already stay as they are."""
    for name in dependencies.files:
        target = os.path.join(git.root, name)
        if not os.path.lexists(target):
            with suppress(FileNotFoundError):  # another program may just be removing it
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(os.path.join(repository.root, name), target, follow_symlinks=False)


def _paths(repository: Git, *args: str) -> list[str]:
    return [os.fsdecode(name) for name in repository.run("ls-files", "-z", *args).split(b"\0") if name]


def _folders_in(repository: Git, path: str) -> Iterator[str]:
    """Yield an ignored path if it is a dependency folder, and the folders of strict editable installs below it."""
    full, name = os.path.join(repository.root, path), os.path.basename(path)
    if name in FOLDERS and os.path.isdir(full):
        yield path
    elif name == "build":
        with suppress(OSError):
            yield from (f"{path}/{name}" for name in sorted(os.listdir(full)) if name.startswith(_STRICT_EDITABLE))


def _has_only_links(folder: str) -> bool:
    """Return whether a folder contains only links, as pnpm and workspaces make: it is cheaper to copy than to mount."""
    is_strict = os.path.basename(folder).startswith(_STRICT_EDITABLE)
    if is_strict:
        return True
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink() or entry.name == ".bin":
                continue
            if not entry.name.startswith("@") or not _has_only_links(entry.path):
                return False
        return True
    return False


def _generated(repository: Git, ignored: list[str]) -> Iterator[str]:
    """Yield the ignored files next to tracked ones of the same kind, and libraries."""
    if not ignored:
        return
    tracked = _paths(repository)
    suffixes = {os.path.splitext(name)[1] for name in tracked} - _DATA | _LIBRARIES
    folders = {os.path.dirname(name) for name in tracked}
    for name in ignored:
        full = os.path.join(repository.root, name)
        is_generated = os.path.dirname(name) in folders and os.path.splitext(name)[1] in suffixes
        if is_generated and os.path.isfile(full) and os.path.getsize(full) <= _MOST_BYTES:
            yield name
