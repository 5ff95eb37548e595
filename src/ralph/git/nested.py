"""Nested repositories, folders of the working tree that have their own `.git`, and among them submodules.

Git sees such a folder as one unit and saves at most the number of a commit in it, which nobody else has. If the work
made it, its files belong to the work: one file in the index is enough for git to take the folder for an ordinary one.
"""

import os
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from ralph.git.client import Git, git_at

GITLINK = b"160000"  # the file mode of a submodule


def submodule_paths(git: Git) -> dict[bytes, str]:
    """Return the names of the submodules that `.gitmodules` declares, by their paths."""
    args = ("config", "-z", "--file", os.path.join(git.root, ".gitmodules"), "--get-regexp", r"^submodule\..*\.path$")
    entries = (entry.partition(b"\n") for entry in git.try_run(*args).out.split(b"\0") if entry)
    return {path: os.fsdecode(key)[len("submodule.") : -len(".path")] for key, _, path in entries}


def gitlinks(git: Git) -> dict[bytes, str]:
    """Return the commits that the index has for submodules and nested repositories, by their paths."""
    rows = (row.partition(b"\t") for row in git.run("ls-files", "--stage", "-z").split(b"\0"))
    return {path: about.split()[1].decode() for about, _, path in rows if about.startswith(GITLINK)}


def find_nested(git: Git) -> list[bytes]:
    """Return the nested repositories that are not submodules and have files that git would lose."""
    new = git.run("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    found = {path.rstrip(b"/") for path in new if path.endswith(b"/")} | {*gitlinks(git)}
    return sorted(path for path in without_submodules(git, found) if next(files_in(git, path), None))


def without_submodules(git: Git, folders: Iterable[bytes]) -> list[bytes]:
    """Return those of the folders that are repositories, and neither declared submodules nor linked worktrees."""
    there = [folder for folder in folders if os.path.isdir(os.path.join(os.fsencode(git.root), folder, b".git"))]
    declared = submodule_paths(git) if there else {}
    return [folder for folder in there if folder not in declared]


def files_in(git: Git, folder: bytes) -> Iterator[list[bytes]]:
    """Yield the files of a nested repository that no `.gitignore` names, then those of each repository inside it."""
    inside = replace(git, root=os.path.join(git.root, os.fsdecode(folder)))
    no_index = {"GIT_INDEX_FILE": os.path.join(git.git_dir, "ralph-no-index")}
    out = inside.run("ls-files", "--others", "--exclude-standard", "-z", env=no_index)
    paths = [os.path.join(folder, name) for name in out.split(b"\0")[:-1] if b"/.ralph/" not in b"/" + name]
    files = [path for path in paths if not path.endswith(b"/")]
    ignored = {*git.try_run("check-ignore", "--no-index", "-z", "--stdin", stdin=b"\0".join(files)).out.split(b"\0")}
    if kept := [path for path in files if path not in ignored]:
        yield kept
    for path in paths:
        if path.endswith(b"/"):
            yield from files_in(git, path.rstrip(b"/"))


def init_submodules(home: Git, git: Git) -> list[str]:
    """Check out the submodules of a new worktree; return those that the user's own tree `home` does not have either.

    They are cloned from the user's: that needs no network and no keys.
    """
    missing: list[str] = []
    linked = gitlinks(git)
    for path, name in submodule_paths(git).items():
        folder = os.fsdecode(path)
        source = os.path.join(home.root, folder)
        if path not in linked:
            continue
        if not os.path.lexists(os.path.join(source, ".git")):
            missing.append(folder)
            continue
        users = git_at(source)
        local = ("-c", "protocol.file.allow=always", "-c", f"submodule.{name}.url={users.git_dir}")
        if git.try_run(*local, "submodule", "--quiet", "update", "--init", "--", folder).code:
            missing.append(folder)
        else:
            inside = init_submodules(users, git_at(os.path.join(git.root, folder)))
            missing += [os.path.join(folder, one) for one in inside]
    return missing
