"""Which files are tests, and which say how tests run: the one table for the controls, protection and the proof.

Only names decide. A project that calls product code `test/` (django/test) is misread; `docs/guides/judge.md` says so.
"""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from msgspec import Struct

FileClass = Literal["", "test", "runner", "mixed"]

_TEST_FOLDERS = (
    "tests?|__tests__|specs?|e2e|cypress|testdata|test-data|fixtures?|__fixtures__|__mocks__|__snapshots__|snapshots"
    r"|androidtest|integrationtest|[\w.]+\.(?:unit|integration)?tests?"
)
_TEST = re.compile(
    rf"(?:^|/)(?:{_TEST_FOLDERS})/"
    r"|(?:^|/)(?:tests?\.\w+|test_[^/]*|conftest\.py|[^/]*[._-](?:tests?|specs?)\.\w+|[^/]+\.snap)$"
)
# Here case counts: `FooTest.java` is a test, `latest.java` is not.
_TEST_CLASS = re.compile(r"(?:^|/)[A-Z]\w*(?:Tests?|Spec|IT)\.(?:java|kts?|scala|groovy|cs|fs|vb|php|swift)$")

_RUNNER = re.compile(
    r"(?:^|/)(?:conftest\.py|\.?pytest\.(?:ini|toml)|tox\.ini|noxfile\.py|nose\.cfg|unittest\.cfg|\.coveragerc"
    r"|sitecustomize\.py|usercustomize\.py|[^/]+\.pth"
    r"|(?:jest|vitest|karma|ava|playwright|cypress|wdio|jasmine|nightwatch)\.(?:[\w-]+\.)*(?:config|conf|workspace|setup)"
    r"(?:\.[\w-]+)*\.\w+|karma\.conf[^/]*|vitest\.[^/]+|cypress\.json|jasmine\.json|bunfig\.toml"
    r"|\.mocharc(?:\.\w+)?|mocha\.opts|\.taprc|\.(?:nyc|c8)rc(?:\.\w+)?"
    r"|phpunit\.xml(?:\.\w+)*|pest\.php|\.rspec|(?:spec|rails|test)_helper\.\w+"
    r"|nextest\.toml|testng\.xml|junit-platform\.properties|[^/]+\.runsettings|setup-?tests\.\w+)$"
)
# `python -m pytest` prefers these to the runner itself.
_SHADOW = re.compile(r"^(?:_?pytest|unittest)(?:/__init__)?\.py$")

_MIXED = re.compile(
    r"(?:^|/)(?:pyproject\.toml|setup\.cfg|package\.json|(?:gnu)?makefile|justfile|taskfile\.ya?ml|cargo\.toml|pom\.xml"
    r"|build\.gradle(?:\.kts)?|composer\.json|rakefile|cmakelists\.txt|vite\.config\.\w+|deno\.jsonc?|go\.mod"
    r"|[^/]+\.[cf]sproj|\.babelrc(?:\.\w+)?|babel\.config\.\w+|tsconfig[^/]*\.json)$"
)


def file_class(path: str) -> FileClass:
    """Return whether the file is a test or its data ("test"), says only how tests run ("runner"), or says that among
    other things ("mixed")."""
    lower = path.lower()
    if _RUNNER.search(lower) or _SHADOW.match(path):
        return "runner"
    if _TEST.search(lower) or _TEST_CLASS.search(path):
        return "test"
    return "mixed" if _MIXED.search(lower) else ""


def is_test_file(path: str) -> bool:
    """Whether it is a test, test data, or says only how tests run."""
    return file_class(path) in ("test", "runner")


def changes_how_tests_run(path: str) -> bool:
    """Whether a new file with this name could change the result of other tests."""
    return file_class(path) in ("runner", "mixed")


class PathChange(NamedTuple):
    """One row of `git diff --name-status -M`: A, M, T, D, or R or C with a number. `old` is `new` unless it was renamed
    or copied."""

    status: str
    old: str
    new: str


class OldTests(Struct, frozen=True, kw_only=True):
    """How to get the tests as they were: paths to restore from the old commit, and new paths to remove.

    `reported` are changed files that a check names although they are no test: it may be the program (`python calc.py`),
    so they stay as they are.
    """

    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    mixed: tuple[str, ...] = ()
    """Those of `restored` and `removed` that say other things as well: the old tests may run only without them."""

    def __bool__(self) -> bool:
        return bool(self.restored or self.removed)

    @property
    def without_mixed(self) -> "OldTests":
        return OldTests(
            restored=tuple(path for path in self.restored if path not in self.mixed),
            removed=tuple(path for path in self.removed if path not in self.mixed),
            reported=self.reported,
        )


def plan_old_tests(changes: Iterable[PathChange], named: Iterable[str] = ()) -> OldTests:
    """Return what has to be undone of these changes so that the tests are as they were; `named` are files that the
    checks name.

    Changed and deleted files are restored, renamed ones under their old name only: under two names they collide, or
    count twice. New ones are removed unless a check names them.
    """
    named = frozenset(named)
    restored: list[str] = []
    removed: list[str] = []
    reported: list[str] = []
    for change in changes:
        status = change.status[:1]
        is_ours = bool(file_class(change.old) or file_class(change.new))
        if status in "MTD" and is_ours:
            restored.append(change.old)
        elif status == "R" and is_ours:
            restored.append(change.old)
            removed += [change.new] if change.new not in named else []
        elif status in "AC" and file_class(change.new):
            removed += [change.new] if change.new not in named else []
        elif {change.old, change.new} & named:
            reported.append(change.new)
    mixed = [path for path in (*restored, *removed) if file_class(path) == "mixed"]
    return OldTests(restored=tuple(restored), removed=tuple(removed), reported=tuple(reported), mixed=tuple(mixed))
