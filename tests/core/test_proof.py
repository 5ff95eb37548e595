"""Which parts of a diff are worth undoing, and how they are grouped."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ralph.core.proof import (
    GIT_ATTRIBUTES,
    Hunk,
    Part,
    Proof,
    group_hunks,
    hunks_worth_undoing,
    is_harmless,
    parse_diff,
    prove,
    without,
)

BEFORE = """\
import os


class Set:
    def __le__(self, other):
        return self.items <= other

    def __ge__(self, other):
        inc = other.items
        inc = inc or set()
        assert inc is not None
        return self.items >= inc


def unrelated():
    zero = 0
    half = 0.5
    one = 1
    two = 2
    three = 3
    four = 4
    five = 5
    return one
"""
AFTER = """\
import os
import sys


class Set:
    def __le__(self, other):
        return self.items.issubset(other)

    def __ge__(self, other):
        inc = other.items
        inc = inc or set()
        assert inc is not None
        return self.items.issuperset(inc)


def unrelated():
    zero = 0
    half = 0.5
    one = 11
    two = 2
    three = 3
    four = 4
    five = 5
    return one + 1


def added():
    return 42
"""


@pytest.fixture
def changed(tmp_path: Path):
    """A repository whose file `a.py` changed, and its diff."""

    def git(*words: str, stdin: str = "") -> str:
        attributes = tmp_path / ".git" / "attributes"
        argv = ["git", "-c", f"core.attributesFile={attributes}", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(argv, cwd=tmp_path, input=stdin, capture_output=True, text=True, check=True).stdout

    git("init", "-q")
    (tmp_path / ".git" / "attributes").write_text(GIT_ATTRIBUTES)
    (tmp_path / "a.py").write_text(BEFORE)
    git("add", "-A")
    git("commit", "-qm", "before")
    (tmp_path / "a.py").write_text(AFTER)
    (tmp_path / "new.py").write_text("def fresh():\n    return 1\n")
    git("add", "-AN")
    return tmp_path, git


def test_hunks_of_one_function_are_one_part(changed) -> None:
    _, git = changed
    hunks = parse_diff(git("diff", "-U0"))
    assert [(hunk.path, hunk.start, len(hunk.added)) for hunk in hunks] == [
        *(("a.py", 2, 1), ("a.py", 7, 1), ("a.py", 13, 1), ("a.py", 19, 1), ("a.py", 24, 5), ("new.py", 1, 2))
    ]
    parts = group_hunks(hunks_worth_undoing(hunks, {"a.py": AFTER}))
    assert [part.place for part in parts] == [
        "a.py:19 in unrelated",
        "new.py:1",
        "a.py:7 in __le__",
        "a.py:13 in __ge__",
    ]
    assert [part.first_line for part in parts][1:] == [
        *("def fresh():", "return self.items.issubset(other)", "return self.items.issuperset(inc)"),
    ]


def test_every_part_can_be_undone_by_itself(changed) -> None:
    _, git = changed
    hunks = parse_diff(git("diff", "-U0"))
    of_a = [hunk for hunk in hunks if hunk.path == "a.py"]
    assert without(AFTER, of_a) == BEFORE
    for part in group_hunks(of_a):
        kept = [hunk for hunk in of_a if hunk not in part.hunks]
        now = without(AFTER, part.hunks)
        assert now != AFTER
        assert without(now, [moved(hunk, part) for hunk in kept]) == BEFORE
    assert [hunk.is_new_file for hunk in hunks] == [False] * 5 + [True]


def moved(hunk: Hunk, undone: Part) -> Hunk:
    """Return the hunk with its new place after a part before it was undone."""
    before = [one for one in undone.hunks if one.start < hunk.start]
    return replace(hunk, start=hunk.start - sum(len(one.added) - len(one.removed) for one in before))


def test_unusual_lines_and_files_can_be_undone(changed) -> None:
    folder, git = changed
    before, after = "one\r\n\x0ctwo\u2028three\n", "one\r\n\x0ctwo\u2028four\rfive\nsix"
    (folder / "odd.py").write_bytes(before.encode())
    git("add", "-A")
    git("commit", "-qm", "odd")
    (folder / "odd.py").write_bytes(after.encode())
    (folder / "link.py").symlink_to("a.py")
    (folder / "a.bin").write_bytes(b"\0\1")
    git("mv", "new.py", "moved.py")
    git("add", "-AN")
    diff = subprocess.run(["git", "diff", "-U0", "-M", "HEAD"], cwd=folder, capture_output=True, check=True).stdout
    hunks = parse_diff(diff.decode())
    assert [hunk.path for hunk in hunks] == ["odd.py"]
    assert without(after, hunks) == before.removesuffix("\n")  # as the new file ends


def make_hunk(path: str, added: tuple[str, ...], removed: tuple[str, ...] = (), start: int = 1) -> Hunk:
    return Hunk(path=path, start=start, removed=removed, added=added)


def hunk(*added: str, removed: tuple[str, ...] = (), start: int = 1) -> Hunk:
    return make_hunk("a.py", added, removed, start)


@pytest.mark.parametrize(
    ("one", "harmless"),
    [
        (hunk("x = 1"), False),
        (hunk("", "   "), True),
        (hunk("# why", removed=("# what",)), True),
        (hunk("// why"), True),
        (hunk("#[derive(Debug)]"), False),
        (hunk("f(a,", "  b,", ")", removed=("f(a, b)",)), True),
        (hunk("import os", "from a import b"), True),
        (hunk("const a = require('a');"), True),
        (hunk('__version__ = "2"', removed=('__version__ = "1"',)), True),
        (hunk('version = "2"', "x = 1"), False),
        (hunk('    "name",', "    'other',"), True),
        (hunk('    "name": 1,'), False),
        (hunk(removed=("x = 1",)), True),
        (hunk("return not years", removed=("return years == 0",)), False),
    ],
)
def test_hunks_that_cannot_change_behaviour_are_left_out_in_any_language(one: Hunk, harmless: bool) -> None:
    assert is_harmless(one) is harmless


def test_proofs_leave_out_docstrings_and_block_comments() -> None:
    text = 'def f():\n    """One.\n\n    Two.\n    """\n    return 1\n/* a\n b */ x = 1\n'
    assert is_harmless(hunk("    Two.", start=4), text)
    assert is_harmless(hunk('    """One.', "", "    Two.", start=2), text)
    assert not is_harmless(hunk("    return 1", start=6), text)
    assert is_harmless(hunk(" b */ x = 1", start=8), text)


@pytest.mark.parametrize(
    "path", ["tests/a.py", "src/__tests__/x.ts", "test_a.py", "a/b.spec.ts", "x_test.go", "conftest.py"]
)
def test_tests_are_not_undone(path: str) -> None:
    assert not hunks_worth_undoing([make_hunk(path, ("x = 1",))], {})


@pytest.mark.parametrize("path", ["README.md", "poetry.lock", "logo.png", "package-lock.json"])
def test_files_that_are_not_code_are_not_undone(path: str) -> None:
    assert not hunks_worth_undoing([make_hunk(path, ("x = 1",))], {})


def test_a_file_of_code_is_not_a_test_file() -> None:
    paths = ("src/contest.py", "latest.py", "src/testing.py", "attest/a.py")
    hunks = [make_hunk(path, ("x = 1",)) for path in paths]
    assert hunks_worth_undoing(hunks, {}) == hunks


def a_hunk(path: str, start: int, lines: int = 1, function: str = "") -> Hunk:
    return Hunk(path=path, start=start, removed=(), added=("x = 1",) * lines, function=function)


class Checks:
    """Checks that fail if one of `needed` is undone. They record what was undone."""

    def __init__(self, *needed: tuple[str, int]) -> None:
        self.needed, self.undone = set(needed), list[list[tuple[str, int]]]()

    def __call__(self, parts: Sequence[Part], seconds: float = 0.0) -> bool:
        undone = [(hunk.path, hunk.start) for part in parts for hunk in part.hunks]
        self.undone.append(undone)
        return not self.needed & set(undone)


def proved(checks: Checks, *hunks: Hunk) -> Proof:
    return prove(hunks, checks, clock=lambda: 0.0)


def test_a_part_that_no_check_needs_is_untested() -> None:
    checks = Checks(("a.py", 1))
    found = proved(checks, a_hunk("a.py", 1, 3), a_hunk("b.py", 7))
    assert (found.verdict, [part.place for part in found.untested]) == ("untested", ["b.py:7"])
    assert (found.tried, found.not_tried, found.check_runs) == (2, 0, 4)
    assert checks.undone[:2] == [[], [("a.py", 1), ("b.py", 7)]]


def test_hunks_inside_a_tested_group_are_tried_after_the_groups() -> None:
    checks = Checks(("a.py", 1))
    found = proved(checks, a_hunk("a.py", 1, 5, "def f():"), a_hunk("a.py", 40, 1, "def f():"), a_hunk("b.py", 7))
    assert [part.place for part in found.untested] == ["b.py:7", "a.py:40 in f"]
    assert checks.undone[2:] == [[("a.py", 1), ("a.py", 40)], [("b.py", 7)], [("a.py", 1)], [("a.py", 40)]]


def test_a_proof_stops_after_two_check_runs_if_no_check_needs_the_change() -> None:
    found = proved(Checks(), a_hunk("a.py", 1), a_hunk("b.py", 1))
    assert (found.verdict, found.check_runs, len(found.untested)) == ("nothing tested", 2, 2)


def test_red_checks_prove_nothing() -> None:
    assert prove([a_hunk("a.py", 1)], lambda parts, seconds: False, clock=lambda: 0.0).verdict == "red"


def test_a_proof_keeps_its_budget_and_counts_the_parts_not_tried() -> None:
    hunks = [a_hunk(f"f{number}.py", 1) for number in range(20)]
    found = proved(Checks(*((hunk.path, 1) for hunk in hunks)), *hunks)
    assert (found.verdict, found.check_runs, found.tried, found.not_tried) == ("tested", 10, 8, 12)
    ticks = iter(range(0, 10_000, 200))
    late = prove(hunks, Checks(("f0.py", 1)), clock=lambda: float(next(ticks)))
    assert late.not_tried > 12


def test_a_proof_without_hunks_worth_undoing_runs_no_check() -> None:
    checks = Checks()
    assert (proved(checks).verdict, checks.undone) == ("nothing to try", [])
