"""How often is talk about the marker believed, and how often is an honest claim refused? In fifteen languages and more.

`pytest -k claim_phrases -s` prints the scores; `RALPH_PHRASES=1` names what was read wrongly in the half that may be
looked at, and `RALPH_PHRASES=DIR` reads other phrases.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ralph.core.claims import Claim, Reading, stated

CLAIMS = (
    Claim("promise", "DONE"),
    Claim("response", "DONE"),
    Claim("word", "STOP"),
    Claim("tag", "COMPLETE"),
    Claim("suffix", "DONE"),
)
GATED, UNGATED, LITERAL = Reading(verified=True), Reading(), Reading(anywhere=True)
CHOSEN = os.environ.get("RALPH_PHRASES", "")
PHRASES = Path(CHOSEN) if len(CHOSEN) > 1 else Path(__file__).parent / "phrases"


def phrases(name: str, half: str) -> Iterator[tuple[str, str, str]]:
    """The kind that a phrase is for, its form, and itself."""
    text = (PHRASES / name).read_text(encoding="utf-8")
    part = text.partition(f"## {half}\n")[2].partition("\n## ")[0]
    for line in filter(None, part.split("\n")):
        language, *form, answer = line.split("\t")
        yield language.partition("/")[2], "".join(form), answer.replace("\\n", "\n")


def misread(name: str, half: str, reading: Reading, claims: bool) -> tuple[int, list[str]]:
    """How many answers there are, and those that are taken for the opposite of what they are. Only those count that
    hold the marker by the literal rule."""
    total, wrong = 0, []
    for only, form, phrase in phrases(name, half):
        for claim in CLAIMS:
            answer = phrase.replace("{M}", claim.marker)
            is_asked = only in ("", claim.kind) and (form != "loose" or reading.verified)
            if is_asked and stated(claim, answer, LITERAL):
                total += 1
                if stated(claim, answer, reading) is not claims:
                    wrong.append(f"{claim} {answer!r}")
    return total, wrong


@pytest.mark.parametrize("half", ["development", "held out"])
@pytest.mark.parametrize(
    ("what", "name", "reading", "claims", "at_most"),
    [
        ("talk believed, nothing verifies", "talk.txt", UNGATED, False, 0.02),
        ("honest claims refused, nothing verifies", "honest.txt", UNGATED, True, 0.10),
        ("talk believed, a gate verifies", "talk.txt", GATED, False, 0.25),
        ("honest claims refused, a gate verifies", "honest.txt", GATED, True, 0.02),
    ],
)
def test_the_claims_of_all_phrases_are_read_rightly(
    what: str, name: str, reading: Reading, claims: bool, at_most: float, half: str, capsys: pytest.CaptureFixture[str]
) -> None:
    total, wrong = misread(name, half, reading, claims)
    with capsys.disabled():
        print(f"\n{what} ({half}): {len(wrong)} of {total}, {len(wrong) / total:.1%} (at most {at_most:.0%})", end=" ")
        if CHOSEN and half == "development":
            print("", *wrong, sep="\n    ")
    assert len(wrong) <= at_most * total


@pytest.mark.parametrize("name", ["talk.txt", "honest.txt"])
def test_the_tables_of_claims_are_long_and_in_many_languages(name: str) -> None:
    lines = [line for line in (PHRASES / name).read_text(encoding="utf-8").split("\n") if line and line[0] != "#"]
    assert len(lines) >= 120
    assert len({line.partition("\t")[0].partition("/")[0] for line in lines}) >= 10


def test_whoever_was_refused_once_is_believed_when_it_does_as_told() -> None:
    """Below an empty line and alone on the last line, after whatever was wrong before."""
    for half in ("development", "held out"):
        for _, _, phrase in phrases("honest.txt", half):
            for claim in CLAIMS:
                if not (first := phrase.replace("{M}", claim.marker)).rstrip().endswith((":", "：")):
                    again = (
                        f"{first.rpartition(claim.marker)[0].rstrip(' *`—–-,') or 'Here'} is done.\n\n{claim.marker}"
                    )
                    assert stated(claim, again, UNGATED), again
