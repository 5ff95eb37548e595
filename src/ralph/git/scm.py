"""The tasks of the setting `scm`, such as `commit` and `push`. Each is one command, which no shell interprets.

Commands run as the user would type them, so their hooks and settings apply.
"""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ralph.core.text import clean, head, one_line, tail
from ralph.errors import UserError
from ralph.files import read_given
from ralph.git.client import Env, Git, find_git, git_at, git_error, require_git, user_environment
from ralph.git.index import MAX_INDEX, files_in, folders_to, new_repositories, set_entries
from ralph.git.setup_files import TreeEntry
from ralph.process.own_process import OwnProcess
from ralph.process.program import Command
from ralph.process.signals import Cancelled, Deadline

# There may be many paths, with any name.
PATHS_ON_STDIN = ("--pathspec-from-file=-", "--pathspec-file-nul")
EXCLUDE_RALPH = ":(top,exclude,glob)**/.ralph/**"
# The commands with which other programs commit everything, including new files.
COMMIT = ("commit", "-am")
OTHER_COMMITS = {"hg": ("commit", "--addremove", "-m"), "jj": ("commit", "-m"), "sl": ("commit", "--addremove", "-m")}
NOTHING_NEW = "nothing to commit"
_COMMITTED = re.compile(r"\[.{1,200} [0-9a-f]{4,40}\] ")  # git's line about a new commit
TASK_TIMEOUT = 1800.0  # seconds
MAX_OUTPUT = 8000  # characters kept of a command's output
STOPPED = 124  # the exit code for a command that was stopped, as of `timeout`; git itself never uses it


class Result(Struct, frozen=True):
    """How a task went, with a few lines of `detail`. A task that `was_stopped` must not be tried again."""

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


Runner = Callable[[Command], CommandResult]


def run_unattended(command: Command, deadline: Deadline | None = None) -> CommandResult:
    """Run a command without a keeper, because it does not belong to a run. It cannot prompt."""
    name = command.argv[0]
    try:
        with OwnProcess(command, deadline=deadline) as process:
            out = process.output(TASK_TIMEOUT, latest=4 * MAX_OUTPUT)
    except Cancelled as cut:
        return CommandResult(STOPPED, f"{name} was cut off: {cut}")
    except TimeoutError:
        return CommandResult(STOPPED, f"{name} took longer than {TASK_TIMEOUT:.0f} seconds")
    except OSError as error:
        return CommandResult(127, f"cannot run {name}: {error.strerror}")
    printed = out.decode("utf-8", "replace") + process.error
    return CommandResult(process.code, clean(printed[-MAX_OUTPUT:]))


def run_tasks(command: str, tasks: Sequence[str], run_one: Callable[[str], Result]) -> Iterator[Result]:
    """Run the tasks in order until a task fails: a push after a failed commit would push something else."""
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
    """Run one task: `commit` with the message, any other (`push`, `push origin main`) as it is written.

    `only` limits a git commit to these files. `git` is the repository in which the run began. `nested` are nested
    repositories in it whose files are part of the work.
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
    ended = run(Command(argv=(*program, *args), env=user_environment(git.deadline if git else None), cwd=str(folder)))
    return Result(task, ended.code == 0, _summary(ended))


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
    without: Mapping[bytes, TreeEntry | None] = {},
    nested: Sequence[bytes] = (),
) -> Result:
    """Commit everything, including new files. With `only`, commit only these files; files in `without` are committed
    as it says.

    The result is also a success if there is nothing to commit. `git` is the repository in which the run began. `nested`
    are nested repositories in it whose files are part of the work.
    """
    client = git or require_git(folder)
    if obstacle := _obstacle(client, folder, program):
        return Result("commit", False, obstacle)
    environment = user_environment(client.deadline) | dict(env or {})

    def run_git(*args: str, stdin: bytes = b"") -> CommandResult:
        return run(Command(argv=(*program, *args), env=environment, cwd=client.root, stdin=stdin))

    # If the index has one file of a nested repository, `git add` adds the others like any file.
    if firsts := [files[0] for repository in nested for files in files_in(client, repository)]:
        run_git("update-index", "--add", "--replace", "--", *map(os.fsdecode, firsts))
    added = _add_all(client, run_git) if only is None else _add_only(client, only, run_git)
    if added.was_stopped:  # what hangs here, such as a filter, would hang in the commit as well
        return Result("commit", False, _summary(added), was_stopped=True)
    if without:
        set_entries(client.run, without)
    since_head = ("diff-index", "--cached", "--no-renames", "--name-only", "-z", "HEAD", "--")
    staged = {*client.run(*(since_head if client.resolve("HEAD") else ("ls-files", "-z"))).split(b"\0")} - {b""}
    chosen = staged if only is None else staged & {*only}
    if not chosen:
        return Result("commit", added.code == 0, _summary(added) if added.code else NOTHING_NEW)
    commit = ("commit", "-m", _as_argument(message), "--cleanup=whitespace", *flags)
    if chosen == staged:
        result = run_git(*commit)
    else:
        result = run_git(*commit, "--only", *PATHS_ON_STDIN, stdin=_pathspecs(sorted(chosen)))
    if result.code:
        return Result("commit", False, _summary(result), was_stopped=result.was_stopped)
    not_added = f"\nnot everything could be added: {_summary(added)}" if added.code else ""
    return Result("commit", True, _summary(result) + not_added)


def _add_all(git: Git, run_git: Callable[..., CommandResult]) -> CommandResult:
    """Stage everything in the repository, or in the workspace if the repository contains the home folder."""
    scope = git.scope or (":(top)",)
    updated = run_git("add", "--update", "--ignore-errors", "--", *scope)  # tracked files, also below .ralph
    if updated.was_stopped:
        return updated
    add = ("add", "--all", "--ignore-errors", "--", *scope, EXCLUDE_RALPH)
    added = run_git(*add)
    if added.code and not added.was_stopped:  # new nested repositories without a commit make `git add` fail as a whole
        nested = new_repositories(git)
        unborn = [path for path in nested if not git_at(os.path.join(git.root, os.fsdecode(path))).resolve("HEAD")]
        if unborn:
            added = run_git(*add, *(f":(top,exclude,literal){os.fsdecode(path)}" for path in unborn))
    return added


def _add_only(git: Git, paths: Sequence[bytes], run_git: Callable[..., CommandResult]) -> CommandResult:
    """Stage these files; a missing file is staged as deleted."""
    tracked = {*git.run("ls-files", "-z").split(b"\0")}
    there = {path for path in paths if path in tracked or os.path.lexists(git.place(path))}
    # If a file replaced a folder, or the other way round, adding the outer path is enough.
    files = [path for path in there if not folders_to(path) & there]
    if not files:
        return CommandResult(0, "")
    return run_git("add", "--all", "--ignore-errors", *PATHS_ON_STDIN, stdin=_pathspecs(files))


def has_commit_hook(git: Git | None) -> bool:
    """Return whether the user has a hook that may refuse a commit."""
    return git is not None and git.has_hook("pre-commit", "commit-msg", "prepare-commit-msg")


def _read_index(git: Git) -> bytes | None:
    try:
        return read_given(f"{git.git_dir}/index", MAX_INDEX)
    except FileNotFoundError:
        return None


def _restore_index(git: Git, before: bytes | None) -> None:
    """Restore the index after a commit that failed, unless another git is changing it."""
    path = f"{git.git_dir}/index"
    with suppress(FileExistsError, FileNotFoundError):
        if before is None:
            os.unlink(path)
        elif _read_index(git) != before:
            with open(f"{path}.lock", "xb") as lock:
                lock.write(before)
            os.replace(f"{path}.lock", path)


def _obstacle(git: Git, folder: Path, program: tuple[str, ...]) -> str:
    """Return why ralph cannot commit there; empty if it can."""
    if len(program) == 1:  # ralph does not pin this git to a repository
        now = None
        with suppress(UserError):  # `find_git` refuses core.bare, which is reported below
            now = find_git(folder, git.deadline)
        if now and (now.root, now.git_dir) != (git.root, git.git_dir):
            return f"{folder} is now part of the repository {now.root}: restore {git.git_dir}"
        args = ("rev-parse", "--show-cdup")
        result = git.as_user().try_run(*args)
        if result.code:
            raise git_error(args, result, f"git cannot work in {git.root}")
        if result.out != b"\n":
            return f"core.worktree or core.bare in {git.git_dir}/config leads git away from {git.root}"
    if operation := operation_in_progress(git):
        return f"a {operation} is in progress in {git.root}: finish or abort it first"
    return ""


def _pathspecs(paths: Sequence[bytes]) -> bytes:
    return b"".join(b":(top,literal)%b\0" % path for path in paths)


# Files of operations that the user has not finished: a commit would conclude them, including conflict markers.
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
    """Return the operation that the user has begun and not finished; empty if there is none."""
    for name, operation in IN_PROGRESS.items():
        if os.path.lexists(f"{git.git_dir}/{name}"):
            return operation
    # A conflict after a stash, a patch or a switch of branches leaves no such file.
    return "merge" if git.run("ls-files", "--unmerged", "-z") else ""


def _as_argument(message: str) -> str:
    """Remove characters that no program argument can contain: NUL and halves of surrogate pairs."""
    return message.replace("\0", "").encode("utf-8", "replace").decode()


def parse_command(line: str) -> tuple[str, ...]:
    """Split a command of the settings as a shell would."""
    try:
        words = tuple(shlex.split(line))
    except ValueError as error:
        raise UserError(f"scm: cannot parse {head(line, 500, '…')!r}: {error}", "check its quotes") from None
    if not words:
        raise UserError("scm: a command or task is empty", 'give a command such as "git" and tasks such as "commit"')
    return words


def _summary(result: CommandResult) -> str:
    """Return the first line that a successful command printed, or the end of the output of a failed command."""
    if result.code == 0:
        lines = [line for line in result.output.splitlines() if line.strip() and not line.startswith("warning: ")]
        summaries = (line for line in lines if _COMMITTED.match(line))  # hooks may have printed other lines before it
        return one_line(next(summaries, lines[0])) if lines else ""
    return tail(result.output.strip(), 2000, "…") or f"exit code {result.code}"
