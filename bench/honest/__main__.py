"""Honest commits of real projects: what do the tests as they were say about them?

Run `python -m bench.honest --repositories FOLDER`. The folder has a clone of each project, named as in `commits.tsv`.
None of it is part of ralph; programs that the tests need are found on PATH (pytest, node_modules/.bin, go).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from bench.honest.projects import PROJECTS, Project
from ralph.core.file_classes import file_class
from ralph.core.judgement import Cell, Cells, distrust, is_green
from ralph.core.model import Check
from ralph.core.runner_output import read_tests
from ralph.errors import UserError
from ralph.git.client import Git, require_git
from ralph.git.index import tree_with
from ralph.verdict.old_tests import STATE, control_tests, find_changed_tests, path_changes

COMMITS = Path(__file__).with_name("commits.tsv")
TIMEOUT = 300.0  # seconds for one check
SOURCE = (".py", ".js", ".mjs", ".ts", ".go")
NOT_SOURCE = ("docs/", "bench", "examples/", ".github", "dist/")
LATER = 5  # edits of the same tests after a red start
MOST_FILES = 60

# What a row of the report is about.
RED_HEAD = "red here as committed"


class Commit(Struct, frozen=True):
    """An honest change: `project`, its commit `head`, and the `end` of the work if the start is red: the code before
    `head` with its tests."""

    project: str
    head: str
    end: str = ""


class Result(Struct, frozen=True):
    commit: Commit
    kind: str
    text: str = ""
    runs: int = 0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.honest", description=__doc__.split("\n")[0])
    parser.add_argument("--repositories", type=Path, required=True, help="folder with a clone of each project")
    parser.add_argument("--pick", type=int, help="print so many commits of each project, and measure nothing")
    parser.add_argument("--only", action="append", help="only this project (repeatable)")
    parser.add_argument("--commit", help="only the commit that begins so")
    parser.add_argument("--red-starts", action="store_true", help="only these")
    parser.add_argument("--commits", action="store_true", help="only those that are not")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    projects = [name for name in PROJECTS if not args.only or name in args.only]
    if args.pick:
        for name in projects:
            for commit in pick(require_git(args.repositories / name), name, args.pick):
                print(commit.project, commit.head, commit.end, sep="\t")
        return 0
    chosen = [commit for commit in load() if commit.project in projects and commit.head.startswith(args.commit or "")]
    if args.red_starts or args.commits:
        chosen = [commit for commit in chosen if bool(commit.end) == args.red_starts]
    with ThreadPoolExecutor(args.jobs) as pool:
        results = []
        for job in as_completed([pool.submit(measure, args.repositories, commit) for commit in chosen]):
            results.append(result := job.result())
            print(describe(result), flush=True)
    for title, is_red in (("honest commits", False), ("honest red starts", True)):
        print(f"\n{title}", *table([result for result in results if bool(result.commit.end) == is_red]), sep="\n")
    return 0


def load() -> list[Commit]:
    return [Commit(*line.split("\t")) for line in COMMITS.read_text().splitlines()]


def describe(result: Result) -> str:
    commit = result.commit
    return f"{commit.project} {commit.head[:10]} {commit.end[:10]}: {result.kind}: {result.text[:300]}"


def table(results: Sequence[Result]) -> Iterator[str]:
    judged = [result for result in results if result.kind not in (RED_HEAD, "green start", "void")]
    for kind, count in Counter(result.kind for result in results).most_common():
        share = f"{count / len(judged):.1%}" if any(result.kind == kind for result in judged) else ""
        yield (f"  {kind:22} {count:4} {share}")
    runs = sum(result.runs for result in judged)
    yield f"  {len(judged)} judged, {runs / max(len(judged), 1):.2f} runs of the checks each"


# Which commits


def pick(git: Git, name: str, count: int) -> Iterator[Commit]:
    """Yield the newest commits that change tests that existed and source, and for each the later edits of its tests."""
    chosen = 0
    for line in lines(git, "rev-list", "--no-merges", "--parents", PROJECTS[name].newest):
        head, *parents = line.split()
        changes = list(path_changes(git, parents[0], head)) if len(parents) == 1 else []
        tests = [row.old for row in changes if row.status[0] in "MDR" and is_test(row.old)]
        if not tests or len(changes) > MOST_FILES or not any(is_source(row.new) for row in changes):
            continue
        yield Commit(name, head)
        edited = [row.old for row in changes if row.status == "M" and row.old in tests]
        later = lines(
            git, "rev-list", "--reverse", "--no-merges", "--ancestry-path", f"{head}..{PROJECTS[name].newest}",
            "--", *edited,
        ) if edited else []  # fmt: skip
        if later:
            yield Commit(name, head, later[:LATER][-1])
        chosen += 1
        if chosen == count:
            return


def is_test(path: str) -> bool:
    return file_class(path) == "test" and not path.endswith((".md", ".rst", ".adoc"))


def is_source(path: str) -> bool:
    return not file_class(path) and path.endswith(SOURCE) and not path.startswith(NOT_SOURCE)


def lines(git: Git, *words: str) -> list[str]:
    return git.run(*words).decode().splitlines()


# One commit


def measure(repositories: Path, commit: Commit) -> Result:
    git = require_git(repositories / commit.project)
    try:
        with temporary_worktree(git) as folder:
            return compare(git, commit, folder)
    except (UserError, subprocess.SubprocessError) as error:
        return Result(commit, "void", str(error))


@contextmanager
def temporary_worktree(git: Git) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ralph-honest-", ignore_cleanup_errors=True) as folder:
        git.run("worktree", "add", "-q", "--detach", "--no-checkout", "-f", f"{folder}/tree", "HEAD")
        try:
            yield Path(folder, "tree")
        finally:
            git.run("worktree", "remove", "--force", "--force", f"{folder}/tree")


def compare(git: Git, commit: Commit, folder: Path) -> Result:
    """Judge the change as the loop does at a claim: the head is green, and the start is what it was."""
    project, runs = PROJECTS[commit.project], 0
    base, head = f"{commit.head}~1", commit.end or commit.head
    scope = [row.new for row in path_changes(git, base, commit.head) if is_test(row.new) and row.status[0] != "D"]

    def check(state: str) -> Cell:
        nonlocal runs
        runs += 1
        check_out(folder, state, project)
        return (run_check(project, folder, scope),)

    if commit.end:
        base = red_start(git, commit.head)
    start = check(base) if commit.end else None  # of the others it is needed only if O is red
    if start and is_green(start):
        return Result(commit, "green start")
    now = check(head)
    if not is_green(now):
        return Result(commit, RED_HEAD, str(now[0].tests and now[0].tests.failing)[:100])
    runs = 0
    if finding := distrust(now[0], start or ()):
        return Result(commit, finding.kind, finding.sentence)
    tests = find_changed_tests(git, base, head)
    if not tests:
        return Result(commit, "no test changed")
    result = control_tests(git, tests, Cells(head=now, base=start), check)
    assert result.finding
    return Result(commit, result.finding.kind, result.finding.text, runs)


def red_start(git: Git, head: str) -> str:
    """Return a commit of the code before `head` with its tests: the goal is to make them pass."""
    changes = path_changes(git, f"{head}~1", head)
    tests = [row.new for row in changes if file_class(row.new) in ("test", "runner") and row.status[0] != "D"]
    entries = {}
    for line in lines(git, "ls-tree", "-r", "--full-tree", head, "--", *tests):
        about, _, path = line.partition("\t")
        mode, _, blob = about.split()
        entries[path.encode()] = (mode.encode(), blob)
    return git.commit_tree(tree_with(git, f"{head}~1", entries), (f"{head}~1",), STATE)


def check_out(folder: Path, state: str, project: Project) -> None:
    for words in (("checkout", "-q", "-f", "--detach", state), ("clean", "-qfdx")):
        subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)
    for path, text in project.generated.items():
        (folder / path).write_text(text)
    if project.modules:
        (folder / "node_modules").symlink_to(os.environ["NODE_MODULES"])


def run_check(project: Project, folder: Path, scope: Sequence[str]) -> Check:
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder / project.source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "CI": "1",
    }
    files = sorted(path for path in scope if project.is_scope(path) and (folder / path).exists())
    line = project.check + (" " + " ".join(files) if project.is_scoped else "")
    began = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", line], cwd=folder, env=environment, capture_output=True, timeout=TIMEOUT, stdin=subprocess.DEVNULL
    )
    output = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
    return Check(
        name=project.check,
        passed=done.returncode == 0,
        exit_code=done.returncode,
        duration=time.monotonic() - began,
        tail=output[-2000:],
        tests=read_tests(output),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
