"""Merge branches into one candidate commit, and move the target to it once the checks have passed.

The candidate is made without a working tree. The target moves by compare-and-swap: only if nobody else has moved it.
Every step can be repeated. No record is kept: a branch is merged if it is in the history of the target.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from msgspec import Struct

from ralph.core.backlog import Conflict
from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.git.client import Git, GitError, git_error, version_line
from ralph.git.index import display_path, tree_with
from ralph.git.locks import LOCKED_REF, remove_reflog_links, remove_stale, update_refs
from ralph.git.setup_files import TreeEntry

OLDEST_GIT = (2, 38)  # the first with `merge-tree --write-tree`
INTERMEDIATE = "an intermediate merge"  # message of a commit that no branch points to
MAX_FILES = 2000  # names
MAX_MESSAGES = 2000  # characters of git's messages about conflicts


class Branch(Struct, frozen=True):
    """A task's work that is ready to merge. `files` are those that it changes; `closing` goes into the message."""

    key: str
    tip: str
    title: str
    files: tuple[str, ...] = ()
    closing: str = ""


class Merge(Struct, frozen=True):
    """The merge of two commits: a tree, and the conflicts, if there are any."""

    tree: str
    conflict: Conflict | None = None


class Candidate(Struct, frozen=True, kw_only=True):
    """A commit that merges the branches `tried` into `base`.

    `conflicts` are the branches that conflict with `base`; `empty` are those that change nothing. A branch that
    conflicts only with another branch of this candidate is in neither: it is merged the next time.
    """

    base: str
    commit: str = ""
    tried: tuple[Branch, ...] = ()
    conflicts: dict[str, Conflict] = {}
    empty: tuple[str, ...] = ()


class Reserved(Struct, frozen=True):
    """Files that no branch may change: the list, in which only the gate ticks tasks, and the settings.

    `lists` are files or folders, `settings` are files; `tick` ticks tasks in the target's own copy of the list.
    """

    lists: tuple[str, ...]
    settings: tuple[str, ...]
    tick: Callable[[Mapping[str, bytes], Collection[str]], Mapping[str, bytes]]


def refuse_old_git(folder: str) -> None:
    number = next((word for word in version_line(folder).split() if word[:1].isdigit()), "")
    version = tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
    if version < OLDEST_GIT:
        oldest, actual = (".".join(map(str, numbers)) for numbers in (OLDEST_GIT, version))
        raise UserError(f"this needs git {oldest} or newer; found git {actual or '?'}", "upgrade git")


def unmerged(git: Git, target: str, tips: Collection[str]) -> set[str]:
    """Return the commits that are not in the history of the target."""
    if not tips:
        return set()
    asked = "".join(f"{tip}\n" for tip in tips) + f"^{target}\n"
    return {*tips} & {*git.run("rev-list", "--stdin", stdin=asked.encode()).decode().split()}


def changed_files(git: Git, target: str, tip: str) -> tuple[str, ...]:
    """Return the files that a branch changed since it left the target; just `**` if there are more than MAX_FILES."""
    out = git.run("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", f"{target}...{tip}")
    names = tuple(os.fsdecode(name) for name in out.split(b"\0") if name)
    return names if len(names) <= MAX_FILES else ("**",)


def is_merge_of(git: Git, commit: str, tip: str) -> bool:
    """Return whether a commit is a candidate that merges the branch at `tip`."""
    result = git.try_run("rev-list", "--parents", "--max-count=1", commit, "--")
    return not result.code and tip in result.out.decode().split()[2:]


def contribution(git: Git, tip: str, merge: str) -> tuple[str, str] | None:
    """Return the range of a merged branch: the commit where it left the target, and its tip.

    `merge` is the commit that merged it. None if the commits are not in this repository.
    """
    result = git.try_run("merge-base", f"{merge}^1", tip)
    return (result.out.decode().strip(), tip) if not result.code else None


def merge_commits(git: Git, ours: str, theirs: str) -> Merge:
    """Merge two commits without touching any file or index."""
    args = ("merge-tree", "--write-tree", "--name-only", "--messages", "-z", ours, theirs)
    result = git.try_run(*args)
    if result.code not in (0, 1):
        raise git_error(args, result)
    tree, *parts = result.out.split(b"\0")
    if result.code == 0:
        return Merge(tree.decode())
    end = parts.index(b"") if b"" in parts else len(parts)
    messages = b"".join(part for part in parts[end + 1 :] if part.endswith(b"\n"))
    files = tuple(dict.fromkeys(os.fsdecode(name) for name in parts[:end]))
    text = clean(messages.decode("utf-8", "replace"))[:MAX_MESSAGES]
    return Merge(tree.decode(), Conflict(files[:MAX_FILES], text))


def make_candidate(git: Git, base: str, branches: Sequence[Branch], reserved: Reserved, work: str) -> Candidate:
    """Make one commit on `base` that merges the branches in their order, without those that conflict."""
    ours, tree = base, git.tree_at(base)
    roots = (*reserved.lists, *reserved.settings)
    own = _entries(git, base, roots)
    last = branches[-1].key if branches else ""
    tried: list[Branch] = []
    conflicts: dict[str, Conflict] = {}
    empty: list[str] = []
    for branch in branches:
        theirs = branch.tip
        if any(_is_below(name, roots) for name in branch.files):  # these changes are not merged and must not conflict
            theirs = _with_entries(git, theirs, own, roots)
        merge = merge_commits(git, ours, theirs)
        if merge.conflict:
            alone = merge_commits(git, base, theirs) if tried else merge
            if alone.conflict:
                conflicts[branch.key] = alone.conflict
        elif merge.tree == tree:
            empty.append(branch.key)
        else:
            tried.append(branch)
            tree = merge.tree
            ours = git.commit_tree(tree, (ours, theirs), INTERMEDIATE) if branch.key != last else ours
    if not tried:
        return Candidate(base=base, conflicts=conflicts, empty=tuple(empty))
    tree = _tick(git, tree, own, reserved, [branch.key for branch in tried])
    parents = (base, *(branch.tip for branch in tried))
    commit = git.commit_tree(tree, parents, _message(tried, work), git.identity())
    return Candidate(base=base, commit=commit, tried=tuple(tried), conflicts=conflicts, empty=tuple(empty))


def with_files_of(git: Git, tip: str, base: str, paths: Sequence[str]) -> str:
    """Return a commit on `tip` whose files at or below `paths` are those of `base`; `tip` if they already are."""
    return _with_entries(git, tip, _entries(git, base, paths), paths)


def _with_entries(git: Git, tip: str, own: Mapping[bytes, TreeEntry], roots: Sequence[str]) -> str:
    theirs = _entries(git, tip, roots)
    entries = {path: own.get(path) for path in {*theirs, *own} if theirs.get(path) != own.get(path)}
    return git.commit_tree(tree_with(git, tip, entries), (tip,), INTERMEDIATE) if entries else tip


def _is_below(name: str, roots: Sequence[str]) -> bool:
    return name == "**" or any(name == root or name.startswith(f"{root}/") for root in roots)


def _tick(git: Git, tree: str, own: Mapping[bytes, TreeEntry], reserved: Reserved, keys: Sequence[str]) -> str:
    lists = {path: entry for path, entry in own.items() if _is_below(os.fsdecode(path), reserved.lists)}
    if not lists:
        return tree
    contents = {os.fsdecode(path): git.run("cat-file", "blob", entry[1]) for path, entry in lists.items()}
    entries: dict[bytes, TreeEntry | None] = {}
    for name, data in reserved.tick(contents, keys).items():
        path = os.fsencode(name)
        blob = git.run("hash-object", "-w", "--stdin", stdin=data).decode().strip()
        entries[path] = (lists[path][0] if path in lists else b"100644", blob)
    return tree_with(git, tree, entries) if entries else tree


def _entries(git: Git, commit: str, roots: Sequence[str]) -> dict[bytes, TreeEntry]:
    """Return the files of a commit at or below these paths."""
    if not roots:
        return {}
    out = git.run("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", commit, "--", *roots)
    rows = (line.partition(b"\t") for line in out.split(b"\0")[:-1])
    return {path: (about.split()[0], about.split()[2].decode()) for about, _, path in rows}


def commit_nothing(git: Git, tip: str, message: str) -> str:
    """Return a commit on `tip` that changes no file, with which a branch can be moved so that others notice."""
    return git.commit_tree(git.tree_at(tip), (tip,), message)


def _message(tried: Sequence[Branch], work: str) -> str:
    if len(tried) == 1:
        lines = [one_line(tried[0].title, 100), ""]
    else:
        keys = one_line(", ".join(branch.key for branch in tried), 60)
        lines = [f"Merge {len(tried)} tasks: {keys}", "", *(f"- {one_line(branch.title, 100)}" for branch in tried), ""]
    closing = [branch.closing for branch in tried if branch.closing]
    tasks = [f"Ralph-Task: {branch.key}" for branch in tried]
    # Git recognises trailers only in a separate paragraph.
    return "\n".join([*lines, *([*closing, ""] if closing else []), *tasks, f"Ralph-Work: {work}", ""])


def move_target(git: Git, ref: str, new: str, old: str) -> Literal["moved", "lost"]:
    """Move a ref from `old` to `new` by compare-and-swap; return "lost" if somebody else has moved it.

    Git exits with the same code if the ref is locked. Therefore this reads the ref again, and removes a stale lock.
    """
    args = ("update-ref", "--no-deref", "--create-reflog", "-m", "ralph: merge", ref, new, old)
    for is_last in LOCKED_REF.tries():
        remove_reflog_links(git, ref)
        result = git.try_run(*args)
        now = new if not result.code else git.resolve(ref)
        if now == new:
            return "moved"
        if now != old:
            return "lost"
        is_locked = remove_stale(git, os.path.join(git.common_dir, f"{ref}.lock")) or result.found_lock
        if is_last or not (result.was_killed or is_locked):
            break
    raise git_error(args, result, f"cannot move {ref}")


def delete_branches(git: Git, tips: Mapping[str, str]) -> None:
    """Delete branches that only ralph writes, if they still point to these commits."""
    for name, tip in tips.items():
        with suppress(GitError):  # it is gone or has moved, or git was killed
            update_refs(git, f"delete refs/heads/{name} {tip}")


def files_with_markers(git: Git, commit: str, files: Sequence[str]) -> tuple[str, ...]:
    """Return the files of a commit that contain conflict markers."""
    if not files:
        return ()
    args = ("grep", "-l", "-z", "--full-name", "-I", "-E", "^(<<<<<<<|>>>>>>>) ", commit, "--", *files)
    result = git.try_run("--literal-pathspecs", *args)
    names = [name.partition(b":")[2] for name in result.out.split(b"\0") if name]
    return tuple(display_path(name) for name in names)
