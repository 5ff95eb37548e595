"""Cost of one more iteration: a long run minus a short one, divided by the iterations between them."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.lab import BASH, MILLI, Lab
from bench.samples import Row, Wanted, compared, taking_turns

AGENT = "/bin/echo"
FILES = 10_000
NEW_FILES = 50_000
GIT = "git status"

Command = Callable[[int], tuple[str, ...]]


def plain(lab: Lab) -> list[Row]:
    """A run with its journal, logs and keeper."""
    return [_beside_loops(lab, "one more iteration", 0, Wanted(3, BASH))]


def checked(lab: Lab) -> list[Row]:
    return [_beside_loops(lab, "… with two trivial checks", 2, Wanted(2.5, BASH))]


def in_git(lab: Lab) -> list[Row]:
    """An iteration in a repository of 10,000 files, with its fingerprint, checkpoint and, if asked for, its diff."""
    repository = make_repository(lab)
    git = {GIT: lambda: _status(lab, repository)}
    writer = lab.script("writer", 'echo "$RALPH_ITERATION" >new-file.txt')
    editor = lab.script("editor", 'for i in 0 1 2 3 4 5 6 7 8 9; do echo "$RALPH_ITERATION" >part01$i/file01.txt; done')
    rows = {
        "nothing changed": lambda n: lab.running(AGENT, n),
        "a new file changed": lambda n: lab.running(writer, n),
        "… and its diff in the prompt": lambda n: lab.running(writer, n, "--preset", "checks", "--check", "false"),
        "ten files in ten folders changed": lambda n: lab.running(editor, n),
    }
    return [
        compared(
            f"… in git, 10,000 files, {name}",
            {"ralph": marginal(lab, command, (2, 12), repository), **git},
            7,
            Wanted(2.5, GIT),
        )
        for name, command in rows.items()
    ]


def beside_new_files(lab: Lab) -> list[Row]:
    """A run of one iteration in a workspace full of untracked files."""
    repository = lab.workspace()
    subprocess.run(["git", "-C", repository, "init", "-q"], env=lab.env, check=True)
    _fill(repository, NEW_FILES)

    def first() -> float:
        shutil.rmtree(repository / ".ralph", ignore_errors=True)
        shutil.rmtree(repository / ".git" / "objects")
        shutil.rmtree(repository / ".git" / "refs" / "ralph", ignore_errors=True)
        (repository / ".git" / "objects").mkdir()
        return lab.seconds(lab.running(AGENT, 1), repository)

    sample = taking_turns({"ralph": first}, 3)["ralph"]
    return [Row("a first iteration with 50,000 untracked files", sample, "s", {}, Wanted(5))]


def _beside_loops(lab: Lab, measure: str, checks: int, wanted: Wanted) -> Row:
    options = [word for _ in range(checks) for word in ("--check", "true")]
    commands: dict[str, Command] = {"ralph": lambda n: lab.running(AGENT, n, *options)}
    for name, _ in lab.loops(AGENT, 1, checks):
        commands[name] = lambda n, name=name: dict(lab.loops(AGENT, n, checks))[name]
    return compared(measure, {name: marginal(lab, command) for name, command in commands.items()}, 11, wanted)


def marginal(
    lab: Lab, command: Command, counts: tuple[int, int] = (5, 105), workspace: Path | None = None
) -> Callable[[], float]:
    """Return a measurement of the milliseconds that one more iteration takes."""
    few, many = counts

    def run() -> float:
        short, long = (lab.seconds(command(count), workspace or lab.workspace()) for count in counts)
        return (long - short) / (many - few) * MILLI

    return run


def make_repository(lab: Lab, files: int = FILES) -> Path:
    """Return a repository with this many committed files."""
    folder = lab.workspace()
    _fill(folder, files)
    git = ["git", "-C", folder, "-c", "gc.auto=0"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all of it"], ["status"]):
        subprocess.run([*git, *words], env=lab.env, check=True, stdout=subprocess.DEVNULL)
    return folder


def _fill(folder: Path, count: int) -> None:
    for number in range(count):
        path = folder / f"part{number // 100:03d}" / f"file{number % 100:02d}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{number}\n" * 20)


def _status(lab: Lab, repository: Path) -> float:
    return lab.seconds(("/usr/bin/env", "git", "status"), repository) * MILLI
