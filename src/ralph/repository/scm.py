"""How does finished work reach version control? Each task of the settings is one command: words, never a shell line."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ralph.core.text import clean, head, one_line, shell_words, tail
from ralph.errors import UserError
from ralph.files import open_fresh, read_given
from ralph.processes.program import AskedProgram, CutOff
from ralph.records.folder import cannot_write
from ralph.repository.git import (
    CLOSED,
    Env,
    Repository,
    commit_of,
    environment,
    find_repository,
    is_led_elsewhere,
    pipe_in_the_way,
)
from ralph.repository.index import folders_to

NEW_FILES = ("add", "--all", "--ignore-errors", "--")
OWN_FILES = ":(top,exclude,glob)**/.ralph/**"
COMMIT = ("commit", "-am")
# These know no `-a`; their own words for "all, with new files".
OTHER_COMMITS = {"hg": ("commit", "--addremove", "-m"), "jj": ("commit", "-m"), "sl": ("commit", "--addremove", "-m")}
NOTHING_NEW = "nothing to commit"
PATIENCE = 1800.0
OUTPUT_KEPT = 8000
ENDED = 124  # the code of a command that was not waited for, as `timeout` has it; git itself has none like it


class Result(Struct, frozen=True):
    """How a task went, with a few lines of `detail`. `was_ended`: not by itself, and to try again would be in vain."""

    task: str
    ok: bool
    detail: str = ""
    was_ended: bool = False


class CommandResult(Struct, frozen=True):
    code: int
    output: str

    @property
    def was_ended(self) -> bool:
        return self.code == ENDED


Runner = Callable[[tuple[str, ...], Path, Mapping[str, str]], CommandResult]


def unattended(words: tuple[str, ...], folder: Path, env: Mapping[str, str]) -> CommandResult:
    """Runs a command where no run is at work whose keeper could; it has no terminal to ask on."""
    try:
        with AskedProgram(words, env, cwd=str(folder)) as asked:
            out = asked.output(PATIENCE, latest=4 * OUTPUT_KEPT)
    except CutOff as cut:
        return CommandResult(ENDED, f"{words[0]} was cut off: {cut}")
    except TimeoutError:
        return CommandResult(ENDED, f"{words[0]} did not end within {PATIENCE:.0f} seconds")
    except OSError as error:
        return CommandResult(127, f"cannot run {words[0]}: {error.strerror}")
    said = out.decode("utf-8", "replace") + asked.error
    return CommandResult(asked.code, clean(said[-OUTPUT_KEPT:]))


def run_tasks(
    command: str,
    tasks: Sequence[str],
    message: str,
    *,
    folder: Path,
    run: Runner = unattended,
    only: Sequence[bytes] | None = None,
) -> Iterator[Result]:
    """Runs the tasks in order. One that fails ends the row: a push after a failed commit would push something else.
    Where git commits, it commits `only` these files, if they are given."""
    for line in (command, *tasks):
        words_of(line)  # a mistake in the settings is no failure of a task
    for task in tasks:
        try:
            result = run_task(command, task, message, folder=folder, run=run, only=only)
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
    run: Runner = unattended,
    only: Sequence[bytes] | None = None,
) -> Result:
    """One task: `commit` with the message, anything else (`push`, `push origin main`) as it stands."""
    program = words_of(command)
    name = Path(program[0]).stem.lower()
    if task.strip() == "commit" and name == "git":
        return commit_with_git(program, message, folder, run=run, only=only)
    if task.strip() == "commit":
        words = (*OTHER_COMMITS.get(name, COMMIT), _argument(message))
    else:
        words = words_of(task)
    ended = run((*program, *words), folder, environment())
    return Result(task, ended.code == 0, _summary(ended))


def commit_with_git(
    program: tuple[str, ...],
    message: str,
    folder: Path,
    *,
    flags: tuple[str, ...] = (),
    env: Env = None,
    run: Runner = unattended,
    only: Sequence[bytes] | None = None,
    without: Collection[bytes] = (),
) -> Result:
    """Commits everything, new files included, but not as new ones these; or `only` these files. That there is nothing
    to commit is no failure."""
    found = None
    with suppress(UserError):  # git itself is about to say what is wrong
        found = find_repository(folder)
    if found and (obstacle := _obstacle(found, program)):
        return Result("commit", False, obstacle)
    around = environment() | dict(env or {})
    if found and only is not None:
        return _commit_only(
            found, only, (*program, "commit", "-m", _argument(message), "--cleanup=whitespace"), around, run
        )
    # The whole repository, but not a whole home folder.
    scope = (found and found.scope) or (":(top)",)
    inside = _repositories_inside(found) if found else []
    others = [f":(top,exclude,literal){os.fsdecode(path)}" for path in inside]
    add = (*program, *NEW_FILES, *scope, OWN_FILES, *others)
    added = run(add, folder, around)
    if added.code and found and not added.was_ended and (unborn := _without_a_commit(found)):
        added = run((*add, *(f":(top,exclude,literal){os.fsdecode(path)}" for path in unborn)), folder, around)
    if added.was_ended:  # what hangs here, a filter, hangs in all that would follow
        return Result("commit", False, _summary(added), was_ended=True)
    if found and without:
        _take_out(found, without)
    words = (*COMMIT, _argument(message), "--cleanup=whitespace", *flags)
    if found and (inside or _repositories_inside(found)):  # also one that was added just now
        _take_in(found, inside)
        words = ("commit", "-m", *words[len(COMMIT) :])
        if not found.ask("diff-index", "--cached", "--quiet", "HEAD", "--", env=CLOSED).code:
            # To say that there is nothing to commit, git would look into them after all.
            return Result("commit", not added.code, _summary(added) if added.code else NOTHING_NEW)
    ended = run((*program, *words), folder, around)
    if ended.code == 0:
        left_out = f"\nnot everything could be added: {_summary(added)}" if added.code else ""
        return Result("commit", True, _summary(ended) + left_out)
    shallow = ("--untracked-files=no", "--ignore-submodules=dirty")
    status = run((*program, "status", "--porcelain", *shallow), folder, around)
    said = [line for line in status.output.splitlines() if not line.startswith("warning: ")]
    if status.code == 0 and not any(said):  # but what could not be added, for want of room, is not nothing
        return Result("commit", not added.code, _summary(added) if added.code else NOTHING_NEW)
    return Result("commit", False, _summary(ended) or _summary(added), was_ended=ended.was_ended)


def _obstacle(found: Repository, program: tuple[str, ...]) -> str:
    """Why nothing can be committed there as it is."""
    # Git is asked, not told, where its files are: hooks would inherit that, and take it for their own repositories'.
    if len(program) == 1 and is_led_elsewhere(found):
        return f"core.worktree or core.bare in {found.git_dir}/config leads git away from {found.root}"
    if what := under_way(found):
        return f"a {what} is under way in {found.root}: finish or abort it first"
    if pipe := pipe_in_the_way(found):
        return f"{pipe} is a pipe, for which git waits in vain: remove it"
    return ""


def _commit_only(
    found: Repository, paths: Sequence[bytes], words: tuple[str, ...], env: Mapping[str, str], run: Runner
) -> Result:
    """Commits these files as they are, and leaves all else as it is: what the user has staged stays staged."""
    folder, named = Path(found.root), os.path.join(found.git_dir, "ralph-paths")
    tracked = {*found.git("ls-files", "-z", env=CLOSED).split(b"\0")}
    root = os.fsencode(found.root)
    there = [path for path in paths if path in tracked or os.path.lexists(os.path.join(root, path))]
    inside = {*_repositories_inside(found)}
    _take_in(found, [path for path in there if path in inside])
    # What took the place of a folder, or is one now, stands for all that was or is in it.
    places = {*there}
    files = [path for path in there if path not in inside and not folders_to(path) & places]
    add = (*words[: words.index("commit")], "add", "--all", "--ignore-errors")
    added = _with_paths(files, named, lambda of: run((*add, *of), folder, env)) if files else None
    if added and added.was_ended:
        return Result("commit", False, _summary(added), was_ended=True)
    since_head = ("diff-index", "--cached", "--no-renames", "--name-only", "-z", "HEAD", "--")
    compared = since_head if commit_of(found.root, "HEAD") else ("ls-files", "-z")
    staged = {*found.git(*compared, env=CLOSED).split(b"\0")} - {b""}
    chosen = [path for path in paths if path in staged]  # also what an agent has taken out by `git rm` or `git mv`
    if not chosen:
        return Result("commit", not added or added.code == 0, _summary(added) if added and added.code else NOTHING_NEW)
    if staged <= {*chosen}:
        ended = run(words, folder, env)
    else:
        ended = _with_paths(chosen, named, lambda of: run((*words, "--only", *of), folder, env))
    if ended.code:
        return Result("commit", False, _summary(ended))
    left_out = f"\nnot everything could be added: {_summary(added)}" if added and added.code else ""
    return Result("commit", True, _summary(ended) + left_out)


_SIGNS = (b"\0\0\xe0\0", b"link\0")  # the mode of a repository inside; or another index that this one adds to
_LARGEST_INDEX = 1 << 28


def _repositories_inside(found: Repository) -> list[bytes]:
    """Those that git knows. `git add` looks whether anything was changed in them, and obeys for that what stands in
    their settings: so they are none of its business. Git is asked only where its index may hold some."""
    with suppress(OSError):
        index = read_given(f"{found.git_dir}/index", _LARGEST_INDEX)
        if not any(sign in index for sign in _SIGNS):
            return []
    lines = found.git("ls-files", "--stage", "-z", env=CLOSED).split(b"\0")
    return [line.partition(b"\t")[2] for line in lines if line.startswith(b"160000")]


def _without_a_commit(found: Repository) -> list[bytes]:
    """New repositories inside in which nothing was committed: git adds nothing at all where one of them is."""
    new = found.git("ls-files", "--others", "--exclude-standard", "-z", env=CLOSED).split(b"\0")
    inside = [path.rstrip(b"/") for path in new if path.endswith(b"/")]
    return [path for path in inside if not commit_of(os.path.join(found.root, os.fsdecode(path)), "HEAD")]


def _take_in(found: Repository, inside: Sequence[bytes]) -> None:
    """The commits at which repositories inside stand."""
    if inside:
        found.ask("update-index", "--add", "--remove", "-z", "--stdin", stdin=b"\0".join((*inside, b"")), env=CLOSED)


def _take_out(found: Repository, files: Collection[bytes]) -> None:
    """Those of the files that were new to the index."""
    new = found.git("diff-index", "--cached", "--name-only", "--diff-filter=A", "-z", "HEAD", "--", env=CLOSED)
    if out := {*new.split(b"\0")} & {*files}:
        found.git("update-index", "--force-remove", "-z", "--stdin", stdin=b"\0".join((*out, b"")), env=CLOSED)


def _with_paths(paths: Sequence[bytes], file: str, act: Callable[[tuple[str, ...]], CommandResult]) -> CommandResult:
    """Names files to a git, however many they are and whatever they are called."""
    write_fresh(file, b"".join(b":(top,literal)%b\0" % path for path in paths))
    try:
        return act((f"--pathspec-from-file={file}", "--pathspec-file-nul"))
    finally:
        with suppress(OSError):
            os.unlink(file)


def write_fresh(path: str, data: bytes) -> None:
    try:
        with open(open_fresh(path), "wb") as file:
            file.write(data)
    except OSError as error:
        raise cannot_write(path, error) from None


# What the user has begun and not finished: a commit would conclude it, conflict markers and all, or take its message.
UNDER_WAY = {
    "MERGE_HEAD": "merge",
    "rebase-merge": "rebase",
    "rebase-apply": "rebase",
    "CHERRY_PICK_HEAD": "cherry-pick",
    "REVERT_HEAD": "revert",
    "SQUASH_MSG": "merge",
    "MERGE_MSG": "cherry-pick or merge",
    "BISECT_START": "bisect",
}


def under_way(found: Repository) -> str:
    for name, what in UNDER_WAY.items():
        if os.path.lexists(f"{found.git_dir}/{name}"):
            return what
    # A stash that does not fit, a patch or a switch of branches leave a conflict, too, and no other trace.
    return "merge" if found.git("ls-files", "--unmerged", "-z", env=CLOSED) else ""


def _argument(message: str) -> str:
    """A text that can be an argument of a program: no program can be given a zero, or half a character."""
    return message.replace("\0", "").encode("utf-8", "replace").decode()


def words_of(line: str) -> tuple[str, ...]:
    """A command line of the settings, split as a shell would."""
    try:
        words = shell_words(line)
    except ValueError as error:
        raise UserError(f"scm: cannot read {head(line, 500, '…')!r}: {error}", "check its quotes") from None
    if not words:
        raise UserError("scm: a command or task is empty", 'give a command such as "git" and tasks such as "commit"')
    return words


def _summary(ended: CommandResult) -> str:
    """The one line of a success; the end of what a failure printed."""
    if ended.code == 0:
        lines = [line for line in ended.output.splitlines() if line.strip() and not line.startswith("warning: ")]
        return one_line(lines[0]) if lines else ""
    return tail(ended.output.strip(), 2000, "…") or f"exit code {ended.code}"
