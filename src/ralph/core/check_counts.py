"""Failure counts in the output of well-known test runners, linters and type checkers.

A red check got better if it reports fewer failures among at least as many tests. Output without a reliable count (a
collection error, a compile error, a timeout, an unknown format) gives None.
"""

import re
from collections.abc import Callable
from re import Match, Pattern

from msgspec import Struct

TAIL = 20_000  # characters at the end of the output that are searched


class FailureCount(Struct, frozen=True):
    """Failures that a check reports, and the tests it ran. `total` is None for tools that count only failures."""

    failures: int
    total: int | None = None

    def is_better_than(self, other: "FailureCount") -> bool:
        has_lost_tests = self.total is not None and other.total is not None and self.total < other.total
        return self.failures < other.failures and not has_lost_tests


def count_failures(output: str) -> FailureCount | None:
    """Return the count in the last summary that `output` ends with; None if there is none or it can't be trusted."""
    text = _ESCAPES.sub("", output[-TAIL:])
    if any(pattern.search(text) for pattern in _BROKEN):
        return None
    found = [(match.start(), read, match) for pattern, read in _SUMMARIES for match in pattern.finditer(text)]
    if found:
        _, read, match = max(found, key=lambda one: one[0])
        return read(match)
    if packages := _GO_PACKAGE.findall(text):
        return FailureCount(len(_GO_FAILURE.findall(text)), len(packages))
    errors = _TSC_ERROR.findall(text)
    return FailureCount(len(errors)) if errors else None


SummaryReader = Callable[[Match[str]], FailureCount | None]

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

# The tool could not run its tests: whatever number follows is not comparable.
_BROKEN = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"errors? during collection|^ERROR collecting ",  # pytest
        r"^error: could not compile|^error\[E\d+\]",  # cargo
        r"\[(?:build|setup) failed\]",  # go
        r"errors? occurred outside of examples",  # rspec
        r"COMPILATION ERROR|Compilation failed",  # maven, gradle
    )
)


def _number(text: str | None) -> int:
    return int((text or "0").replace(",", ""))


def _words(match: Match[str]) -> FailureCount | None:
    """Read "3 failed, 97 passed, 1 error" in any order (pytest, jest, vitest)."""
    counts = {word: _number(number) for number, word in re.findall(r"(?<![\d,])([\d,]+) ([a-z]+)", match[0])}
    failures = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    passed = counts.get("passed", 0)
    if not passed and (not failures or "failed" not in counts):  # only errors: nothing was run
        return None
    return FailureCount(failures, failures + passed)


def _cargo(match: Match[str]) -> FailureCount:
    """Add up the result lines of all targets."""
    rows = re.findall(r"^test result: \w+\. (\d+) passed; (\d+) failed", match.string, re.MULTILINE)
    failures = sum(int(failed) for _, failed in rows)
    return FailureCount(failures, failures + sum(int(passed) for passed, _ in rows))


def _read_named_groups(match: Match[str]) -> FailureCount:
    """Read the groups `failures` and `more` (failures), `total` and `passed`, as far as the pattern has them."""
    groups = match.groupdict()
    failures = _number(groups.get("failures")) + _number(groups.get("more"))
    if groups.get("total") is not None:
        return FailureCount(failures, _number(groups["total"]))
    if groups.get("passed") is not None:
        return FailureCount(failures, failures + _number(groups["passed"]))
    return FailureCount(failures)


def _row(pattern: str, read: SummaryReader = _read_named_groups) -> tuple[Pattern[str], SummaryReader]:
    return re.compile(pattern, re.MULTILINE), read


_PYTEST = "(?:failed|passed|skipped|errors?|xfailed|xpassed|deselected|warnings?|rerun)"
_SUMMARIES = (
    _row(rf"^=* ?(?:[\d,]+ {_PYTEST}(?:, )?)+ in [\d.:]+", _words),  # pytest, with or without -q
    _row(
        r"^Ran (?P<total>\d+) tests? in [^\n]*\n\n(?:OK|FAILED)"
        r"(?=[^\n]*\bfailures=(?P<failures>\d+)|)(?=[^\n]*\berrors=(?P<more>\d+)|)"
    ),  # unittest
    _row(r"^Tests: +(?:[\d,]+ [a-z]+(?:, )?)+", _words),  # jest
    _row(r"^ *Tests +(?:\d+ \w+(?: \| )?)+ \(\d+\)", _words),  # vitest
    _row(r"^ +(?P<passed>\d+) passing\b[^\n]*(?:\n +\d+ pending)?(?:\n +(?P<failures>\d+) failing)?"),  # mocha
    _row(r"^test result: ", _cargo),
    _row(r"^Found (?P<failures>[\d,]+) errors? in \d+ files?(?: \(|\.)"),  # mypy, tsc --pretty
    _row(r"^Found (?P<failures>[\d,]+) errors?\.?(?: |$)"),  # ruff, biome, tsc
    _row(r"^(?:All checks passed!|Success: no issues found)"),  # ruff, mypy
    _row(r"^(?P<failures>\d+) errors?, \d+ warnings?"),  # pyright
    _row(r"^✖ \d+ problems? \((?P<failures>\d+) errors?"),  # eslint
    _row(r"^(?P<total>\d+) examples?, (?P<failures>\d+) failures?"),  # rspec
    _row(
        r"^(?:\[\w+\] )?Tests run: (?P<total>\d+), Failures: (?P<failures>\d+), Errors: (?P<more>\d+), "
        r"Skipped: \d+(?!.*Time elapsed)"
    ),  # maven
    _row(r"^(?P<total>\d+) tests? completed, (?P<failures>\d+) failed"),  # gradle
    _row(r"^\d+% tests passed, (?P<failures>\d+) tests? failed out of (?P<total>\d+)"),  # ctest
    _row(r"^(?:# |ℹ )pass (?P<passed>\d+)\n(?:# |ℹ )fail (?P<failures>\d+)"),  # node --test
    _row(r"^(?:Passed|Failed)! +- Failed: +(?P<failures>\d+), Passed: +(?P<passed>\d+)"),  # dotnet
    _row(
        r"^Tests: (?P<total>\d+), Assertions: \d+(?:, Errors: (?P<more>\d+))?(?:, Failures: (?P<failures>\d+))?"
    ),  # phpunit
    _row(r"^OK \((?P<total>\d+) tests?, "),
)

# Tools without a summary line: one line per failure. Go also names every package that it tested.
_GO_PACKAGE = re.compile(r"^(?:ok  |FAIL)\t", re.MULTILINE)
_GO_FAILURE = re.compile(r"^--- FAIL: ", re.MULTILINE)
_TSC_ERROR = re.compile(r"^\S[^\n(]*\(\d+,\d+\): error TS\d+:", re.MULTILINE)
