"""Version-control tasks of the settings, such as `commit` and `push`. Each is one command: words, never a shell line.

Commands run as the user would type them, so their hooks and settings apply.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ralph.core.text import clean, head, one_line, shell_words, tail
from ralph.errors import UserError
from ralph.files import open_fresh, read_given
from ralph.git.client import Env, Git, find_git, git_at, is_led_elsewhere, user_environment
from ralph.git.index import MAX_INDEX, folders_to
from ralph.git.nested import files_in
from ralph.process.deadline import Cancelled, Deadline
from ralph.process.process import Process
from ralph.process.program import Command
from ralph.store.folder import cannot_write

ADD_ALL = ("add", "--all", "--ignore-errors", "--")
EXCLUDE_RALPH = ":(top,exclude,glob)**/.ralph/**"
COMMIT = ("commit", "-am")
# These have no `-a`; this is how each of them commits everything, new files included.
OTHER_COMMITS = {"hg": ("commit", "--addremove", "-m"), "jj": ("commit", "-m"), "sl": ("commit", "--addremove", "-m")}
NOTHING_NEW = "nothing to commit"
_COMMITTED = re.compile(r"\[.{1,200} [0-9a-f]{4,40}\] ")  # git's line about a new commit
TASK_TIMEOUT = 1800.0  # seconds
MAX_OUTPUT = 8000  # characters kept of a command's output
STOPPED = 124  # the exit code of a command that was stopped, as `timeout` has it; git has none like it


class Result(Struct, frozen=True):
    """How a task went, with a few lines of `detail`. `was_stopped`: do not try again."""

    task: str
    ok: bool
    detail: str = ""
    was_stopped: bool = False


class CommandResult(Struct, frozen=True):
    code: int
    output: str

    @property
    def was_stopped(self) -> bool:
        return self.code == STOPPED


Runner = Callable[[tuple[str, ...], Path, Mapping[str, str]], CommandResult]


def run_unattended(
    argv: tuple[str, ...], folder: Path, env: Mapping[str, str], deadline: Deadline | None = None
) -> CommandResult:
    """Run a command without a keeper, for commands that do not belong to a run; it cannot prompt."""
    try:
        with Process(Command(argv=argv, env=env, cwd=str(folder)), deadline=deadline) as process:
            out = process.output(TASK_TIMEOUT, latest=4 * MAX_OUTPUT)
    except Cancelled as cut:
        return CommandResult(STOPPED, f"{argv[0]} was cut off: {cut}")
    except TimeoutError:
        return CommandResult(STOPPED, f"{argv[0]} took longer than {TASK_TIMEOUT:.0f} seconds")
    except OSError as error:
        return CommandResult(127, f"cannot run {argv[0]}: {error.strerror}")
    printed = out.decode("utf-8", "replace") + process.error
    return CommandResult(process.code, clean(printed[-MAX_OUTPUT:]))


def run_tasks(command: str, tasks: Sequence[str], run_one: Callable[[str], Result]) -> Iterator[Result]:
    """Run the tasks in order, up to the first that fails: a push after a failed commit would push something else."""
    for line in (command, *tasks):
        parse_command(line)  # a mistake in the settings is not a failed task
    for task in tasks:
        try:
            result = run_one(task)
        except UserError as error:
            result = Result(task, False, error.advice)
        yield result
        if not result.ok:
            return


def run_task(
    command: str,
    task: str,
    message: str,
    *,
    folder: Path,
    git: Git | None = None,
    run: Runner = run_unattended,
    only: Sequence[bytes] | None = None,
    nested: Sequence[bytes] = (),
) -> Result:
    """Run one task: `commit` with the message, anything else (`push`, `push origin main`) as it is written.

    A git commit contains `only` these files, if given. `git` is the repository in which the run began, `nested` are the
    nested repositories in it whose files are part of the work.
    """
    program = parse_command(command)
    name = Path(program[0]).stem.lower()
    if task.strip() == "commit" and name == "git":
        before = _read_index(git) if git else None
        result = commit_with_git(program, message, folder, git=git, run=run, only=only, nested=nested)
        if git and not result.ok:
            _restore_index(git, before)
        return result
    if task.strip() == "commit":
        args = (*OTHER_COMMITS.get(name, COMMIT), _as_argument(message))
    else:
        args = parse_command(task)
    done = run((*program, *args), folder, user_environment())
    return Result(task, done.code == 0, _summary(done))


def commit_with_git(
    program: tuple[str, ...],
    message: str,
    folder: Path,
    *,
    git: Git | None = None,
    flags: tuple[str, ...] = (),
    env: Env = None,
    run: Runner = run_unattended,
    only: Sequence[bytes] | None = None,
    without: Collection[bytes] = (),
    nested: Sequence[bytes] = (),
) -> Result:
    """Commit everything, new files included except those in `without`, or `only` these files.

    Having nothing to commit is a success. `git` is the repository in which it must be, `nested` are the nested
    repositories in it whose files are part of the work.
    """
    found = git
    with suppress(UserError):  # git itself is about to say what is wrong
        found = git or find_git(folder)
    if found and (obstacle := _obstacle(found, folder, program)):
        return Result("commit", False, obstacle)
    env = user_environment() | dict(env or {})
    commit = (*program, *COMMIT, _as_argument(message), "--cleanup=whitespace", *flags)
    if found and nested:
        _enter_nested(found, nested, program, lambda args: run(args, Path(found.root), env))
    if found and only is not None:
        return _commit_only(found, only, program, message, run=lambda args: run(args, Path(found.root), env))
    # The whole repository, but not a whole home folder.
    scope = (found and found.scope) or (":(top)",)
    add = (*program, *ADD_ALL, *scope, EXCLUDE_RALPH)
    added = run(add, folder, env)
    if added.code and found and not added.was_stopped and (unborn := _nested_without_commit(found)):
        added = run((*add, *(f":(top,exclude,literal){os.fsdecode(path)}" for path in unborn)), folder, env)
    if added.was_stopped:  # what hangs here, a filter, hangs in everything that follows
        return Result("commit", False, _summary(added), was_stopped=True)
    if found and without:
        _unstage_new(found, without)
    done = run(commit, folder, env)
    if done.code == 0:
        return Result("commit", True, _summary(done) + _not_added(added))
    status = run((*program, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty"), folder, env)
    changes = [line for line in status.output.splitlines() if not line.startswith("warning: ")]
    if status.code == 0 and not any(changes):  # but files that could not be added, on a full disk, are something
        return _nothing_new(added)
    return Result("commit", False, _summary(done) or _summary(added), was_stopped=done.was_stopped)


def has_commit_hook(git: Git | None) -> bool:
    """Return whether a hook of the user's may refuse a commit."""
    if git is None:
        return False
    result = git.as_user().try_run("rev-parse", "--git-path", "hooks")
    folder = os.path.join(git.root, os.fsdecode(result.out).strip())
    names = ("pre-commit", "commit-msg", "prepare-commit-msg")
    return result.code == 0 and any(os.access(os.path.join(folder, name), os.X_OK) for name in names)


def _read_index(git: Git) -> bytes | None:
    try:
        return read_given(f"{git.git_dir}/index", MAX_INDEX)
    except FileNotFoundError:
        return None


def _restore_index(git: Git, before: bytes | None) -> None:
    """Make the index what it was before a commit that failed, unless another git is changing it."""
    path = f"{git.git_dir}/index"
    with suppress(FileExistsError, FileNotFoundError):
        if before is None:
            os.unlink(path)
        elif _read_index(git) != before:
            with open(f"{path}.lock", "xb") as lock:
                lock.write(before)
            os.replace(f"{path}.lock", path)


def _nothing_new(added: CommandResult | None) -> Result:
    is_ok = not added or added.code == 0
    return Result("commit", is_ok, NOTHING_NEW if is_ok or not added else _summary(added))


def _not_added(added: CommandResult | None) -> str:
    return f"\nnot everything could be added: {_summary(added)}" if added and added.code else ""


def _obstacle(git: Git, folder: Path, program: tuple[str, ...]) -> str:
    """Return why nothing can be committed there; empty if nothing is in the way."""
    if len(program) == 1:  # not pinned to a repository by ralph
        now = None
        with suppress(UserError):  # core.bare is an error here, and named below
            now = find_git(folder, git.deadline)
        if now and (now.root, now.git_dir) != (git.root, git.git_dir):
            return f"{folder} is now part of the repository {now.root}: restore {git.git_dir}"
        if is_led_elsewhere(git):
            return f"core.worktree or core.bare in {git.git_dir}/config leads git away from {git.root}"
    if operation := operation_in_progress(git):
        return f"a {operation} is in progress in {git.root}: finish or abort it first"
    return ""


def _commit_only(
    git: Git,
    paths: Sequence[bytes],
    program: tuple[str, ...],
    message: str,
    run: Callable[[tuple[str, ...]], CommandResult],
) -> Result:
    """Commit these files as they are; everything else stays as it is, including what the user has staged."""
    commit = (*program, "commit", "-m", _as_argument(message), "--cleanup=whitespace")
    list_file = os.path.join(git.git_dir, "ralph-paths")
    tracked = {*git.run("ls-files", "-z").split(b"\0")}
    root = os.fsencode(git.root)
    there = [path for path in paths if path in tracked or os.path.lexists(os.path.join(root, path))]
    # A path that replaced a folder, or became one, includes everything in it.
    places = {*there}
    files = [path for path in there if not folders_to(path) & places]
    add = (*program, "add", "--all", "--ignore-errors")
    added = _with_paths(files, list_file, lambda args: run((*add, *args))) if files else None
    if added and added.was_stopped:
        return Result("commit", False, _summary(added), was_stopped=True)
    since_head = ("diff-index", "--cached", "--no-renames", "--name-only", "-z", "HEAD", "--")
    staged = {*git.run(*(since_head if git.resolve("HEAD") else ("ls-files", "-z"))).split(b"\0")} - {b""}
    chosen = [path for path in paths if path in staged]  # including files that an agent removed by `git rm` or `git mv`
    if not chosen:
        return _nothing_new(added)
    if staged <= {*chosen}:
        done = run(commit)
    else:
        done = _with_paths(chosen, list_file, lambda args: run((*commit, "--only", *args)))
    if done.code:
        return Result("commit", False, _summary(done))
    return Result("commit", True, _summary(done) + _not_added(added))


def _enter_nested(
    git: Git, nested: Sequence[bytes], program: tuple[str, ...], run: Callable[[tuple[str, ...]], CommandResult]
) -> None:
    """Add one file of each nested repository to the index: `git add` then adds the others like any file."""
    firsts = [files[0] for folder in nested for files in files_in(git, folder)]
    if firsts:
        run((*program, "update-index", "--add", "--replace", "--", *map(os.fsdecode, firsts)))


def _nested_without_commit(git: Git) -> list[bytes]:
    """Return new nested repositories without a commit: `git add` fails as a whole because of them."""
    new = git.run("ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    nested = [path.rstrip(b"/") for path in new if path.endswith(b"/")]
    return [path for path in nested if not git_at(os.path.join(git.root, os.fsdecode(path))).resolve("HEAD")]


def _unstage_new(git: Git, files: Collection[bytes]) -> None:
    """Take those of the files out of the index that are new in it."""
    new = git.run("diff-index", "--cached", "--name-only", "--diff-filter=A", "-z", "HEAD", "--")
    if out := {*new.split(b"\0")} & {*files}:
        git.run("update-index", "--force-remove", "-z", "--stdin", stdin=b"\0".join((*out, b"")))


def _with_paths(paths: Sequence[bytes], file: str, act: Callable[[tuple[str, ...]], CommandResult]) -> CommandResult:
    """Pass paths to git through a file: there may be many of them, with any name."""
    try:
        with open(open_fresh(file), "wb") as stream:
            stream.write(b"".join(b":(top,literal)%b\0" % path for path in paths))
    except OSError as error:
        raise cannot_write(file, error) from None
    try:
        return act((f"--pathspec-from-file={file}", "--pathspec-file-nul"))
    finally:
        with suppress(OSError):
            os.unlink(file)


# Operations that the user has not finished: a commit would conclude them, conflict markers included.
IN_PROGRESS = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "SQUASH_MSG": "merge",
    "MERGE_MSG": "cherry-pick or merge",
    "BISECT_START": "bisect",
}


def operation_in_progress(git: Git) -> str:
    """Return which operation the user has begun and not finished; empty if none."""
    for name, operation in IN_PROGRESS.items():
        if os.path.lexists(f"{git.git_dir}/{name}"):
            return operation
    # A conflict from a stash, a patch or a switch of branches leaves no other trace.
    return "merge" if git.run("ls-files", "--unmerged", "-z") else ""


def _as_argument(message: str) -> str:
    """Drop what no program argument can contain: NUL, and halves of characters."""
    return message.replace("\0", "").encode("utf-8", "replace").decode()


def parse_command(line: str) -> tuple[str, ...]:
    """Split a command of the settings as a shell would."""
    try:
        words = shell_words(line)
    except ValueError as error:
        raise UserError(f"scm: cannot parse {head(line, 500, '…')!r}: {error}", "check its quotes") from None
    if not words:
        raise UserError("scm: a command or task is empty", 'give a command such as "git" and tasks such as "commit"')
    return words


def _summary(done: CommandResult) -> str:
    """Return the first line of a success, or the end of what a failure printed."""
    if done.code == 0:
        lines = [line for line in done.output.splitlines() if line.strip() and not line.startswith("warning: ")]
        made = (line for line in lines if _COMMITTED.match(line))  # hooks print as well
        return one_line(next(made, lines[0])) if lines else ""
    return tail(done.output.strip(), 2000, "…") or f"exit code {done.code}"
