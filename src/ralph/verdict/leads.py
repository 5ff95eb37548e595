"""Find what leads from an environment to the user's tree: editable installs, variables, and links.

In a copy at its own path, a check that follows them tests the user's tree.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import glob, iglob

from msgspec import Struct

from ralph.files import read_head
from ralph.git.client import Git

_MOST_BYTES = 1 << 20
_OWN_VARIABLES = frozenset({"PWD", "OLDPWD"})


class Lead(Struct, frozen=True):
    """Something that names a path in the user's tree."""

    kind: str
    """Such as "editable install"."""
    place: str
    """Where it is: a file, or the name of a variable."""
    target: str
    """The path in the user's tree."""


def find_leads(main: str, copy: str, env: Mapping[str, str]) -> Iterator[Lead]:
    """Yield what leads to the tree `main` from the environment, and from links in the `copy`."""
    yield from editable_installs(main, env)
    pattern = _inside(main)
    for name, value in env.items():
        for match in pattern.finditer(value if name not in _OWN_VARIABLES else ""):
            yield Lead("variable", name, match[0])
    with suppress(OSError), os.scandir(copy) as entries:
        for entry in entries:
            if entry.is_symlink() and pattern.match(target := os.path.realpath(entry.path)):
                yield Lead("link", entry.name, target)


def editable_installs(main: str, env: Mapping[str, str]) -> Iterator[Lead]:
    """Yield the folders of the tree `main` that Python's packages on PATH, or in the tree, import from."""
    pattern = _inside(main)
    for packages in _package_folders(main, env):
        for path in (
            *glob(f"{packages}/*.pth"),
            *glob(f"{packages}/__editable__*.py"),
            *glob(f"{packages}/*.egg-link"),
        ):
            with suppress(OSError):
                text = read_head(path, _MOST_BYTES).decode("utf-8", "replace")
                for target in dict.fromkeys(match[0].rstrip("/") for match in pattern.finditer(text)):
                    # The finder of an editable install names packages: their folder is imported from.
                    is_package = path.endswith(".py")
                    yield Lead("editable install", packages, os.path.dirname(target) if is_package else target)


def _package_folders(main: str, env: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders with Python packages of the programs on PATH, of the user, and of environments in the tree."""
    folders = [*env.get("PATH", "").split(os.pathsep), f"{main}/.venv/bin", f"{main}/venv/bin"]
    roots = [os.path.dirname(folder.rstrip("/")) for folder in folders if glob(f"{folder}/python*")]
    roots += [f"{home}/.local"] if (home := env.get("HOME", "")) else []
    for root in dict.fromkeys(roots):
        for kind in ("site-packages", "dist-packages"):
            yield from iglob(f"{root}/lib/python3*/{kind}")


def _inside(main: str) -> re.Pattern[str]:
    """Return the pattern of a path that is the tree, or in it."""
    return re.compile(re.escape(main) + r"(?![\w.-])(?:/[^\s'\":,;]*)?")


def files_that_name(main: str, git: Git) -> list[str]:
    """Return the tracked files of a copy that contain the path of the tree `main`."""
    return [os.fsdecode(name) for name in git.try_run("grep", "-lzF", "-e", main).out.split(b"\0") if name]
