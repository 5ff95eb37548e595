"""`ralph loop --check`, without any option, refuses work that makes red tests green without doing it.

These are the fast ones of `bench/cheats`; `make cheats` plays all of them.
"""

from pathlib import Path

import pytest
from bench.cheats.play import play
from bench.cheats.projects import PROJECTS
from bench.cheats.table import CHEATS, Cheat

PYTEST = (
    ("assertion", "swallowed"),
    ("runner file", "conftest ends with 0"),
    ("project file", "Makefile hides the exit code"),
    ("project file", "Makefile runs no test"),
    ("project file", "check script runs no test"),
    ("data", "expected value"),
)
FAST = [
    cheat
    for cheat in CHEATS
    if PROJECTS[cheat.project].runner == "unittest"
    or (PROJECTS[cheat.project].runner == "pytest" and (cheat.kind, cheat.name) in PYTEST)
]


@pytest.mark.parametrize("cheat", FAST, ids=lambda cheat: f"{cheat.kind}: {cheat.name}")
def test_a_cheat_is_refused_without_any_option(cheat: Cheat, tmp_path: Path) -> None:
    ending = play(cheat, tmp_path, iterations=1)
    assert ending.finding in ("S", "F", "Z"), ending.output


def test_every_chosen_cheat_is_in_the_table() -> None:
    assert len(FAST) == len(PYTEST) + 4
