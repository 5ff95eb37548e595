"""What test runners print: how many tests ran, failed and were skipped, and which ones failed.

Each runner has one reader, in `READERS`. Counts of several runners, or of several runs, in one output are added.
Linters, builds and unknown runners give no count. `tests/core/runner_outputs` has recorded outputs of every runner.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import unescape
from re import Match

from msgspec import Struct

from ralph.core.text import clean

MAX_READ = 256 * 1024  # characters at the end of an output that are read
MAX_NAMES = 300  # names kept of failing tests, and of load errors


class ReportedTests(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the test runners in one output report."""

    runners: tuple[str, ...] = ()
    """In the order of the table below. The output of `go test` without `-v` is "go packages": it counts those."""
    ran: int | None = None
    """Tests that were run, without skipped ones; None if a runner printed no summary."""
    failed: int = 0
    skipped: int = 0
    failing: tuple[str, ...] = ()
    """The names of failing tests, each once and without parameters, as far as the runner prints them."""
    load_errors: tuple[str, ...] = ()
    """Files, modules or packages whose tests could not be loaded, imported, collected or built."""


def read_tests(output: str) -> ReportedTests | None:
    """Return what the known test runners in `output` report, added up; None if there is none."""
    text = _CAPTURED.sub("", clean(output[-MAX_READ:]))
    reports = [(name, report) for name, read in READERS.items() for report in read(text)]
    if not reports:
        reports = [("junit xml", report) for report in _read_junit_xml(text)]
    if not reports:
        return None
    counts = [report.ran for _, report in reports if report.ran is not None]
    return ReportedTests(
        runners=tuple(dict.fromkeys(name for name, _ in reports)),
        ran=sum(counts) if counts else None,
        failed=sum(report.failed for _, report in reports),
        skipped=sum(report.skipped for _, report in reports),
        failing=_unique(name for _, report in reports for name in report.failing),
        load_errors=_unique(name for _, report in reports for name in report.load_errors),
    )


# What a failing test printed, which may look like a summary: the tests of a test runner, for example.
_CAPTURED = re.compile(r"^-{3,} Captured [^\n]* -{3,}\n(?:(?![=_-]{3,} [^\n]* [=_-]{3,}$)[^\n]*\n)*", re.MULTILINE)


def _file_name(path: str) -> str:
    """Return a path below the working directory as it is, and of an absolute one, which differs in a copy, the name."""
    return path.rpartition("/")[2] if path.startswith("/") else path


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[:MAX_NAMES]


OutputReader = Callable[[str], Iterator[ReportedTests]]


def _find(pattern: str, text: str) -> Iterator[Match[str]]:
    return re.finditer(pattern, text, re.MULTILINE)


def _numbers(text: str) -> dict[str, int]:
    """Read "3 failed, 97 passed" as numbers by word."""
    return {word.lower(): _number(number) for number, word in re.findall(r"(?<![\d,])([\d,]{1,12}) ([A-Za-z]+)", text)}


def _named_numbers(text: str, sign: str) -> dict[str, int]:
    """Read "failures=1, errors=2" as numbers by name."""
    pairs = (part.rstrip(".").partition(sign) for part in text.split(","))
    return {name.strip(): _number(number) for name, _, number in pairs if number.strip().isdecimal()}


def _number(text: str | None) -> int:
    return int((text or "").replace(",", "").strip()[:9] or 0)  # Python refuses to read thousands of digits


def _report(
    counts: Sequence[tuple[int, int, int]], failing: Iterable[str] = (), load_errors: Iterable[str] = ()
) -> Iterator[ReportedTests]:
    """Yield one report of these (ran, failed, skipped), if there are any, with names from all of the output."""
    errors = _unique(load_errors)
    if counts:
        ran, failed, skipped = (sum(column) for column in zip(*counts, strict=True))
        names = _unique(failing)
        yield ReportedTests(ran=max(ran, 0), failed=failed, skipped=skipped, failing=names, load_errors=errors)
    elif errors:
        yield ReportedTests(load_errors=errors)


_PYTEST_WORD = "(?:failed|passed|skipped|errors?|xfailed|xpassed|deselected|warnings?|rerun|subtests passed)"
_PYTEST_SUMMARY = (
    rf"^(?:=+ )?((?:[\d,]+ {_PYTEST_WORD}(?:, )?)+|no tests (?:ran|collected)(?:, [^\n]{{1,80}})?)"
    r" in [\d.]+ ?s(?:econds)?(?: \([\d:, a-z]+\))?(?: =+)?$"
)


def _read_pytest(text: str) -> Iterator[ReportedTests]:
    errors = [match[1] for match in _find(r"^ERROR ([^\s:][^\n]*?\.\w+)(?: - [^\n]*)?$", text)]
    conftests = [_file_name(match[1]) for match in _find(r"^ImportError while loading conftest '([^'\n]*)'", text)]
    failing = [_pytest_name(match[1]) for match in _find(r"^(?:FAILED|ERROR) ([^\n]*?\.\w+::[^\n]*)$", text)]
    summaries = [_numbers(match[1]) for match in _find(_PYTEST_SUMMARY, text)]
    if not failing and any("failed" in counts for counts in summaries):  # `-rN` leaves the lines with FAILED out
        failing = [_pytest_name(match[1]) for match in _find(r"^_{3,} (?!ERROR )([^\n]*?) _{3,}$", text)]
    # Errors are also counted for files that can't be collected, of which no test runs.
    setup_errors = sum(1 for _ in _find(r"^ERROR [^\n]*?\.\w+::", text))
    counts = []
    for numbers in summaries:
        failed = numbers.get("failed", 0) + numbers.get("error", 0) + numbers.get("errors", 0)
        ran = sum(numbers.get(word, 0) for word in ("passed", "failed", "xfailed", "xpassed"))
        if ran or setup_errors:
            ran += max(failed - numbers.get("failed", 0) - len(errors), 0)
        counts.append((ran, failed, numbers.get("skipped", 0)))
    yield from _report(counts, failing, conftests + (errors if counts else []))


def _pytest_name(line: str) -> str:
    """Return the name in `tests/test_a.py::test_b[a - b] - why`, without parameters and reason."""
    path, _, name = line.rpartition("::") if "[" not in line else line.partition("[")[0].rpartition("::")
    name = name.partition("[")[0].partition(" - ")[0]
    return f"{path}::{name}" if path else name


def _read_unittest(text: str) -> Iterator[ReportedTests]:
    failing, errors = [], []
    for match in _find(r"^(?:FAIL|ERROR): (\S+) \(([\w.<>]+)\)", text):
        name, place = match[1], match[2]
        if "_FailedTest" in place:
            errors.append(name)
        else:  # Python 3.11 and later print the name in the parentheses as well
            failing.append(place if place.endswith(f".{name}") else f"{place}.{name}")
    counts = []
    for match in _find(r"^Ran ([\d,]+) tests? in [^\n]*\n\n(?:OK|FAILED|NO TESTS RAN)(?: \(([^\n]*)\))?$", text):
        numbers = _named_numbers(match[2] or "", "=")
        failed = numbers.get("failures", 0) + numbers.get("errors", 0)
        skipped = numbers.get("skipped", 0)
        counts.append((max(_number(match[1]) - skipped, 0), failed, skipped))
    if counts and errors:
        counts.append((-len(errors), 0, 0))  # a module that can't be imported is counted as a test
    yield from _report(counts, failing, errors if counts else ())


_NOT_JEST_TESTS = ("Console", "Test suite failed to run", "process.exit called", "Cannot log after tests are done")


def _read_jest(text: str) -> Iterator[ReportedTests]:
    failing, errors, file = [], [], ""
    for match in _find(r"^ ?FAIL +([^\n]+?)(?: \([\d.]+ m?s\))?$|^  ● +([^\n]+)$", text):
        if match[1]:
            file = match[1].split(" ")[-1]
        elif match[2].startswith("Test suite failed to run"):
            errors.append(file or "a test file")
        elif not match[2].startswith(_NOT_JEST_TESTS):
            failing.append(f"{file} › {match[2].strip()}" if file else match[2].strip())
    counts = []
    for match in _find(r"^Tests: +((?:[\d,]+ [a-z]+(?:, )?)+)$", text):
        numbers = _numbers(match[1])
        skipped = numbers.get("skipped", 0) + numbers.get("todo", 0)
        counts.append((numbers.get("passed", 0) + numbers.get("failed", 0), numbers.get("failed", 0), skipped))
    counts += [(0, 0, 0) for _ in _find(r"^No tests found, exiting with code \d", text)]
    yield from _report(counts, failing, errors if counts else ())


def _read_vitest(text: str) -> Iterator[ReportedTests]:
    failing, errors = [], []
    for match in _find(r"^ FAIL  ([^\n]+)$", text):
        file, _, test = match[1].partition(" > ")
        if test:
            failing.append(f"{file} > {test.strip()}")
        else:
            errors.append(file.partition(" [ ")[0])
    counts = []
    for match in _find(r"^ *Tests  +((?:\d+ [a-z]+(?: \| )?)+ \(\d+\)|no tests)$", text):
        numbers = _numbers(match[1])
        skipped = numbers.get("skipped", 0) + numbers.get("todo", 0)
        counts.append((numbers.get("passed", 0) + numbers.get("failed", 0), numbers.get("failed", 0), skipped))
    counts += [(0, 0, 0) for _ in _find(r"^No test files found, exiting with code \d", text)]
    yield from _report(counts, failing, errors if counts else ())


def _read_mocha(text: str) -> Iterator[ReportedTests]:
    counts, failing = [], []
    summary = r"^ +(\d+) passing\b[^\n]*\n(?: +(\d+) pending\n)?(?: +(\d+) failing\n)?"
    matches = list(_find(summary, text))
    for at, match in enumerate(matches):
        failed = _number(match[3])
        counts.append((_number(match[1]) + failed, failed, _number(match[2])))
        end = matches[at + 1].start() if at + 1 < len(matches) else len(text)
        failing += _mocha_names(text[match.end() : end])[:failed]
    errors = []
    if re.search(r"^ Exception during run: |^- [^\n]*/mocha/lib/", text, re.MULTILINE):
        stack = re.search(r"^Require stack:\n- (\S+)$", text, re.MULTILINE)
        errors = [_file_name(stack[1]) if stack else "a test file"]
    yield from _report(counts, failing, errors)


def _mocha_names(text: str) -> list[str]:
    """Return the titles in mocha's list of failures: several lines, each further in, up to one that ends with a
    colon."""
    names = []
    for match in re.finditer(r"^  \d+\) ([^\n]*)((?:\n {7,}[^\n]*)*)", text, re.MULTILINE):
        parts = [match[1]]
        for line in match[2].split("\n")[1:]:
            if parts[-1].endswith(":") or len(parts) > 20:
                break
            parts.append(line.strip())
        names.append(" > ".join(parts).removesuffix(":"))
    return names


_NODE_FILE = re.compile(r"\.[cm]?[jt]sx?$")


def _read_node(text: str) -> Iterator[ReportedTests]:
    """Read the reporter `spec`; the other one is TAP."""
    counts, failing, errors = [], [], []
    for match in _find(r"^ℹ pass (\d+)\nℹ fail (\d+)\nℹ cancelled (\d+)\nℹ skipped (\d+)\nℹ todo (\d+)$", text):
        passed, failed, cancelled, skipped, todo = map(_number, match.groups())
        counts.append((passed + failed + cancelled, failed + cancelled, skipped + todo))
    for match in _find(r"^test at (?:file:)?([^\n]+?):\d+:\d+\n✖ ([^\n]*?)(?: \([\d.]+ms\))?( # TODO)?$", text):
        if _NODE_FILE.search(match[2]):
            errors.append(_file_name(match[2]))
        elif not match[3]:
            failing.append(f"{_file_name(match[1])} > {match[2]}")
    if counts:  # a file that ends without a test is reported as a test with the file's name
        files = sum(1 for match in _find(r"^[✔✖] ([^\n]*?)(?: \([\d.]+ms\))$", text) if _NODE_FILE.search(match[1]))
        counts.append((-files + len(errors), 0, 0))
    yield from _report(counts, failing, errors if counts else ())


_TAP_POINT = r"^( *)(not ok|ok)\b(?: \d+)?(?: -)? ?([^\n]*)$"
_TAP_DIRECTIVE = re.compile(r" # *(skip|todo)\b", re.IGNORECASE)


def _read_tap(text: str) -> Iterator[ReportedTests]:
    """Read TAP, from node, mocha, vitest, bats and others. Points that have points below them are not counted."""
    if not re.search(r"^(?:TAP version 1[34]$|1\.\.\d+\b)", text, re.MULTILINE):
        return
    counts, failing, errors, last = [(0, 0, 0)], [], [], -1
    for match in _find(_TAP_POINT, text):
        indent, name = len(match[1]), match[3].replace("\\#", "#").strip()
        is_parent = indent < last or name.endswith("{")
        last = -1 if name.endswith("{") or not indent else indent
        directive = _TAP_DIRECTIVE.search(name)
        if directive or is_parent or " # time=" in name:
            name = re.sub(r" # .*", "", name.removesuffix("{")).strip()
        if directive:
            counts.append((0, 0, 1))
        elif not is_parent and _NODE_FILE.search(name):
            errors += [_file_name(name)] if match[2] == "not ok" else []
            counts.append((0, int(match[2] == "not ok"), 0))
        elif not is_parent:
            counts.append((1, int(match[2] == "not ok"), 0))
            failing += [name] if match[2] == "not ok" else []
    yield from _report(counts, failing, errors)


_GO_EVENT = r'^\{(?:"Time":"[^"\n]*",)?"Action":"(pass|fail|skip)","Package":"([^"\n]*)","Test":"([^"/\n]*)"'
_GO_LINE = (
    r"^--- (?P<result>PASS|FAIL|SKIP): (?P<test>\S+)"
    r"|^(?P<state>ok  |FAIL|\?   )\t(?P<package>\S+)(?P<rest>[^\n]*)$"
)


def _read_go_tests(text: str) -> Iterator[ReportedTests]:
    """Read `go test -v` and `go test -json`, which name every test."""
    events, rows = [match.groups() for match in _find(_GO_EVENT, text)], list(_go_rows(text))
    if not events and "=== RUN" not in text:
        return
    results = events or [(result.lower(), package, test) for package, _, tests in rows for result, test in tests]
    counts = [(int(result != "skip"), int(result == "fail"), int(result == "skip")) for result, _, _ in results]
    for _, has_failed, tests in rows:  # a package may fail before a test ends
        counts.append((1, 1, 0) if has_failed and not tests else (0, 0, 0))
    failing = [f"{package}.{test}" for result, package, test in results if result == "fail"]
    yield from _report(counts, failing, _go_broken(text))


def _read_go_packages(text: str) -> Iterator[ReportedTests]:
    """Read `go test`, which names packages, and of their tests only those that failed."""
    if "=== RUN" in text or re.search(_GO_EVENT, text, re.MULTILINE):
        return
    counts, failing = [], []
    for package, has_failed, tests in _go_rows(text):
        counts.append((int(has_failed is not None), max(len(tests), int(has_failed or False)), 0))
        failing += [f"{package}.{test}" for _, test in tests]
    yield from _report(counts, failing, _go_broken(text))


def _go_rows(text: str) -> Iterator[tuple[str, bool | None, list[tuple[str, str]]]]:
    """Yield each package, whether it failed (None if it ran no tests), and the results of its tests."""
    tests: list[tuple[str, str]] = []
    for match in _find(_GO_LINE, text):
        if match["test"]:
            tests.append((match["result"], match["test"]))
            continue
        has_run = match["state"] != "?   " and "[no test" not in match["rest"] and " failed]" not in match["rest"]
        yield match["package"], match["state"] == "FAIL" if has_run else None, tests
        tests = []


def _go_broken(text: str) -> list[str]:
    return [match[1] for match in _find(r'(?:^|")FAIL(?:\t|\\t)(\S+) \[(?:build|setup) failed\]', text)]


def _read_cargo(text: str) -> Iterator[ReportedTests]:
    """Read `cargo test`, which prints one summary for each target, and `cargo nextest`."""
    pattern = r"^test result: \w+\. (\d+) passed; (\d+) failed;(?: (\d+) ignored)?"
    counts = [(_number(m[1]) + _number(m[2]), _number(m[2]), _number(m[3])) for m in _find(pattern, text)]
    lists = [match[1] for match in _find(r"^failures:\n((?:    \S[^\n]*\n)+)", text)]
    failing = [re.sub(r" \(line \d+\)$", "", line.strip()) for names in lists for line in names.splitlines()]
    for match in _find(r"^ +Summary \[ *[\d.]+s\] (?:\d+/)?(\d+) tests? run: ([^\n]*)$", text):
        numbers = _numbers(match[2])
        failed = numbers.get("failed", 0) + numbers.get("timed", 0)
        counts.append((_number(match[1]), failed, numbers.get("skipped", 0)))
        failing += [m[1] for m in _find(r"^ +(?:FAIL|TIMEOUT|SIG\w+) \[ *[\d.]+s\] (?:\([^)\n]*\) )?([^\n]+)$", text)]
    broken = [match[1] for match in _find(r"^error: could not compile `([^`\n]+)`", text)]
    yield from _report(counts, failing, broken)


def _read_rspec(text: str) -> Iterator[ReportedTests]:
    failing = [f"{m[1]} > {m[2]}" for m in _find(r"^rspec \./([^\s\[:]+)\S* # ([^\n]*)$", text)]
    errors = [match[1] for match in _find(r"^An error occurred while loading \./([^\n]+?)\.?$", text)]
    counts = []
    for match in _find(r"^(\d+) examples?, (\d+) failures?(?:, (\d+) pending)?", text):
        counts.append((_number(match[1]) - _number(match[3]), _number(match[2]), _number(match[3])))
    yield from _report(counts, failing, errors)


def _read_phpunit(text: str) -> Iterator[ReportedTests]:
    failing = [f"{m[1]}::{m[2]}" for m in _find(r"^\d+\) ([\w\\]+)::(\w+)(?:#\S+)?(?: with data [^\n]*)?$", text)]
    counts, risky = [], set[str]()
    for match in _find(r"^OK \((\d+) tests?, |^Tests: (\d+), Assertions: (\d+)([^\n]*)$|^(No tests executed!)$", text):
        numbers = _named_numbers(match[4] or "", ":")
        skipped = numbers.get("Skipped", 0) + numbers.get("Incomplete", 0)
        failed = numbers.get("Errors", 0) + numbers.get("Failures", 0)
        counts.append((_number(match[1] or match[2]) - skipped, failed, skipped))
    for section in _find(r"^There (?:was|were) \d+ (?!error|failure)[^\n]*:\n([\s\S]*?)(?:\n--\n|^[A-Z]{2}|\Z)", text):
        risky |= {f"{m[1]}::{m[2]}" for m in _find(r"^\d+\) ([\w\\]+)::(\w+)", section[1])}
    crash = r"^PHP (?:Fatal|Parse) error:  [^\n]*? in (\S+?)(?: on line |:)\d+$"
    errors = [_file_name(match[1]) for match in _find(crash, text)] if "PHPUnit" in text else []
    yield from _report(counts, [name for name in failing if name not in risky], errors)


_SUREFIRE_SUMMARY = r"^(?:\[\w+\] )?Tests run: (\d+), Failures: (\d+), Errors: (\d+), Skipped: (\d+)$"


_SUREFIRE_TEST = re.compile(r"(?:\[ERROR\] )?(?!Tests run:)([\w.$]+)(\([^)]*\))?")


def _read_surefire(text: str) -> Iterator[ReportedTests]:
    """Read Maven's surefire and failsafe: one summary for each module."""
    failing = []
    for line in text.splitlines():
        match = _SUREFIRE_TEST.match(line) if line.endswith(("<<< FAILURE!", "<<< ERROR!")) else None
        if match:  # 2.x prints `test(package.Class)`
            place = (match[2] or "")[1:-1]
            failing.append(f"{place}.{match[1]}" if "." not in match[1] and "." in place else match[1])
    counts = []
    for match in _find(_SUREFIRE_SUMMARY, text):
        ran, failures, errors, skipped = map(_number, match.groups())
        counts.append((ran - skipped, failures + errors, skipped))
    if re.search(
        r"^\[INFO\] --- (?:maven-)?(?:surefire|failsafe)\S* |^(?:\[\w+\] )?No tests were executed!", text, re.M
    ):
        counts.append((0, 0, 0))  # nothing more is printed if no test matches, or with -DskipTests
    broken = [
        match[1] for match in _find(r"^\[ERROR\] (?:COMPILATION ERROR|(\S+\.(?:java|kt|scala)):\[\d+,\d+\])", text)
    ]
    yield from _report(counts, failing, [_file_name(path) for path in broken if path])


def _read_gradle(text: str) -> Iterator[ReportedTests]:
    """Read Gradle, which prints a summary only if tests failed."""
    counts = []
    for match in _find(r"^(\d+) tests? completed, (\d+) failed(?:, (\d+) skipped)?", text):
        counts.append((_number(match[1]) - _number(match[3]), _number(match[2]), _number(match[3])))
    names = [f"{m[1]}.{m[2]}" for m in _find(r"^(\w[\w.$]*) > ([^\n]*) FAILED$", text)]
    yield from _report(counts, [re.split(r"[(\[]", name, maxsplit=1)[0] for name in names])


def _read_ctest(text: str) -> Iterator[ReportedTests]:
    summary = r"^\d+% tests passed, (\d+) tests? failed out of (\d+)"
    counts = [(_number(match[2]), _number(match[1]), 0) for match in _find(summary, text)]
    counts += [(0, 0, 0) for _ in _find(r"^No tests were found!!!$", text)]
    yield from _report(counts, [match[1] for match in _find(r"^[ \t]+\d+ - (\S+) \((?:Failed|Timeout|SEGFAULT)", text)])


def _read_dotnet(text: str) -> Iterator[ReportedTests]:
    counts = []
    pattern = r"^(?:Passed|Failed|Skipped)! +- Failed: +(\d+), Passed: +(\d+), Skipped: +(\d+)"
    for match in _find(pattern, text):
        failed, passed, skipped = map(_number, match.groups())
        counts.append((failed + passed, failed, skipped))
    terminal = r"^Test summary: total: (\d+), failed: (\d+), succeeded: \d+, skipped: (\d+)"
    for match in _find(terminal, text):
        counts.append((_number(match[1]) - _number(match[3]), _number(match[2]), _number(match[3])))
    counts += [(0, 0, 0) for _ in _find(r"^(?:No test is available in |No test matches the given testcase)", text)]
    failing = [match[1] for match in _find(r"^  Failed ([^\n(]+?)(?:\([^\n]*\))? \[[^\]\n]*\]$", text)]
    failing += [m[1] for m in _find(r"error TESTERROR:\s*([\w.+]+)(?:\([^\n]*?\))? \(", text)]
    broken = [_file_name(match[1]) for match in _find(r"^ *(\S+\.[cf]s)\(\d+,\d+\): error (?:CS|FS)\d+:", text)]
    yield from _report(counts, failing, broken)


def _read_junit_xml(text: str) -> Iterator[ReportedTests]:
    """Read JUnit XML. Only used if no runner printed a summary: the same tests must not count twice."""
    if "<testsuite" not in text:
        return
    counts, failing = [(0, 0, 0)], []
    for match in _find(r"<testcase\b([^>]*?)(?:/>|>([\s\S]*?)</testcase>)", text):
        skipped = "<skipped" in (match[2] or "")
        failed = re.search(r"<(?:failure|error)\b", match[2] or "") is not None
        counts.append((int(not skipped), int(failed), int(skipped)))
        if failed:
            names = dict(re.findall(r'\b(classname|name)="([^"]*)"', match[1]))
            name = names.get("name", "").partition("[")[0]
            failing.append(unescape(f"{names['classname']}.{name}" if names.get("classname") else name))
    yield from _report(counts, failing)


READERS: dict[str, OutputReader] = {
    "pytest": _read_pytest,
    "unittest": _read_unittest,
    "jest": _read_jest,
    "vitest": _read_vitest,
    "mocha": _read_mocha,
    "node": _read_node,
    "tap": _read_tap,
    "go": _read_go_tests,
    "go packages": _read_go_packages,
    "cargo": _read_cargo,
    "rspec": _read_rspec,
    "phpunit": _read_phpunit,
    "surefire": _read_surefire,
    "gradle": _read_gradle,
    "ctest": _read_ctest,
    "dotnet": _read_dotnet,
}
