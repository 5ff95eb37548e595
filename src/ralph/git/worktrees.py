"""ralph's own worktrees: one per isolated run, one per task of a backlog, one for the merge gate.

They are in `$XDG_STATE_HOME/ralph/worktrees` (`~/.local/state/...`). In the repository tools would find every file
twice; next to it ralph may not be allowed to write. Only ralph uses these worktrees, so it may remove locks there.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.events import NAMES, RunStarted
from ralph.core.text import head
from ralph.errors import UserError
from ralph.files import locked, read_given, remove_tree, replace_file, state_folder, temporary_folder
from ralph.git.client import PINNED_SETTINGS, Git, GitError, git_at, git_dir_of, git_error, read_line
from ralph.git.index import MAX_INDEX, PrivateIndex, display_path, files_in, find_nested, gitlinks
from ralph.git.locks import remove_stale, remove_stale_locks, update_refs
from ralph.git.scm import Runner, commit_with_git, run_unattended
from ralph.git.setup_files import excludes_file, forget_setup_files, load_setup_files
from ralph.store.folder import is_occupied
from ralph.store.journal import read_entries

# Without this option git looks into nested repositories, and runs programs that their settings name.
NOT_INTO_NESTED = ("--ignore-submodules=dirty",)
ATTRIBUTES = ("--", ":(top,glob)**/.gitattributes")
COMMIT = ("commit", "-q", "--no-verify", "--no-gpg-sign", "-m")


class WrongWorktree(UserError):
    """A worktree is in a state that cannot become a branch: a person has to look at it."""


class Worktree(Struct, frozen=True):
    """A worktree that may exist or not."""

    path: str
    branch: str
    workspace: str
    """The user's subfolder in it."""
    repository: Git
    """The user's own working tree."""

    @property
    def git(self) -> Git:
        """Git in this worktree. It uses the git folder that the repository has registered, not the one that `.git`
        names."""
        git_dir = registered_git_dir(self)
        if not git_dir:
            raise _another_tree(self)
        return replace(self.repository, root=self.path, git_dir=git_dir)

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"


def worktree_of(repository: Git, run_id: str) -> Worktree:
    return worktree_named(repository, f"-{run_id}", f"ralph/{run_id}")


def worktree_named(repository: Git, suffix: str, branch: str) -> Worktree:
    """Return a worktree of this repository whose folder ends in `suffix`."""
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in os.path.basename(repository.root))
    path = os.path.join(worktrees_folder(), f"{name or 'repository'}{suffix}")
    return Worktree(path, branch, os.path.join(path, repository.prefix).rstrip("/"), repository)


def worktrees_folder() -> str:
    """Return the folder of ralph's worktrees and copies, for all repositories. It may not exist yet."""
    return os.path.realpath(state_folder(os.environ, "worktrees"))


def mounts_folder(worktree: str) -> str:
    """Return the folder with what is mounted over a worktree when its commands see it in place of the user's tree."""
    folder, name = os.path.split(worktree)
    return os.path.join(os.path.dirname(folder), "in-place", name)


@contextmanager
def worktree_lock(repository: Git) -> Iterator[None]:
    """Keep other processes of ralph from making or removing worktrees at the same time: git has races there."""
    folder = worktrees_folder()
    if os.path.commonpath((folder, repository.root)) == repository.root:
        raise UserError(
            f"the worktree would be inside {repository.root}", "set XDG_STATE_HOME to a folder outside the repository"
        )
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make a worktree in {folder}: {error.strerror}", "set XDG_STATE_HOME to a writable folder"
        ) from None
    with locked(Path(folder), repository.time_left):
        yield


def checked_out_at(git: Git, branch: str) -> str:
    """Return the folder in which a branch is checked out; empty if there is none."""
    listed = git.run("for-each-ref", "--count=1", "--format=%(worktreepath)", f"refs/heads/{branch}")
    folder = os.fsdecode(listed.removesuffix(b"\n"))
    return folder if folder and os.path.exists(os.path.join(folder, ".git")) else ""


def create(worktree: Worktree, start: str = "HEAD") -> str:
    """Make the worktree and its branch, or neither; return a notice for the user. The caller holds `worktree_lock`."""
    repository = worktree.repository
    if not (commit := repository.resolve("HEAD")):
        raise UserError("a worktree needs a commit to start from, and there is none", "commit once, then run again")
    if os.path.lexists(worktree.path):
        raise UserError(f"{worktree.path} already exists", "it may contain work of an earlier run: merge or remove it")
    if repository.resolve(worktree.ref):
        raise UserError(f"the branch {worktree.branch} already exists", "it may contain work of an earlier run")
    commit = commit if start == "HEAD" else start
    args = ("worktree", "add", "--no-track", "-b", worktree.branch, "--", worktree.path, commit)
    result = repository.try_run(*args)
    if result.code:
        with suppress(UserError):
            remove_folder(worktree)
            if tip := repository.resolve(worktree.ref):
                update_refs(repository, f"delete {worktree.ref} {tip}")
        raise git_error(args, result, "cannot make a worktree")
    os.makedirs(worktree.workspace, exist_ok=True)
    count = len(_changes(repository)) if start == "HEAD" else 0
    if not count:
        return ""
    changes = "an uncommitted change stays" if count == 1 else f"{count} uncommitted changes stay"
    return f"{changes} in {repository.root}; the worktree starts from the last commit"


def commit_all(worktree: Worktree, message: str, runner: Runner | None = None) -> str | None:
    """Commit everything in the worktree; return the new commit, or None if there was nothing new.

    The user's hooks don't run, and the commit is not signed: ralph's checks decide here, and nobody could answer a
    prompt. The user's hooks and signature apply when the branch is merged.
    """
    refuse_another(worktree)
    git = worktree.git
    before = git.resolve("HEAD")
    env = {**git.identity(), **git.location}
    for _ in range(2):  # a lock that a killed git left is removed before the second attempt
        remove_stale_locks(git, worktree.ref)
        result = commit_with_git(
            ("git", *PINNED_SETTINGS),
            message,
            Path(worktree.path),
            git=git,
            flags=("--no-verify", "--no-gpg-sign", "--allow-empty-message"),
            env=env,
            run=runner or partial(run_unattended, deadline=git.deadline),
            without=load_setup_files(git.root).unchanged(git.root),
            nested=find_nested(git),
        )
        if result.ok or result.was_stopped:
            break
    if not result.ok:
        raise UserError(f"cannot commit in {worktree.path}: {result.detail}", "the work is there, uncommitted")
    commit = git.resolve("HEAD")
    _move_branch_to(worktree, git, commit)
    return commit if commit != before else None


def _move_branch_to(worktree: Worktree, git: Git, commit: str) -> None:
    """Move the worktree's branch to `commit`: the agent may have committed on another branch."""
    tip = git.resolve(worktree.ref)
    if tip == commit:
        return
    if tip and not git.contains(commit, tip):
        raise WrongWorktree(
            f"the worktree is no longer on its branch {worktree.branch}, and both have their own commits",
            f"look at {worktree.path}: its HEAD is {commit[:12]}",
        )
    update_refs(git, f"update {worktree.ref} {commit} {tip or '0' * len(commit)}")


def check_out(worktree: Worktree, commit: str) -> bool:
    """Make ralph's worktree exactly this commit, even if a check has changed its files, `.git`, HEAD or index.

    Ignored files stay, such as caches. Return whether the worktree had to be made from scratch.
    """
    git_dir, index = registered_git_dir(worktree), f"{worktree.path}.index"
    is_new = not git_dir or os.path.islink(worktree.path) or not os.path.isdir(worktree.path) or _is_half_made(git_dir)
    if is_new:
        remove_folder(worktree)
        worktree.repository.run(
            "worktree", "add", "-q", "--no-checkout", "--detach", "--force", "--force", "--", worktree.path, commit
        )
    pin_head(worktree, commit)
    remove_stale_locks(worktree.git)
    # A check may have changed the worktree's own index, so another file is used.
    git = replace(worktree.git, env={"GIT_INDEX_FILE": index})
    has_new_attributes = git.try_run("diff-index", "--cached", "--quiet", commit, *ATTRIBUTES).code != 0
    git.run("checkout", "-q", "--detach", "--force", commit)
    if has_new_attributes and not is_new:
        os.unlink(index)  # without an index git writes every file again, as the new attributes say
        git.run("checkout", "-q", "--detach", "--force", commit)
    _remove_new_gitignores(git)
    _clean(git)
    times = os.stat(index)
    replace_file(f"{git.git_dir}/index", read_given(index, MAX_INDEX))
    # Git takes files that are older than the index for unchanged.
    os.utime(f"{git.git_dir}/index", ns=(times.st_atime_ns, times.st_mtime_ns))
    return is_new


def pin_head(worktree: Worktree, commit: str) -> None:
    """Write the worktree's `.git` and HEAD as `git worktree add --detach` does."""
    git = worktree.git
    mark = os.path.join(worktree.path, ".git")
    try:
        if os.path.islink(worktree.path):
            raise NotADirectoryError(0, "it is a link now")
        if os.path.isdir(mark) and not os.path.islink(mark):
            remove_tree(mark)
        # A new file would take away the mount over the old one, in the namespace of a copy that is seen in place.
        if os.path.islink(mark) or read_line(mark) != f"gitdir: {git.git_dir}":
            replace_file(mark, f"gitdir: {git.git_dir}\n".encode())
        replace_file(os.path.join(git.git_dir, "HEAD"), f"{commit}\n".encode())
    except OSError as error:
        raise GitError(
            f"a check broke {worktree.path}: {error.strerror}", "the next check starts from scratch"
        ) from None


def _remove_new_gitignores(git: Git) -> None:
    """Remove untracked `.gitignore` files next to tracked files: they would keep `git clean` from removing others."""
    tracked = {*git.run("ls-files", "-z").split(b"\0")}
    for folder in {os.path.dirname(name) for name in tracked}:
        name = os.path.join(folder, b".gitignore")
        if name not in tracked and os.path.basename(folder) != b".ralph":
            with suppress(OSError):
                os.unlink(git.place(name))


def _clean(git: Git) -> None:
    excludes = excludes_file(git.root)
    options = ("-c", f"core.excludesFile={excludes}") if excludes else ()
    result = git.try_run(*options, "clean", "-q", "-ffd")
    if result.code:
        reason = head(git_error(("clean",), result).message, 100, "…")
        hint = "folders may be nested deeper there than a path may be long: remove them with rm -r"
        raise GitError(f"not all new files in {git.root} can be removed: {reason}", hint)


def refuse_unreadable(worktree: Worktree) -> None:
    """Raise if git cannot read all folders of the worktree: it would report no changes in them."""
    git = worktree.git
    result = git.try_run("clean", "--dry-run", "-q", "-ffd")
    if result.code:
        reason = head(git_error(("clean",), result).message, 100, "…")
        hint = "folders may be nested deeper there than a path may be long: remove them with rm -r"
        raise GitError(f"not all new files in {git.root} can be read: {reason}", hint)


def check_out_branch(worktree: Worktree) -> None:
    """Check out the worktree's branch after another commit was tried there. All work must be committed."""
    git = worktree.git
    pin_head(worktree, git.resolve(worktree.ref))
    remove_stale_locks(git)
    git.run("checkout", "-q", "--force", worktree.branch, "--")
    _clean(git)


def merge_target(git: Git, target: str, reserved: Sequence[str]) -> tuple[str, ...]:
    """Merge the target into a task's worktree and commit the result; return the files with conflict markers.

    The `reserved` files, which are the list and the settings, become those of the target.
    """
    if git.contains("HEAD", target):
        if os.path.lexists(os.path.join(git.git_dir, "MERGE_HEAD")):  # git was killed after this commit
            git.run("merge", "--quit")
        return ()
    env = git.identity()
    git.run("reset", "-q", "--hard")  # leftovers of a killed git: all work is committed
    own = [name for name in reserved if not git.try_run("cat-file", "-e", f"{target}:{name}").code]
    if own:
        git.run("--literal-pathspecs", "checkout", "-q", target, "--", *own)
        if git.try_run("diff", "--cached", "--quiet").code:
            git.run(*COMMIT, "ralph: take the target's list", env=env)
    args = ("merge", "-q", "--no-ff", "--no-verify", "--no-gpg-sign", "-m", "ralph: merge the target", target)
    result = git.try_run(*args, env=env)
    if "would be overwritten by merge" in result.error:  # by files from a merge that was killed
        _clean(git)
        result = git.try_run(*args, env=env)
    if not result.code:
        return ()
    conflicts = git.run("diff", "--name-only", "-z", "--diff-filter=U", *NOT_INTO_NESTED)
    files = [os.fsdecode(name) for name in conflicts.split(b"\0") if name]
    if not files:
        raise git_error(args, result, "cannot merge the target into a task's worktree")
    # The merge has staged all other files; `add` without paths would look into nested repositories.
    git.run("--literal-pathspecs", "add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul", stdin=conflicts)
    git.run(*COMMIT, "ralph: merge the target, with conflicts to solve", env=env)
    return tuple(files)


def is_clean(git: Git, tip: str) -> bool:
    """Return whether the worktree is exactly at this commit, apart from ralph's own files and those of the setup."""
    with suppress(GitError):
        return git.resolve("HEAD") == tip and not _work_in(git)
    return False


def registered_git_dir(worktree: Worktree) -> str:
    """Return the folder in which the repository keeps HEAD and index of this worktree; empty if there is none.

    The worktree's `.git` is not read: an agent may have changed or removed it.
    """
    trees = os.path.realpath(os.path.join(worktree.repository.common_dir, "worktrees"))
    first, mark = os.path.basename(worktree.path), os.path.join(worktree.path, ".git")
    for name in sorted(os.listdir(trees) if os.path.isdir(trees) else (), key=lambda name: name != first):
        place = os.path.join(trees, name)
        if os.path.normpath(os.path.join(place, read_line(os.path.join(place, "gitdir")))) == mark:
            return place
    return ""


def is_own(worktree: Worktree) -> bool:
    """Return whether the folder is still this worktree.

    If it is a link now, or its `.git` leads elsewhere, git would change another working tree, such as the user's.
    """
    try:
        git_dir = registered_git_dir(worktree)
        return (
            bool(git_dir) and not os.path.islink(worktree.path) and os.path.samefile(git_dir_of(worktree.path), git_dir)
        )
    except OSError:
        return False


def refuse_another(worktree: Worktree) -> None:
    if not is_own(worktree):
        raise _another_tree(worktree)


def _another_tree(worktree: Worktree) -> WrongWorktree:
    return WrongWorktree(
        f"{worktree.path} is no longer the worktree of {worktree.branch}",
        f"see what happened to it; the work that was committed is on {worktree.branch}",
    )


def _is_half_made(git_dir: str) -> bool:
    """Return whether git was killed while it made the worktree, which then is locked and has no index."""
    is_locked, has_index = (os.path.lexists(os.path.join(git_dir, name)) for name in ("locked", "index"))
    return is_locked and not has_index


def remove(worktree: Worktree) -> None:
    """Remove the worktree and its branch, unless that would lose anything."""
    refuse_if_anything_is_lost(worktree)
    tip = worktree.repository.resolve(worktree.ref)
    git_dir = registered_git_dir(worktree)
    if git_dir and os.path.lexists(os.path.join(git_dir, "locked")):
        raise UserError(f"{worktree.path} is locked", f"git worktree unlock {worktree.path}")
    remove_folder(worktree)
    if tip:
        update_refs(worktree.repository, f"delete {worktree.ref} {tip}")


def remove_folder(worktree: Worktree) -> None:
    """Remove the worktree's folder, then git's folder for it. If the folder is a link, remove only the link.

    The folder is renamed first: if ralph is killed, the rest of it must not look like uncommitted work.
    """
    if not worktree.path:  # the branch has no worktree
        return
    trash, index = f"{worktree.path}.gone", f"{worktree.path}.index"
    try:
        with suppress(FileNotFoundError):  # fails in the copy's namespace, where it is the user's git folder
            os.rmdir(f"{mounts_folder(worktree.path)}/git")
        for folder in (trash, worktree.path, mounts_folder(worktree.path)):
            if os.path.islink(folder):
                os.unlink(folder)
            elif os.path.lexists(folder):
                if folder != trash:
                    os.rename(folder, trash)
                remove_tree(trash)
        remove_stale(worktree.repository, index, f"{index}.lock", age=0.0)
        forget_setup_files(worktree.path)
        if git_dir := registered_git_dir(worktree):
            remove_tree(git_dir, last="gitdir")
    except OSError as error:
        raise GitError(f"cannot remove {error.filename or worktree.path}: {error.strerror}") from None


def remove_unstarted(repository: Git, runs: Path) -> None:
    """Remove the worktrees of `runs` that were killed before they began: no agent has worked there."""
    refs = repository.run("for-each-ref", "--format=%(refname:lstrip=3)", "refs/heads/ralph/")
    for run_id in refs.decode("utf-8", "replace").splitlines():
        with suppress(OSError, UserError):  # the worktree of another workspace, or in use
            first = next(read_entries(runs / run_id / "journal.ndjson"), None)
            worktree = worktree_of(repository, run_id)
            if (first is None or first.type != NAMES[RunStarted]) and not is_occupied(Path(worktree.workspace)):
                if (git_dir := registered_git_dir(worktree)) and _is_half_made(git_dir):
                    remove_folder(worktree)
                remove(worktree)


def _changes(git: Git) -> list[bytes]:
    """Return the changed paths, without ralph's own files."""
    args = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", *NOT_INTO_NESTED)
    lines = git.run("--no-optional-locks", *args).split(b"\0")
    return [line[3:] for line in lines if line and b"/.ralph/" not in b"/" + line[3:]]


def _work_in(git: Git) -> list[bytes]:
    """Return the changed paths of a worktree, without what its setup made."""
    changes = _changes(git)
    unchanged = load_setup_files(git.root).unchanged(git.root) if changes else {}
    return [path for path in changes if path not in unchanged]


def has_unstaged(worktree: Worktree) -> bool:
    """Return whether files of the worktree, apart from ralph's own, differ from its index."""
    args = ("ls-files", "-z", "--modified", "--deleted", "--others", "--exclude-standard")
    names = worktree.git.run(*args).split(b"\0")
    return any(name and b"/.ralph/" not in b"/" + name for name in names)


def refuse_if_anything_is_lost(worktree: Worktree) -> None:
    commits = {worktree.repository.resolve(worktree.ref)}
    if os.path.isdir(worktree.path):
        commits.add(worktree.git.resolve("HEAD"))
        if unsaved := first_unsaved(worktree):
            raise UserError(f"{worktree.path} has uncommitted work: {unsaved}", "commit or remove it first")
    for commit in commits - {""}:
        # Another branch, a remote branch, a tag or the user's HEAD may contain it.
        args = (f"--contains={commit}", "refs/heads", "refs/remotes", "refs/tags")
        refs = worktree.repository.run("for-each-ref", "--format=%(refname)", *args).decode("utf-8", "replace")
        if not {*refs.splitlines()} - {worktree.ref} and not worktree.repository.contains("HEAD", commit):
            raise UserError(
                f"the branch {worktree.branch} has commits that are not merged",
                f"merge them with `git merge {worktree.branch}`, or drop them with `git branch -D`",
            )


def first_unsaved(worktree: Worktree) -> str:
    """Return the first change, new file or nested repository that exists only in the worktree; empty if none does."""
    git = worktree.git
    paths = [path for path in _work_in(git) if not path.endswith(b"/") or any(files_in(git, path[:-1]))]
    paths += [git.place(path) for path in _changed_submodules(worktree.repository, git)]
    return display_path(paths[0]) if paths else ""


def _changed_submodules(repository: Git, git: Git) -> Iterator[bytes]:
    """Yield the submodules of a worktree with work that the user's own tree `repository` does not have."""
    for path, commit in gitlinks(git).items():
        place, source = (os.path.join(root, os.fsdecode(path)) for root in (git.root, repository.root))
        if not os.path.isdir(place) or not os.listdir(place):
            continue
        if not os.path.exists(os.path.join(place, ".git")) or not os.path.exists(os.path.join(source, ".git")):
            yield path
            continue
        users, inside = git_at(source), git_at(place)
        is_known = not users.try_run("cat-file", "-e", f"{commit}^{{commit}}").code
        if not is_known or not _equals_commit(inside, commit) or any(_changed_submodules(users, inside)):
            yield path


def _equals_commit(git: Git, commit: str) -> bool:
    """Return whether HEAD and all files of a repository are those of `commit`. No program that it names is run."""
    with temporary_folder() as folder:
        index = PrivateIndex(git, folder)
        fingerprint = index.tree()
        has_more = index.left_out or any(name.endswith("/") for name in index.nested)
        return (fingerprint.head, fingerprint.files) == (commit, git.tree_at(commit)) and not has_more
