"""What stands in a working tree of ralph's own, and how is it put right? The gate's, and those of items: nobody else
works there, so that what a killed git has left may go."""

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from ralph.errors import UserError
from ralph.files import read_given
from ralph.repository.git import Repository, ask, identity, refusal, run
from ralph.repository.scm import OWN_FILES

STALE = 2.0  # seconds: to move a ref or to write an index takes git a few thousandths of one


def own_folder(path: str) -> str:
    """Where git keeps what belongs to this working tree alone: its HEAD and index."""
    mark = os.path.join(path, ".git")
    if os.path.isdir(mark):
        return mark
    try:
        return os.path.join(path, os.fsdecode(read_given(mark, 1 << 16)).removeprefix("gitdir:").strip())
    except FileNotFoundError:
        raise
    except OSError as error:  # an agent that worked there has put something else in its place
        raise UserError(f"cannot read {mark}: {error.strerror}", "remove that worktree: git worktree remove") from None


def common_folder(path: str) -> str:
    """Where git keeps what all working trees of a repository share."""
    own = own_folder(path)
    named = _read(os.path.join(own, "commondir"))
    return os.path.join(own, named) if named else own


def holder_of(repository: Repository, branch: str) -> str:
    """The folder in which a branch is checked out, if there is one."""
    common = common_folder(repository.root)
    trees = os.path.join(common, "worktrees")
    names = sorted(os.listdir(trees)) if os.path.isdir(trees) else []
    for own in (common, *(os.path.join(trees, name) for name in names)):
        if _read(os.path.join(own, "HEAD")) == f"ref: refs/heads/{branch}":
            place = _read(os.path.join(own, "gitdir")) if own != common else os.path.join(os.path.realpath(common), "")
            folder = os.path.dirname(place)
            if os.path.exists(os.path.join(folder, ".git")) or own == common:
                return folder
    return ""


def _read(path: str) -> str:
    try:
        return os.fsdecode(read_given(path, 1 << 16)).strip()
    except OSError:
        return ""


def tree_at(repository: Repository, path: str, commit: str) -> bool:
    """Makes the gate's own working tree what this commit says; what git ignores stays, caches above all. True where it
    was made anew. Nobody else works there: a lock in it is what a killed git has left."""
    is_new = not os.path.exists(os.path.join(path, ".git")) or not os.path.isdir(own_folder(path))
    if is_new:
        import shutil

        shutil.rmtree(path, ignore_errors=True)
        repository.git("worktree", "prune")
        repository.git("worktree", "add", "-q", "--detach", "--force", "--", path, commit)
    heal(path)
    run(path, "checkout", "-q", "--detach", "--force", commit)
    run(path, "clean", "-q", "-ffd")
    return is_new


def restore(path: str) -> None:
    """Takes back what a check has done to files that git knows, and removes new ones."""
    status = run(path, "status", "--porcelain", "-z", "--no-renames", "--ignore-submodules=none")
    if status:
        run(path, "reset", "-q", "--hard")
        run(path, "clean", "-q", "-ffd")


def heal(path: str, *refs: str) -> None:
    """Removes the locks that a killed git has left in a working tree which is ours alone, and on its branch."""
    own = own_folder(path)
    _unlock(os.path.join(own, name) for name in ("index.lock", "HEAD.lock"))
    heal_refs(path, *refs)


def heal_refs(path: str, *refs: str) -> None:
    """The same for refs that nobody else writes."""
    common = common_folder(path)
    _unlock(os.path.join(common, f"{ref}.lock") for ref in refs)


def _unlock(locks: Iterable[str]) -> None:
    for lock in locks:
        with suppress(FileNotFoundError, NotADirectoryError):
            while (age := time.time() - os.stat(lock).st_mtime) < STALE:
                time.sleep(min(max(STALE - age, 0.0), 0.05))  # a git that outlived its ralph is about to end
            os.unlink(lock)


def bring_target(path: str, target: str, kept: Sequence[str]) -> tuple[str, ...]:
    """Merges the target into an item's working tree, and commits that with all marks of conflicts: names the files in
    which there are some. The list and the settings become the target's. What was done before is not done again."""
    if not ask(path, "merge-base", "--is-ancestor", target, "HEAD").code:
        return ()
    env = identity(path)
    run(path, "reset", "-q", "--hard")  # what was cut off half-way; all work is committed when the gate sees it
    own = [name for name in kept if not ask(path, "cat-file", "-e", f"{target}:{name}").code]
    if own:
        run(path, "--literal-pathspecs", "checkout", "-q", target, "--", *own)
        if ask(path, "diff", "--cached", "--quiet").code:
            run(path, "commit", "-q", "--no-verify", "--no-gpg-sign", "-m", "ralph: the list is the target's", env=env)
    words = ("merge", "-q", "--no-ff", "--no-verify", "--no-gpg-sign", "-m", "ralph: the target as it is now", target)
    answer = ask(path, *words, env=env)
    if not answer.code:
        return ()
    files = [
        os.fsdecode(name) for name in run(path, "diff", "--name-only", "-z", "--diff-filter=U").split(b"\0") if name
    ]
    if not files:
        raise refusal(words, answer, "cannot merge the target into an item's worktree")
    run(path, "add", "--all")
    run(
        path,
        "commit",
        "-q",
        "--no-verify",
        "--no-gpg-sign",
        "-m",
        "ralph: the target, with conflicts to solve",
        env=env,
    )
    return tuple(files)


def is_clean(path: str, tip: str) -> bool:
    """Whether a working tree holds this commit and nothing else, ralph's own files aside."""
    words = ("status", "--porcelain=v2", "--branch", "-z", "--", ":(top)", OWN_FILES)
    answer = ask(path, "--no-optional-locks", *words)
    lines = [line for line in answer.out.split(b"\0") if line]
    is_there = f"# branch.oid {tip}".encode() in lines
    return not answer.code and is_there and all(line.startswith(b"# ") for line in lines)
