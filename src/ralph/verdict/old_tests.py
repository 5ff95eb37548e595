"""The tests as they were on the code as it is, and the tests as they are on the code as it was.

Each state is a commit without a branch, made of the trees of both ends, and is checked out in one copy after another.
`core/judgement.py` decides which state is needed next, and what the results mean.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.file_classes import OldTests, PathChange, file_class, plan_old_tests
from ralph.core.findings import ChangeFinding
from ralph.core.judgement import Cell, CellName, Cells, compare_tests, fewer_tests, is_green, missing_cell
from ralph.core.text import listed
from ralph.git.client import Git
from ralph.git.index import tree_with
from ralph.git.setup_files import TreeEntry
from ralph.verdict.context import Context
from ralph.verdict.copies import PreparedCopy
from ralph.verdict.shell_lines import files_written
from ralph.verdict.verify import TimeOverError, check_copy, time_limit

STATE = "a state that ralph judges"  # message of a commit that no branch points to
LFS_POINTER = "version https://git-lfs.github.com/spec/"


class ChangedTests(Struct, frozen=True):
    """How tests and the files that say how tests run differ between two commits. False if they don't."""

    base: str
    head: str
    changes: tuple[PathChange, ...]
    plan: OldTests
    problem: str = ""
    """Why the tests as they were can't be run; empty if they can."""

    def __bool__(self) -> bool:
        return bool(self.plan)


class OldTestsResult(Struct, frozen=True):
    """What the tests as they were say, with all results. `mixed` are files such as pyproject.toml with which, as they
    were, the old tests fail only."""

    cells: Cells
    finding: ChangeFinding | None = None
    mixed: tuple[str, ...] = ()


def find_changed_tests(git: Git, base: str, head: str, named: Iterable[str] = ()) -> ChangedTests:
    """Return how the tests differ between two commits. `named` are the files that the checks name."""
    changes = tuple(path_changes(git, base, head))
    plan = plan_old_tests(changes, named)
    changed = ChangedTests(base, head, changes, plan)
    if not plan:
        return changed
    if not any(file_class(path) == "test" for path in _paths_at(git, base)):
        return replace(changed, problem="there was no test before")
    if pointers := lfs_pointers(git, base, plan.restored):
        return replace(changed, problem=f"could not compare the tests: in Git LFS are {listed(pointers, 3)}")
    return changed


def files_of_checks(context: Context, git: Git) -> list[str]:
    """Return the files that the checks name, relative to the top of the repository."""
    root = os.path.join(git.root, git.prefix)
    lines = [check.command for check in context.settings.checks]
    return [os.path.join(git.prefix, path) for line in lines for path in files_written(line, root)]


def path_changes(git: Git, base: str, head: str) -> Iterator[PathChange]:
    """Yield the files that differ between two commits, with renames."""
    out = git.run("diff-tree", "-r", "-z", "--name-status", "--find-renames", base, head)
    fields = iter(os.fsdecode(field) for field in out.split(b"\0")[:-1])
    for status in fields:
        old = next(fields)
        yield PathChange(status, old, next(fields) if status[0] in "RC" else old)


def control_tests(git: Git, tests: ChangedTests, cells: Cells, check: Callable[[str], Cell]) -> OldTestsResult:
    """Run the checks on the states that decide whether tests were weakened. `check` checks out a commit in a copy and
    returns the results."""
    if tests.problem:
        return OldTestsResult(cells, ChangeFinding("not comparable", tests.problem))
    plan, mixed = tests.plan, tuple[str, ...]()
    try:
        cells = replace(cells, old_tests=check(_old_tests(git, tests, plan)))
        if plan.mixed and not is_green(cells.old_tests or ()):
            # The environment was installed with the new pyproject.toml, package.json or go.mod.
            without = check(_old_tests(git, tests, plan.without_mixed))
            if not is_green(without):
                plan, cells = plan.without_mixed, replace(cells, old_tests=without)
            elif not fewer_tests(without, cells.old_tests or ()):  # else the new one leaves tests out
                plan, mixed, cells = plan.without_mixed, plan.mixed, replace(cells, old_tests=without)
        commits: Mapping[CellName, Callable[[], str]] = {
            "head_again": lambda: tests.head,
            "base": lambda: tests.base,
            "old_tests_again": lambda: _old_tests(git, tests, plan),
            "old_code": lambda: _old_code(git, tests),
        }
        while name := missing_cell(cells):
            cells = replace(cells, **{name: check(commits[name]())})
    except TimeOverError:
        finding = ChangeFinding(
            "not comparable", "could not compare the tests: no time was left to run them as they were"
        )
        return OldTestsResult(cells, finding)
    return OldTestsResult(cells, compare_tests(cells, partial(is_gone, git, tests.head)), mixed)


def compare_in_copy(copy: PreparedCopy, tests: ChangedTests, cells: Cells) -> OldTestsResult:
    """Compare the tests in a copy that is open already; it may stay at any of the states."""

    def check(commit: str) -> Cell:
        copy.check_out(commit)
        return check_copy(copy, limit)

    limit = time_limit(sum(result.duration for result in cells.head))
    return control_tests(copy.worktree.repository, tests, cells, check)


def _old_tests(git: Git, tests: ChangedTests, plan: OldTests) -> str:
    """Return a commit with the code of the head and the tests of the base (O)."""
    entries: dict[str, TreeEntry | None] = dict.fromkeys(plan.removed)
    return _combine(git, tests.head, entries | _entries_at(git, tests.base, plan.restored))


def undone_code(git: Git, tests: ChangedTests) -> str:
    """Return a commit with the code of the base and all tests of the head, in new files as well."""
    return _old_code(git, tests, left_out="")


def _old_code(git: Git, tests: ChangedTests, left_out: str = "AC") -> str:
    """Return a commit with the code of the base and the changed tests of the head (U).

    Tests in new files stay out: they say nothing about the changed ones, and one failing import would hide the others.
    """
    entries: dict[str, TreeEntry | None] = {}
    for change in tests.changes:
        if change.status[0] not in left_out and (file_class(change.old) or file_class(change.new)):
            entries |= _entries_at(git, tests.head, [change.old, change.new])
    return _combine(git, tests.base, entries)


def _combine(git: Git, commit: str, entries: Mapping[str, TreeEntry | None]) -> str:
    tree = tree_with(git, commit, {os.fsencode(path): entry for path, entry in entries.items()})
    return git.commit_tree(tree, (commit,), STATE)


def _entries_at(git: Git, commit: str, paths: Sequence[str]) -> dict[str, TreeEntry | None]:
    """Return the entries of these files in a commit; None for those that it doesn't have."""
    entries: dict[str, TreeEntry | None] = dict.fromkeys(paths)
    if paths:
        out = git.run("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", commit, "--", *paths)
        for about, _, path in (row.partition(b"\t") for row in out.split(b"\0")[:-1]):
            if (name := os.fsdecode(path)) in entries:
                mode, _, blob = about.split()
                entries[name] = (mode, blob.decode())
    return entries


def _paths_at(git: Git, commit: str) -> list[str]:
    return [
        os.fsdecode(path) for path in git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit).split(b"\0")
    ]


def lfs_pointers(git: Git, commit: str, paths: Sequence[str]) -> list[str]:
    """Return those of the files that are pointers of Git LFS in this commit, whose content may be missing here."""
    if not paths:
        return []
    out = git.try_run("--literal-pathspecs", "grep", "-l", "-z", "-F", "-e", LFS_POINTER, commit, "--", *paths).out
    return [os.fsdecode(name).partition(":")[2] for name in out.split(b"\0")[:-1]]


def is_gone(git: Git, head: str, test: str) -> bool:
    """Return whether no file of the commit has the name of this test any more."""
    name = re.split(r"::| > |\s\(", test)[-1].strip() or test
    if " " not in name:  # module.Class.test_name of unittest, TestName/sub of Go
        name = name.rpartition(".")[2].partition("/")[0]
    return git.try_run("grep", "-q", "-F", "-e", name, head).code == 1
