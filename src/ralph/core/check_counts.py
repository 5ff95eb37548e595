"""How many failures a red check reports: those of its test runners, else those of a linter or type checker.

A red check got better if it reports fewer failures among at least as many tests.
"""

import re

from msgspec import Struct

from ralph.core.runner_output import ReportedTests, read_tests
from ralph.core.text import clean

TAIL = 20_000  # characters at the end of the output that are searched for a linter's summary


class FailureCount(Struct, frozen=True):
    """Failures that a check reports, and the tests it ran. `total` is None for tools that count only failures."""

    failures: int
    total: int | None = None

    def is_better_than(self, other: "FailureCount") -> bool:
        has_lost_tests = self.total is not None and other.total is not None and self.total < other.total
        return self.failures < other.failures and not has_lost_tests


def count_failures(output: str, tests: ReportedTests | None = None) -> FailureCount | None:
    """Return the failures that `output` reports; None if it reports none, or if tests could not be loaded or built.

    `tests` is what its test runners report, if that has been read already.
    """
    tests = tests or read_tests(output)
    text = clean(output[-TAIL:])
    if _BROKEN.search(text):
        return None
    if tests:
        is_complete = tests.ran and not tests.load_errors
        return FailureCount(tests.failed, tests.ran) if is_complete else None
    matches = [match for pattern in _LINTERS for match in pattern.finditer(text)]
    if matches:
        return FailureCount(_number(max(matches, key=lambda match: match.start()).groupdict().get("failures")))
    errors = _TSC_ERROR.findall(text)
    return FailureCount(len(errors)) if errors else None


def _number(text: str | None) -> int:
    return int((text or "0").replace(",", ""))


# A compiler stopped: whatever number follows is not comparable.
_BROKEN = re.compile(r"^error: could not compile|^error\[E\d+\]|COMPILATION ERROR|Compilation failed", re.MULTILINE)

_LINTERS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^Found (?P<failures>[\d,]+) errors? in \d+ files?(?: \(|\.)",  # mypy, tsc --pretty
        r"^Found (?P<failures>[\d,]+) errors?\.?(?: |$)",  # ruff, biome, tsc
        r"^(?:All checks passed!|Success: no issues found)",  # ruff, mypy
        r"^(?P<failures>\d+) errors?, \d+ warnings?",  # pyright
        r"^✖ \d+ problems? \((?P<failures>\d+) errors?",  # eslint
    )
)
_TSC_ERROR = re.compile(r"^\S[^\n(]*\(\d+,\d+\): error TS\d+:", re.MULTILINE)  # one line per failure, no summary
