"""Where does a run work that must not touch the user's files? In a linked worktree on a branch of its own, outside the
user's tree, until the user merges the branch. What stands in a working tree of ralph's own, the gate's among them, and
how is it put right? Nobody else works there, so that what a killed git has left may go.

Worktrees live in `$XDG_STATE_HOME/ralph/worktrees` (`~/.local/state/...`): not in the repository, where tools would
find every file twice; not beside it, where ralph may not be allowed to write; not in a folder that a restart empties.
"""

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from ralph.core.events import NAMES, RunStarted
from ralph.core.text import head
from ralph.errors import UserError
from ralph.files import hold, open_file, read_given, remove_tree, replace_file, stamp_of, state_folder, write_file
from ralph.processes.program import seconds_left
from ralph.records.folder import is_occupied
from ralph.records.journal import read
from ralph.repository.git import (
    PLAIN,
    GitError,
    Repository,
    ask,
    commit_of,
    identity,
    own_folder,
    refusal,
    run,
    shared_by,
    text_in,
)
from ralph.repository.index import shown
from ralph.repository.scm import OWN_FILES, Runner, commit_with_git, unattended

SHALLOW = ("--ignore-submodules=dirty",)  # to look into a repository inside is to obey what an agent wrote there
_CHECK_OUT = ("checkout", "-q", "--detach", "--force")
_LAID = "ralph-laid"
_LARGEST_INDEX = 1 << 32
_COMMIT = ("commit", "-q", "--no-verify", "--no-gpg-sign", "-m")
STALE = 2.0  # seconds: to move a ref or to write an index takes git a few thousandths of one
PACKING = 10.0  # seconds: to write all refs anew takes git one or two of them, even where there are a million


def holder_of(repository: Repository, branch: str) -> str:
    """The folder in which a branch is checked out, if there is one."""
    common = shared_by(own_folder(repository.root))
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
        return text_in(path).strip()
    except OSError:
        return ""


class Laid(Struct, frozen=True, kw_only=True):
    """A working tree of ralph's own that was made what a commit says. Git knows it by `.git`, and its files by an index
    and HEAD in the folder that this leads to; a check may change those as well: so they are kept here."""

    path: str
    commit: str
    is_new: bool
    mark: bytes
    own: str
    index: bytes
    times: tuple[int, int]


def tree_at(worktree: "Worktree", commit: str) -> Laid:
    """Makes the gate's own working tree what this commit says; what git ignores stays, caches above all. Nobody else
    works there: a lock in it is what a killed git has left."""
    path, is_new = worktree.path, not is_own(worktree) or _is_half_made(worktree)
    if is_new:
        remove_folder(worktree)
        run(worktree.home, "worktree", "add", "-q", "--detach", "--force", "--force", "--", path, commit)
    heal(path)
    is_exact = is_new or _is_exact_for(path, commit)
    run(path, *_CHECK_OUT, commit)
    own = own_folder(path)
    index = os.path.join(own, "index")
    if not is_exact:  # without an index git writes every file
        os.unlink(index)
        run(path, *_CHECK_OUT, commit)
    _unhide_new_files(path)
    _clean(path)
    stat = os.stat(index)
    laid = Laid(
        path=path,
        commit=commit,
        is_new=is_new,
        mark=read_given(os.path.join(path, ".git")),
        own=own,
        index=read_given(index, _LARGEST_INDEX),
        times=(stat.st_atime_ns, stat.st_mtime_ns),
    )
    put_back(laid)
    return laid


def _is_exact_for(path: str, commit: str) -> bool:
    """Whether git can know by its index alone which files another commit would have otherwise: that is as ralph left
    it, and no attribute has changed, which says how files are written that have not."""
    own = own_folder(path)
    noted = _read(os.path.join(own, _LAID)).split()
    if noted != [_read(os.path.join(own, "HEAD")), *map(str, stamp_of(os.path.join(own, "index")))]:
        return False
    attributes = ("--", ":(top,glob)**/.gitattributes")
    return not ask(path, "diff-tree", "-r", "--quiet", noted[0], commit, *attributes).code


def put_back(laid: Laid) -> None:
    """`.git`, HEAD and the index become what they were, and a note says so for one who comes later."""
    index = os.path.join(laid.own, "index")
    head, mark = os.path.join(laid.own, "HEAD"), os.path.join(laid.path, ".git")
    try:
        if os.path.islink(laid.path):
            raise NotADirectoryError(errno.ENOTDIR, "there is a link in its place")
        for place, content in ((mark, laid.mark), (head, f"{laid.commit}\n".encode()), (index, laid.index)):
            with suppress(FileNotFoundError):
                if read_given(place, _LARGEST_INDEX) == content:
                    continue
            replace_file(place, content)
        os.utime(index, ns=laid.times)  # git trusts what is older than its index
        write_file(os.path.join(laid.own, _LAID), " ".join((laid.commit, *map(str, stamp_of(index)))).encode())
    except OSError as error:
        raise GitError(f"a check has spoilt {laid.path}: {error.strerror}", "it is made anew the next time") from None


def _unhide_new_files(path: str) -> None:
    """Whether a new file is ignored is for the work to say, and not for a `.gitignore` that a check leaves in one of
    its folders. In folders of their own, caches may have some, and so has ralph."""
    known = {*run(path, "ls-files", "-z").split(b"\0")}
    for folder in {os.path.dirname(name) for name in known}:
        name = os.path.join(folder, b".gitignore")
        if name not in known and os.path.basename(folder) != b".ralph":
            with suppress(OSError):
                os.unlink(os.path.join(os.fsencode(path), name))


def _clean(path: str) -> None:
    answer = ask(path, "clean", "-q", "-ffd")
    if answer.code:  # an agent may have nested folders deeper than a path may be long
        why = head(refusal(("clean",), answer).message, 100, "…")
        hint = "folders may be nested deeper there than a path may be long: remove them with rm -r"
        raise GitError(f"not all new files in {path} can be removed: {why}", hint)


def restore(laid: Laid) -> None:
    """Takes back what a check has done to files that git knows, and to what git knows of them; removes new ones."""
    put_back(laid)
    _unhide_new_files(laid.path)
    if run(laid.path, "status", "--porcelain", "-z", "--no-renames", *SHALLOW):
        run(laid.path, "reset", "-q", "--hard")
        _clean(laid.path)


def take_back(worktree: "Worktree") -> None:
    """What its branch says, where something else was tried, perhaps half-way. All that was there is committed."""
    heal(worktree.path)
    run(worktree.path, "checkout", "-q", "--force", worktree.branch, "--")
    _clean(worktree.path)


def heal(path: str, *refs: str) -> None:
    """Removes the locks that a killed git has left in a working tree which is ours alone, and on its branch."""
    own = own_folder(path)
    unlock(*(os.path.join(own, name) for name in ("index.lock", "HEAD.lock")))
    heal_refs(path, *refs)


def heal_refs(path: str, *refs: str) -> None:
    """The same for refs that nobody else writes."""
    common = shared_by(own_folder(path))
    unlock(*(os.path.join(common, f"{ref}.lock") for ref in refs))
    for ref in refs:
        if _read(os.path.join(common, ref)).startswith("ref:"):  # another name of a branch, which a commit would move
            run(path, "update-ref", "--no-deref", ref, commit_of(path, ref))


def change_refs(folder: str, *changes: str) -> None:
    """Of refs that nobody else writes, each as a line for `git update-ref`: a lock is what a killed git has left."""
    words = ("-c", "core.logAllRefUpdates=false", "update-ref", "--no-deref", "--stdin")
    lines = "".join(f"{change}\n" for change in changes).encode("utf-8", "surrogateescape")
    answer = ask(folder, *words, stdin=lines)
    if "File exists" in answer.error:
        heal_refs(folder, *(change.split()[1] for change in changes))
        heal_packed_refs(folder)
        answer = ask(folder, *words, stdin=lines)
    if answer.code:
        raise refusal(words, answer)


def heal_packed_refs(folder: str) -> None:
    """Removes the lock that a git has left which was killed while it removed a branch: until then nobody can remove
    one, the user neither."""
    unlock(os.path.join(shared_by(own_folder(folder)), "packed-refs.lock"), stale=PACKING)


def unlock(*locks: str, stale: float = STALE) -> bool:
    """Removes the locks of gits that were killed, once no living git can be holding them: one that outlived its ralph
    is about to end. An agent may have dated one as it likes. Whether there was any; one stays where a person wants an
    end before that."""
    found = False
    for lock in locks:
        with suppress(FileNotFoundError, NotADirectoryError):
            while abs(age := time.time() - os.stat(lock).st_mtime) < stale:
                found = True
                if seconds_left() < stale:
                    return True
                time.sleep(min(stale - abs(age), 0.05))
            os.unlink(lock)
            found = True
    return found


def bring_target(path: str, target: str, kept: Sequence[str]) -> tuple[str, ...]:
    """Merges the target into an item's working tree, and commits that with all marks of conflicts: names the files in
    which there are some. The list and the settings become the target's. What was done before is not done again."""
    if not ask(path, "merge-base", "--is-ancestor", target, "HEAD").code:
        if os.path.lexists(os.path.join(own_folder(path), "MERGE_HEAD")):  # a git was killed once it had committed that
            run(path, "merge", "--quit")
        return ()
    env = identity(path)
    run(path, "reset", "-q", "--hard")  # what was cut off half-way; all work is committed when the gate sees it
    own = [name for name in kept if not ask(path, "cat-file", "-e", f"{target}:{name}").code]
    if own:
        run(path, "--literal-pathspecs", "checkout", "-q", target, "--", *own)
        if ask(path, "diff", "--cached", "--quiet").code:
            run(path, *_COMMIT, "ralph: the list is the target's", env=env)
    words = ("merge", "-q", "--no-ff", "--no-verify", "--no-gpg-sign", "-m", "ralph: the target as it is now", target)
    answer = ask(path, *words, env=env)
    if "would be overwritten by merge" in answer.error:  # files of the target, from a merge that was killed half-way
        _clean(path)
        answer = ask(path, *words, env=env)
    if not answer.code:
        return ()
    conflicts = run(path, "diff", "--name-only", "-z", "--diff-filter=U", *SHALLOW)
    files = [os.fsdecode(one) for one in conflicts.split(b"\0") if one]
    if not files:
        raise refusal(words, answer, "cannot merge the target into an item's worktree")
    # These alone, for all else is what the merge has made it: to look for more is to look into repositories inside.
    named = ("--pathspec-from-file=-", "--pathspec-file-nul")
    run(path, "--literal-pathspecs", "add", "--all", *named, stdin=conflicts)
    run(path, *_COMMIT, "ralph: the target, with conflicts to solve", env=env)
    return tuple(files)


def is_clean(path: str, tip: str) -> bool:
    """Whether a working tree holds this commit and nothing else, ralph's own files and what was carried over aside."""
    carried = {b"? " + name for name in _carried(path)}
    deep = ("--untracked-files=all",) if carried else ()
    words = ("status", "--porcelain=v2", "--branch", "-z", *deep, *SHALLOW, "--", ":(top)", OWN_FILES)
    answer = ask(path, "--no-optional-locks", *words)
    lines = [line for line in answer.out.split(b"\0") if line and line not in carried]
    is_there = f"# branch.oid {tip}".encode() in lines
    return not answer.code and is_there and all(line.startswith(b"# ") for line in lines)


class Astray(UserError):
    """What an agent has left in a worktree cannot be had as a branch: it is for a person to look at."""


class Worktree(Struct, frozen=True):
    """`workspace` is the same subfolder in it that the user was in; `home` is the user's own working tree."""

    path: str
    branch: str
    workspace: str
    home: str


def worktree_of(repository: Repository, run_id: str) -> Worktree:
    """The worktree of a run, be it there or not."""
    return named(repository, f"-{run_id}", f"ralph/{run_id}")


def named(repository: Repository, suffix: str, branch: str) -> Worktree:
    """A worktree of this repository, beside those of its runs."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in os.path.basename(repository.root))
    path = os.path.join(_folder(), f"{name or 'repository'}{suffix}")
    return Worktree(path, branch, os.path.join(path, repository.prefix).rstrip("/"), repository.root)


@contextmanager
def alone(repository: Repository) -> Iterator[None]:
    """While entered, no other ralph of this user makes or removes a worktree: git is not safe beside itself there, and
    one that is just being made looks like one that nobody needs."""

    folder = _folder()
    if os.path.commonpath((folder, repository.root)) == repository.root:
        raise UserError(
            f"the worktree would lie inside {repository.root}", "name a folder outside it with XDG_STATE_HOME"
        )
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        lock = open_file(os.path.join(folder, ".lock"), os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(
            f"cannot make a worktree in {folder}: {error.strerror}",
            "name a folder that can be written with XDG_STATE_HOME",
        ) from None
    try:
        hold(lock, folder, left=seconds_left)
        yield
    finally:
        os.close(lock)


def create(repository: Repository, worktree: Worktree, start: str = "HEAD") -> str:
    """A new worktree and branch, and what the user should know about it. All or nothing; to be called `alone`."""
    if not (head := commit_of(repository.root, "HEAD")):
        raise UserError("a worktree needs a commit to start from, and there is none", "commit once, then run again")
    if os.path.lexists(worktree.path):
        raise UserError(f"{worktree.path} is there already", "it may hold work of an earlier run: merge or remove it")
    if commit_of(repository.root, f"refs/heads/{worktree.branch}"):
        raise UserError(f"the branch {worktree.branch} exists already", "it may hold work of an earlier run")
    if commit_of(repository.root, "refs/heads/ralph"):
        raise UserError("a branch named ralph is in the way of ralph/<run>", "rename it: git branch -m ralph my-ralph")
    at = head if start == "HEAD" else start  # as a branch or a tag may be called, too
    words = ("worktree", "add", "--no-track", "-b", worktree.branch, "--", worktree.path, at)
    answer = repository.ask(*words)
    if answer.code:
        _undo(repository, worktree)
        raise refusal(words, answer, "cannot make a worktree")
    os.makedirs(worktree.workspace, exist_ok=True)
    count = len(_changes(repository.root, "normal")) if start == "HEAD" else 0
    if not count:
        return ""
    changes = "an uncommitted change stays" if count == 1 else f"{count} uncommitted changes stay"
    return f"{changes} in {repository.root}; the worktree starts from the last commit"


def commit_all(worktree: Worktree, message: str, runner: Runner = unattended) -> str | None:
    """Commits what the worktree holds, so that merging its branch brings it; None if there was nothing new.

    Without the user's hooks and signature: ralph's checks are the gate here, and nobody is there to answer a prompt.
    The user's own apply when the branch is merged.
    """
    refuse_another(worktree)
    before = commit_of(worktree.path, "HEAD")
    flags = ("--no-verify", "--no-gpg-sign", "--allow-empty-message")
    env = {**identity(worktree.path), "GIT_WORK_TREE": worktree.path}
    for _ in range(2):  # a git that was killed, the agent's or this one, leaves its locks, and nobody else is here
        with suppress(FileNotFoundError):
            heal(worktree.path, f"refs/heads/{worktree.branch}")
        result = commit_with_git(
            ("git", *PLAIN),
            message,
            Path(worktree.path),
            flags=flags,
            env=env,
            run=runner,
            without=_carried(worktree.path),
        )
        if result.ok or result.was_ended:
            break
    if not result.ok:
        raise UserError(f"cannot commit in {worktree.path}: {result.detail}", "the work is there, uncommitted")
    made = commit_of(worktree.path, "HEAD")
    _bring_branch_to(worktree, made)
    return made if made != before else None


def kept_for(worktree: Worktree) -> str:
    """The folder in which the repository keeps what belongs to this worktree alone, by its own word and not by that of
    a `.git` which an agent may have written; nothing where it knows of no such worktree."""
    trees = os.path.realpath(os.path.join(shared_by(own_folder(worktree.home)), "worktrees"))
    first, mark = os.path.basename(worktree.path), os.path.join(worktree.path, ".git")
    for name in sorted(os.listdir(trees) if os.path.isdir(trees) else (), key=lambda name: name != first):
        place = os.path.join(trees, name)
        if os.path.normpath(os.path.join(place, _read(os.path.join(place, "gitdir")))) == mark:
            return place
    return ""


def is_own(worktree: Worktree) -> bool:
    """Whether there is this worktree in its place. By a link there, or by a `.git` that leads elsewhere, git would
    change the files, the index and the branch of another one, such as the user's own."""
    try:
        kept = kept_for(worktree)
        return bool(kept) and not os.path.islink(worktree.path) and os.path.samefile(own_folder(worktree.path), kept)
    except (OSError, UserError):
        return False


def _is_half_made(worktree: Worktree) -> bool:
    """Whether a git was killed that was making it: until that is done git locks it, and there is no index."""
    kept = kept_for(worktree)
    is_locked, has_index = (os.path.lexists(os.path.join(kept, name)) for name in ("locked", "index"))
    return bool(kept) and is_locked and not has_index


def refuse_another(worktree: Worktree) -> None:
    """Raises where the folder is no longer the worktree that it was."""
    if not is_own(worktree):
        raise Astray(
            f"{worktree.path} is no longer the worktree of {worktree.branch}",
            f"see what happened to it; the work that was committed is on {worktree.branch}",
        )


def remove(worktree: Worktree) -> None:
    """Removes the worktree and its branch, unless that would lose anything."""
    refuse_if_anything_is_lost(worktree)
    tip = commit_of(worktree.home, f"refs/heads/{worktree.branch}")
    kept = kept_for(worktree)
    if kept and os.path.lexists(os.path.join(kept, "locked")):
        raise UserError(f"{worktree.path} is locked", f"git worktree unlock {worktree.path}")
    remove_folder(worktree)
    if tip:
        change_refs(worktree.home, f"delete refs/heads/{worktree.branch} {tip}")


def remove_folder(worktree: Worktree) -> None:
    """Removes what is there, and what git keeps for it."""
    try:
        take_down(worktree)
    except OSError as error:
        raise GitError(f"cannot remove {error.filename or worktree.path}: {error.strerror}") from None
    run(worktree.home, "worktree", "prune")


def take_down(worktree: Worktree) -> None:
    """The folder is out of the way at once: half of one, of which a kill has left the rest, would look like work that
    is not committed. Then what git keeps for it, which it cannot read, or takes for locked, where a git was killed that
    was making it. Of a link in its place, that to which it leads stays."""
    going = f"{worktree.path}.gone"
    for folder in (going, worktree.path) if worktree.path else ():
        if os.path.islink(folder):
            os.unlink(folder)
        elif os.path.lexists(folder):
            if folder != going:
                os.rename(folder, going)
            remove_tree(going)
    if kept := kept_for(worktree):
        remove_tree(kept, last="gitdir")


def forget_unbegun(repository: Repository, runs: Path) -> None:
    """Removes the worktrees of those `runs` of a workspace that were killed before they began: nobody was told of them,
    and no agent has been there."""
    names = repository.git("for-each-ref", "--format=%(refname:lstrip=3)", "refs/heads/ralph/").decode(
        "utf-8", "replace"
    )
    for run_id in names.splitlines():
        with suppress(OSError, UserError):  # the worktree of another workspace, or one that somebody has put to use
            first = next(read(runs / run_id / "journal.ndjson"), None)
            worktree = worktree_of(repository, run_id)
            if (first is None or first.type != NAMES[RunStarted]) and not is_occupied(Path(worktree.workspace)):
                if _is_half_made(worktree):
                    remove_folder(worktree)
                remove(worktree)


def _folder() -> str:
    return os.path.realpath(state_folder(os.environ, "worktrees"))


def _undo(repository: Repository, worktree: Worktree) -> None:
    """What a failed `git worktree add` may leave: none of it was there before."""
    with suppress(UserError):
        remove_folder(worktree)
        if tip := commit_of(repository.root, ref := f"refs/heads/{worktree.branch}"):
            change_refs(repository.root, f"delete {ref} {tip}")


def _changes(folder: str, new_files: str) -> list[bytes]:
    """What `git status` shows, less ralph's own files."""
    words = ("status", "--porcelain", "-z", "--no-renames", f"--untracked-files={new_files}", *SHALLOW)
    lines = run(folder, "--no-optional-locks", *words).split(b"\0")
    return [line[3:] for line in lines if line and b"/.ralph/" not in b"/" + line[3:]]


def _bring_branch_to(worktree: Worktree, commit: str) -> None:
    """The agent may have changed branches: the work must be on the one that the user is told to merge."""
    ref = f"refs/heads/{worktree.branch}"
    tip = commit_of(worktree.path, ref)
    if tip == commit:
        return
    if tip and not contains(worktree.path, commit, tip):
        raise Astray(
            f"the worktree is no longer on its branch {worktree.branch}, and both have commits of their own",
            f"look at {worktree.path}: its HEAD is {commit[:12]}",
        )
    change_refs(worktree.path, f"update {ref} {commit} {tip or '0' * len(commit)}")


def refuse_if_anything_is_lost(worktree: Worktree) -> None:
    branch = commit_of(worktree.home, f"refs/heads/{worktree.branch}")
    commits = {branch}
    if os.path.isdir(worktree.path):
        commits.add(commit_of(worktree.path, "HEAD"))
        if left := unsaved(worktree):
            raise UserError(f"{worktree.path} has work that is not committed: {left}", "commit or remove it first")
    for commit in commits - {""}:
        if not _is_elsewhere(worktree, commit):
            raise UserError(
                f"the branch {worktree.branch} has commits that are not merged",
                f"merge them with `git merge {worktree.branch}`, or drop them with `git branch -D`",
            )


def unsaved(worktree: Worktree) -> str:
    """The first thing in the worktree that exists nowhere else: a change, a new file, a repository of its own."""
    paths = _changes(worktree.path, "all")
    for line in run(worktree.path, "ls-files", "--stage", "-z").split(b"\0"):
        if line.startswith(b"160000"):
            place = os.path.join(os.fsencode(worktree.path), line.partition(b"\t")[2])
            if os.path.isdir(place) and os.listdir(place):
                paths.append(place)
    return shown(paths[0]) if paths else ""


def _is_elsewhere(worktree: Worktree, commit: str) -> bool:
    """Whether another branch, a remote one, a tag, or the user's HEAD contains this commit."""
    kinds = ("refs/heads", "refs/remotes", "refs/tags")
    refs = run(worktree.home, "for-each-ref", "--format=%(refname)", f"--contains={commit}", *kinds)
    others = {*refs.decode("utf-8", "replace").splitlines()} - {f"refs/heads/{worktree.branch}"}
    return bool(others) or contains(worktree.home, "HEAD", commit)


def contains(folder: str, later: str, earlier: str) -> bool:
    answer = ask(folder, "merge-base", "--is-ancestor", earlier, later)
    if answer.code > 1:
        raise refusal(("merge-base",), answer)
    return answer.code == 0


INCLUDE = ".worktreeinclude"
_CARRIED = "ralph-carried"
_LARGEST_LIST = 1 << 26


def _carried(path: str) -> list[bytes]:
    """What was carried over, and is nobody's work, though a `.gitignore` may not name it any more."""
    with suppress(OSError, UserError):
        return read_given(os.path.join(own_folder(path), _CARRIED), _LARGEST_LIST).split(b"\0")
    return []


def carry_over(repository: Repository, worktree: Worktree) -> None:
    """Copies what git ignores and `.worktreeinclude` names (patterns as in .gitignore)."""
    import shutil

    patterns = os.path.join(repository.root, INCLUDE)
    if not os.path.isfile(patterns):
        return
    words = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={patterns}")
    named_ = [path for path in repository.git(*words).split(b"\0") if path]
    ignored = repository.ask("check-ignore", "-z", "--stdin", stdin=b"\0".join(named_)).out.split(b"\0")
    write_file(os.path.join(own_folder(worktree.path), _CARRIED), b"\0".join(filter(None, ignored)))
    for path in filter(None, ignored):
        target = os.path.join(os.fsencode(worktree.path), path)
        source = os.path.join(os.fsencode(repository.root), path)
        if b".ralph" in path.split(b"/") or os.path.lexists(target) or not os.path.isfile(source):
            continue
        with suppress(FileNotFoundError):  # it may just go
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
