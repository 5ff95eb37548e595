"""Parts of a diff that can be undone one at a time, to see whether any check notices. Pure functions.

The hunks of a `git diff -U0` are grouped: those of one function, or at most three lines apart, belong together. Hunks
that cannot change behaviour (comments, imports, versions, …) are left out, by the same filters for all languages.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from ralph.core.file_classes import is_test_file

MAX_GAP = 3  # lines between hunks of one group
SKIPPED_SUFFIXES = (
    *(".md", ".rst", ".txt", ".lock", ".po", ".pot", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".ico"),
    *("package-lock.json", "pnpm-lock.yaml", "go.sum"),
)
# With these (as `core.attributesFile`) git names the function of each hunk.
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
    """One change in a file. `start` is its first line in the new file; `function` is the line that git shows for it."""

    path: str
    start: int
    removed: tuple[str, ...]
    added: tuple[str, ...]
    function: str = ""
    is_new_file: bool = False

    @property
    def end(self) -> int:
        """The line after the hunk in the new file."""
        return self.start + len(self.added)


class Part(Struct, frozen=True):
    """Hunks that are undone together: a whole group (`is_whole`), or one hunk of a group that was tested."""

    hunks: tuple[Hunk, ...]
    is_whole: bool = True

    @property
    def path(self) -> str:
        return self.hunks[0].path

    @property
    def place(self) -> str:
        """Its file, line and function, for people: `setutils.py:871 in __ge__`."""
        first = self.hunks[0]
        name = function_name(first.function)
        return f"{first.path}:{max(first.start, 1)}" + (f" in {name}" if name else "")

    @property
    def first_line(self) -> str:
        """The first line that it adds, for people."""
        return next((line.strip() for hunk in self.hunks for line in hunk.added if line.strip()), "")


def without(content: str, hunks: Iterable[Hunk]) -> str:
    lines = content.split("\n")
    for hunk in sorted(hunks, key=lambda change: change.start, reverse=True):
        lines[hunk.start - 1 : hunk.end - 1] = hunk.removed
    return "\n".join(lines)


_LINK_OR_SUBMODULE = re.compile(r"(?m)^(?:new file mode |index \w+\.\.\w+ )1[26]0000$")


def parse_diff(text: str) -> list[Hunk]:
    """Return the hunks of a `git diff -U0`, except those of renamed, deleted and binary files and links."""
    hunks: list[Hunk] = []
    for file in re.split(r"(?m)^(?=diff --git )", text):
        head, *places = re.split(r"(?m)^(?=@@ )", file)
        path = next((line[6:].removesuffix("\t") for line in head.split("\n") if line.startswith("+++ b/")), "")
        if path and not re.search(r"(?m)^(?:rename |deleted file)", head) and not _LINK_OR_SUBMODULE.search(head):
            is_new = re.search(r"(?m)^new file mode", head) is not None
            hunks += [_hunk(path, place, is_new) for place in places]
    return hunks


_PLACE = re.compile(r"@@ -\d+(?:,\d+)? \+(?P<start>\d+)(?:,(?P<count>\d+))? @@ ?(?P<function>.*)")


def _hunk(path: str, text: str, is_new_file: bool) -> Hunk:
    place, *lines = text.split("\n")  # a line may contain a form feed or end with CR
    match = _PLACE.match(place)
    assert match is not None, place
    return Hunk(
        path=path,
        # for a pure deletion git names the line before it
        start=int(match["start"]) + (match["count"] == "0"),
        removed=tuple(line[1:] for line in lines if line.startswith("-")),
        added=tuple(line[1:] for line in lines if line.startswith("+")),
        function=match["function"],
        is_new_file=is_new_file,
    )


def function_name(line: str) -> str:
    """Return the name in a line such as `def __ge__(self, other):`, else the line itself, shortened."""
    named = re.search(r"\b(?:def|class|func|function|fn|sub|interface|struct|impl)\s+([\w.$]+)", line)
    called = named or re.search(r"(?<![\w$.~])([\w$.~]+)\s*\(", line)
    return called[1] if called else line.strip()[:40]


def group_hunks(hunks: Sequence[Hunk]) -> list[Part]:
    """Group hunks that are in one function or at most three lines apart. Groups with the most added
    lines come first."""
    groups: list[list[Hunk]] = []
    for hunk in hunks:
        last = groups[-1][-1] if groups else None
        is_near = last and hunk.start - last.end <= MAX_GAP
        if last and last.path == hunk.path and (is_near or last.function == hunk.function != ""):
            groups[-1].append(hunk)
        else:
            groups.append([hunk])
    return [Part(tuple(group)) for group in sorted(groups, key=lambda group: -sum(len(hunk.added) for hunk in group))]


def hunks_worth_undoing(hunks: Iterable[Hunk], contents: Mapping[str, str]) -> list[Hunk]:
    """Leave out files that are not code or are tests, and hunks that cannot change behaviour.

    `contents` are the new files by path, to find comments and strings of several lines.
    """
    return [
        hunk
        for hunk in hunks
        if not hunk.path.lower().endswith(SKIPPED_SUFFIXES)
        and not is_test_file(hunk.path)
        and not is_harmless(hunk, contents.get(hunk.path, ""))
    ]


def is_harmless(hunk: Hunk, content: str = "") -> bool:
    """Whether the hunk cannot change behaviour, judged by its lines alone."""
    changed = [line for line in (*hunk.removed, *hunk.added) if line.strip()]
    return (
        not hunk.added  # removed code doesn't need a test
        or not changed
        or all(map(_COMMENT.match, changed))
        or _without_layout(hunk.removed) == _without_layout(hunk.added)
        or _block_lines(content).issuperset(range(hunk.start, hunk.end))
        or all(map(_IMPORT.match, changed))
        or (len(changed) <= 2 and all("version" in line.lower() for line in changed))
        or all(map(_QUOTED_NAME.fullmatch, changed))
    )


def _without_layout(lines: Sequence[str]) -> str:
    """Join the lines without white space and trailing commas."""
    return re.sub(r",(?=[)\]}]|$)", "", re.sub(r"\s+", "", "".join(lines)))


_COMMENT = re.compile(r"""\s*(?:#(?!\[)|//|/?\*|--|;|<!--|["]{3}|[']{3})""")  # `#[` is an attribute in Rust
_IMPORT = re.compile(r"\s*(?:import|from|use|using|require|#include|package)\b|\s*(?:const|let|var) [^=]*= require\(")
_QUOTED_NAME = re.compile(r"""\s*["'][\w.:-]+["'],?\s*""")

_BLOCKS = {'"""': '"""', "'''": "'''", "/*": "*/"}
_BLOCK_MARK = re.compile(r'"""|\'\'\'|/\*|\*/')


def _block_lines(content: str) -> set[int]:
    """Return the numbers of lines that begin inside a block comment or a docstring, or open one at their start."""
    numbers, end = set(), ""
    for number, line in enumerate(content.split("\n"), 1):
        if end or line.strip().startswith(tuple(_BLOCKS)):
            numbers.add(number)
        for mark in _BLOCK_MARK.findall(line):
            if not end:
                end = _BLOCKS.get(mark, "")
            elif mark == end:
                end = ""
    return numbers


MAX_CHECK_RUNS = 10  # controls included
MAX_SECONDS = 600.0

ProofVerdict = Literal["tested", "untested", "nothing tested", "red", "nothing to try", "no time"]
Undo = Callable[[Sequence[Part], float], bool | None]
"""Undo parts, run every check, and return whether all pass; None if they took longer than these seconds."""


class Untested(Struct, frozen=True, omit_defaults=True):
    """A part that can be undone with every check still green: its place, and the first line that it adds."""

    place: str
    line: str = ""
    is_whole: bool = True


class Proof(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of undoing parts: `tried` parts were undone one at a time, and for `not_tried` the time was up.

    The verdict `nothing tested` means that every check passes without any of the change; `red`, that the checks fail
    with all of it; `no time`, that the time ran out before anything could be tried.
    """

    verdict: ProofVerdict
    untested: tuple[Untested, ...] = ()
    tried: int = 0
    not_tried: int = 0
    check_runs: int = 0
    seconds: float = 0.0

    @property
    def whole(self) -> tuple[Untested, ...]:
        """The untested parts that are whole groups: the agent can be asked about these."""
        return tuple(part for part in self.untested if part.is_whole) if self.verdict == "untested" else ()


def prove(hunks: Sequence[Hunk], undo: Undo, clock: Callable[[], float], max_seconds: float = MAX_SECONDS) -> Proof:
    """Undo the groups one at a time, then the single hunks of tested groups, within the budget."""
    groups, started, runs = group_hunks(hunks), clock(), 0
    if not groups:
        return Proof(verdict="nothing to try")

    def passes_without(parts: Sequence[Part]) -> bool | None:
        """Return whether every check passes without these parts; None if the time is over."""
        nonlocal runs
        seconds_left = max_seconds - (clock() - started)
        runs += seconds_left > 0
        return undo(parts, seconds_left) if seconds_left > 0 else None

    waiting, untested, tried = list(groups), list[Part](), 0
    verdict: ProofVerdict = "no time"
    as_it_is = passes_without(())
    all_undone = passes_without(groups) if as_it_is else None
    if as_it_is is False:
        verdict = "red"
    elif all_undone:
        verdict, untested, waiting = "nothing tested", groups, []
    elif all_undone is False:
        while waiting and runs < MAX_CHECK_RUNS:
            part = waiting[0]
            passes = passes_without((part,))
            if passes is None:
                break
            waiting.pop(0)
            tried += 1
            if passes:
                untested.append(part)
            elif len(part.hunks) > 1:
                waiting += [Part((hunk,), is_whole=False) for hunk in part.hunks]
        verdict = "untested" if untested else "tested"
    return Proof(
        verdict=verdict,
        untested=tuple(Untested(part.place, part.first_line, part.is_whole) for part in untested),
        tried=tried,
        not_tried=len(waiting),
        check_runs=runs,
        seconds=clock() - started,
    )
