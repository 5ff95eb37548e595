"""The receipt of a judgement: what was judged, every result that the verdict rests on, and what makes it stale.

It has no absolute path, no output of a check and no text of an exam, so it can be shown to anybody.
"""

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from ralph.core.judgement import Cell, Cells, ChangeVerdict
from ralph.core.model import Check

STALE_WHEN = "base, head, checks or tools change"


class JudgedCommit(Struct, frozen=True):
    """One end of the change. The tree is the same for the same files, whatever the commit."""

    commit: str
    tree: str


class JudgedCheck(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One check on one state. The counts are missing if no known test runner reported any."""

    command: str
    passed: bool
    exit_code: int | None = None
    seconds: float = 0.0
    ran: int | None = None
    failed: int | None = None
    failing: tuple[str, ...] = ()
    load_errors: tuple[str, ...] = ()


class JudgedExam(Struct, frozen=True):
    """One exam: the name of its script, and a hash of it."""

    script: str
    sha256: str
    passed: bool


class JudgedReview(Struct, frozen=True, omit_defaults=True):
    """One review. `problem` says why it gave no verdict."""

    name: str
    passed: bool
    changes: str = ""
    problem: str = ""


class Receipt(Struct, frozen=True, kw_only=True):
    """A judgement as `ralph judge --json` prints it."""

    schema: int = 1
    verdict: ChangeVerdict
    exit_code: int
    reasons: tuple[str, ...] = ()
    looks: tuple[str, ...] = ()
    """What a person should look at although the change holds."""
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Tests that fail before and now."""
    title: str
    """What is judged against what, in words."""
    base: JudgedCommit
    head: JudgedCommit
    uncommitted: bool
    """The head has work that is not committed."""
    files: int
    checks: tuple[str, ...] = ()
    cells: Mapping[str, tuple[JudgedCheck, ...]] = {}
    """The results by state: base, head, old_tests (tests as they were), old_code (code as it was), undone (the same
    with tests in new files); `…_again` is the second run that confirms a red one."""
    restored: tuple[str, ...] = ()
    """Test files that were as at the base in `old_tests`."""
    removed: tuple[str, ...] = ()
    """New files that were not there in `old_tests`."""
    exams: tuple[JudgedExam, ...] = ()
    reviews: tuple[JudgedReview, ...] = ()
    untested: tuple[str, ...] = ()
    """Parts of the change that no check notices, by the proof."""
    runs: int = 0
    """How many times the checks ran."""
    seconds: float = 0.0
    ratio: float = 0.0
    """All runs of the checks, in runs of the checks at the head."""
    copies: str = ""
    """How the copy was seen: in-place, or plain."""
    versions: Mapping[str, str] = {}
    at: str = ""
    stale_when: str = STALE_WHEN

    @property
    def headline(self) -> str:
        """The verdict in a few words."""
        return f"{self.verdict}, but look" if self.verdict == "holds" and self.looks else self.verdict


def receipt_cells(cells: Cells, shorten: Callable[[str], str]) -> dict[str, tuple[JudgedCheck, ...]]:
    """Return the results of the states that were run, in the order of the cells. `shorten` removes absolute paths."""
    states: Iterable[tuple[str, Cell | None]] = ((name, getattr(cells, name)) for name in cells.__struct_fields__)
    return {name: tuple(_judged_check(check, shorten) for check in cell) for name, cell in states if cell}


def _judged_check(check: Check, shorten: Callable[[str], str]) -> JudgedCheck:
    tests = check.tests
    return JudgedCheck(
        command=shorten(check.name),
        passed=check.passed,
        exit_code=check.exit_code,
        seconds=round(check.duration, 2),
        ran=tests.ran if tests else None,
        failed=tests.failed if tests else None,
        failing=tests.failing if tests else (),
        load_errors=tests.load_errors if tests else (),
    )
