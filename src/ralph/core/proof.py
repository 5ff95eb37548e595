"""Parts of a diff that can be undone one at a time, to see whether any check notices. Pure functions.

A diff made with `git diff -U0` becomes hunks; hunks of one function, or at most three lines apart, form a group. Hunks
that cannot change behaviour (comments, imports, versions, …) are left out by filters that know no language.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct

MAX_GAP = 3  # lines between hunks of one group
SKIPPED_SUFFIXES = (
    *(".md", ".rst", ".txt", ".lock", ".po", ".pot", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".ico"),
    *("package-lock.json", "pnpm-lock.yaml", "go.sum"),
)
_TEST_PATH = re.compile(
    r"(?:^|/)(?:tests?|__tests__|specs?)/|(?:^|/)(?:test_[^/]*|conftest\.py|[^/]*[._-](?:test|spec)s?\.\w+)$"
)


# Git knows where functions begin in these languages, if it is told which files are theirs (`core.attributesFile`).
GIT_ATTRIBUTES = """\
*.py diff=python
*.go diff=golang
*.rs diff=rust
*.rb diff=ruby
*.java diff=java
*.kt diff=kotlin
*.cs diff=csharp
*.php diff=php
*.c diff=cpp
*.h diff=cpp
*.cc diff=cpp
*.cpp diff=cpp
*.ex diff=elixir
*.sh diff=bash
"""


class Hunk(Struct, frozen=True, kw_only=True):
    """One change in a file. `start` is its first line in the new file; `function` is git's guess where it is."""

    path: str
    header: tuple[str, ...]  # the lines of the diff that introduce the file
    place: str  # the @@ line
    start: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    function: str = ""

    @property
    def end(self) -> int:
        """The line after the hunk in the new file."""
        return self.start + len(self.added)

    @property
    def is_new_file(self) -> bool:
        return any(line.startswith("new file mode") for line in self.header)


class Part(Struct, frozen=True):
    """Hunks that are undone together."""

    hunks: tuple[Hunk, ...]

    @property
    def path(self) -> str:
        return self.hunks[0].path

    @property
    def added(self) -> int:
        return sum(len(hunk.added) for hunk in self.hunks)

    @property
    def place(self) -> str:
        """Where it is, for people: `setutils.py:871 in __ge__`."""
        first = self.hunks[0]
        name = function_name(first.function)
        return f"{first.path}:{max(first.start, 1)}" + (f" in {name}" if name else "")

    @property
    def first_line(self) -> str:
        """The first line that it adds, for people."""
        added = (line.strip() for hunk in self.hunks for line in hunk.added)
        return next((line for line in added if line), "")

    def patch(self) -> str:
        """Return a patch of these hunks, to be undone with `git apply --reverse --unidiff-zero`."""
        lines: list[str] = list(self.hunks[0].header)
        for hunk in self.hunks:
            lines += [hunk.place, *(f"-{line}" for line in hunk.removed), *(f"+{line}" for line in hunk.added)]
        return "\n".join(lines) + "\n"


def parse_diff(text: str) -> list[Hunk]:
    """Return the hunks of a `git diff -U0`; files that are binary, renamed or deleted have none."""
    hunks: list[Hunk] = []
    for file in re.split(r"(?m)^(?=diff --git )", text):
        header, *places = re.split(r"(?m)^(?=@@ )", file)
        head = tuple(header.splitlines())
        path = next((line[6:] for line in head if line.startswith("+++ b/")), "")
        if path and not any(line.startswith(("rename ", "deleted file")) for line in head):
            hunks += [_hunk(path, head, place) for place in places]
    return hunks


_PLACE = re.compile(r"@@ -\d+(?:,\d+)? \+(?P<start>\d+)(?:,(?P<count>\d+))? @@ ?(?P<function>.*)")


def _hunk(path: str, header: tuple[str, ...], text: str) -> Hunk:
    place, *lines = text.splitlines()
    found = _PLACE.match(place)
    assert found is not None, place
    return Hunk(
        path=path,
        header=header,
        place=place,
        # for a pure deletion git names the line before it
        start=int(found["start"]) + (found["count"] == "0"),
        removed=tuple(line[1:] for line in lines if line.startswith("-")),
        added=tuple(line[1:] for line in lines if line.startswith("+")),
        function=found["function"],
    )


def function_name(line: str) -> str:
    """Return the name in a line such as `def __ge__(self, other):`, else the line itself, shortened."""
    named = re.search(r"\b(?:def|class|func|function|fn|sub|interface|struct|impl)\s+([\w.$]+)", line)
    called = named or re.search(r"(?<![\w$.~])([\w$.~]+)\s*\(", line)
    return called[1] if called else line.strip()[:40]


def group_hunks(hunks: Sequence[Hunk]) -> list[Part]:
    """Group the hunks of one function, or at most three lines apart; groups with the most added lines come first."""
    groups: list[list[Hunk]] = []
    for hunk in hunks:
        last = groups[-1][-1] if groups else None
        if last and last.path == hunk.path and (_is_near(last, hunk) or _is_same_function(last, hunk)):
            groups[-1].append(hunk)
        else:
            groups.append([hunk])
    return sorted((Part(tuple(group)) for group in groups), key=lambda part: -part.added)


def _is_near(before: Hunk, hunk: Hunk) -> bool:
    return hunk.start - before.end <= MAX_GAP


def _is_same_function(before: Hunk, hunk: Hunk) -> bool:
    return bool(hunk.function) and hunk.function == before.function


def hunks_worth_undoing(
    hunks: Iterable[Hunk], contents: Mapping[str, str], is_protected: Iterable[str] = ()
) -> list[Hunk]:
    """Leave out files that are not code or are tests, protected files, and hunks that cannot change behaviour.

    `contents` are the new files by path, to find comments and strings of several lines.
    """
    protected = frozenset(is_protected)
    return [
        hunk
        for hunk in hunks
        if not hunk.path.lower().endswith(SKIPPED_SUFFIXES)
        and not is_test_file(hunk.path)
        and hunk.path not in protected
        and not is_harmless(hunk, contents.get(hunk.path, ""))
    ]


def is_test_file(path: str) -> bool:
    return _TEST_PATH.search(path.lower()) is not None


def is_harmless(hunk: Hunk, content: str = "") -> bool:
    """Whether the hunk cannot change behaviour, judged by its lines alone."""
    changed = [line for line in (*hunk.removed, *hunk.added) if line.strip()]
    return (
        not hunk.added  # what is gone needs no test
        or not changed
        or all(map(_is_comment, changed))
        or _without_layout(hunk.removed) == _without_layout(hunk.added)
        or _is_inside_block(hunk, content)
        or all(map(_is_import, changed))
        or (len(changed) <= 2 and all("version" in line.lower() for line in changed))
        or all(map(_is_quoted_name, changed))
    )


def _is_comment(line: str) -> bool:
    text = line.strip()
    return text.startswith(("#", "//", "/*", "*", "--", ";", "<!--", '"""', "'''")) and not text.startswith(
        "#["
    )  # Rust


def _without_layout(lines: Sequence[str]) -> str:
    """Join the lines without white space and trailing commas."""
    return re.sub(r",(?=[)\]}]|$)", "", re.sub(r"\s+", "", "".join(lines)))


_IMPORT = re.compile(r"\s*(?:import|from|use|using|require|#include|package)\b|\s*(?:const|let|var) [^=]*= require\(")


def _is_import(line: str) -> bool:
    return _IMPORT.match(line) is not None


def _is_quoted_name(line: str) -> bool:
    return re.fullmatch(r"""\s*["'][\w.:-]+["'],?\s*""", line) is not None


_BLOCKS = (('"""', '"""'), ("'''", "'''"), ("/*", "*/"))


def _is_inside_block(hunk: Hunk, content: str) -> bool:
    """Whether all added lines are inside a block comment or a docstring, by counting from the top of the file."""
    lines = content.split("\n")
    inside = set(_block_lines(lines))
    return bool(inside) and all(number in inside for number in range(hunk.start, hunk.end))


def _block_lines(lines: Sequence[str]) -> Iterator[int]:
    """Yield the numbers of lines that begin inside a block or open one at their start."""
    end = ""
    for number, line in enumerate(lines, 1):
        begins_inside = bool(end)
        opens = not end and line.strip().startswith(tuple(begin for begin, _ in _BLOCKS))
        end = _open_block(line, end)
        if begins_inside or opens:
            yield number


def _open_block(line: str, end: str) -> str:
    """Return the delimiter that closes the block which is open after this line; empty if none is."""
    at = 0
    while True:
        if end:
            at = line.find(end, at)
            if at < 0:
                return end
            at, end = at + len(end), ""
        starts = [(line.find(begin, at), begin, close) for begin, close in _BLOCKS if line.find(begin, at) >= 0]
        if not starts:
            return ""
        at, begin, end = min(starts)
        at += len(begin)


MAX_CHECK_RUNS = 10  # controls included
MAX_SECONDS = 600.0

ProofVerdict = Literal["tested", "untested", "nothing tested", "red", "nothing to try"]
Undo = Callable[[Sequence[Part]], bool]
"""Undo parts, run every check, and return whether all pass."""


class Proof(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What undoing showed. `untested` parts can be undone with every check still green.

    `nothing tested`: every check passes without any of the change. `red`: the checks fail as it is.
    """

    verdict: ProofVerdict
    untested: tuple[Part, ...] = ()
    tried: int = 0
    not_tried: int = 0
    check_runs: int = 0
    seconds: float = 0.0


def prove(hunks: Sequence[Hunk], passes_without: Undo, clock: Callable[[], float]) -> Proof:
    """Undo the groups one at a time, then the hunks inside groups that are tested, within the budget."""
    groups = group_hunks(hunks)
    started = clock()
    if not groups:
        return Proof(verdict="nothing to try")
    if not passes_without(()):
        return Proof(verdict="red", check_runs=1, seconds=clock() - started)
    if passes_without(groups):
        return Proof(verdict="nothing tested", untested=tuple(groups), check_runs=2, seconds=clock() - started)
    waiting, untested, tried = list(groups), list[Part](), 0
    while waiting and 2 + tried < MAX_CHECK_RUNS and clock() - started < MAX_SECONDS:
        part = waiting.pop(0)
        tried += 1
        if passes_without((part,)):
            untested.append(part)
        elif len(part.hunks) > 1:
            waiting += [Part((hunk,)) for hunk in part.hunks]
    return Proof(
        verdict="untested" if untested else "tested",
        untested=tuple(untested),
        tried=tried,
        not_tried=len(waiting),
        check_runs=2 + tried,
        seconds=clock() - started,
    )
