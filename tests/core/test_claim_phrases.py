"""How often does ralph believe talk about the marker, and how often does it ask for an honest claim once more?

The tables have phrases in more than fifteen languages, each with the result of the two rules. Phrases of the form
`plain` end with the marker, as every prompt asks: these are the honest claims of which at most 5 % may be refused if
there is a check. In those of the form `loose` the marker is inside a sentence or followed by one. By the rules most of
these are no claims, with or without a check; the last two figures say how many are refused if they are counted as well.
`pytest tests/core/test_claim_phrases.py -k misread` prints them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ralph.core.claims import Claim, Reading, makes_claim

CLAIMS = (
    Claim("promise", "DONE"),
    Claim("response", "DONE"),
    Claim("word", "STOP"),
    Claim("tag", "COMPLETE"),
    Claim("suffix", "DONE"),
)
UNCHECKED, CHECKED, LITERAL = Reading(), Reading(verified=True), Reading(anywhere=True)
COUNTS = {(True, True): "always", (False, True): "checked", (False, False): "never"}
PHRASES = Path(__file__).parent / "phrases"


class Phrase(NamedTuple):
    """`kind` is the kind of claim that the phrase is for, empty for all; `expected` says when it counts."""

    language: str
    kind: str
    form: str
    expected: str
    answer: str

    def answer_with(self, claim: Claim) -> str:
        return self.answer.replace("{M}", claim.marker)


def read_phrases(name: str) -> Iterator[Phrase]:
    for line in (PHRASES / name).read_text(encoding="utf-8").split("\n"):
        if line and not line.startswith("#"):
            language, *form, expected, answer = line.split("\t")
            yield Phrase(
                language.partition("/")[0],
                language.partition("/")[2],
                "".join(form),
                expected,
                answer.replace("\\n", "\n"),
            )


def count_misread(name: str, reading: Reading, *, is_claim: bool, form: str = "") -> tuple[int, int]:
    """Return how many answers are misread, and how many there are, with every kind of marker.

    Answers that don't contain the marker as its kind spells it are left out.
    """
    wrong = total = 0
    for phrase in read_phrases(name):
        for claim in CLAIMS:
            answer = phrase.answer_with(claim)
            if phrase.kind in ("", claim.kind) and form in ("", phrase.form) and makes_claim(claim, answer, LITERAL):
                total += 1
                wrong += makes_claim(claim, answer, reading) is not is_claim
    return wrong, total


@pytest.mark.parametrize(
    ("what", "name", "form", "reading", "is_claim", "at_most"),
    [
        ("talk believed without a check", "talk.txt", "", UNCHECKED, False, 0.05),
        ("honest claims asked for once more without a check", "honest.txt", "plain", UNCHECKED, True, 0.25),
        ("honest claims asked for once more with a check", "honest.txt", "plain", CHECKED, True, 0.05),
        ("talk believed with a check, where the checks still decide", "talk.txt", "", CHECKED, False, 0.66),
        ("honest claims of both forms asked for once more without a check", "honest.txt", "", UNCHECKED, True, 0.37),
        ("honest claims of both forms asked for once more with a check", "honest.txt", "", CHECKED, True, 0.12),
    ],
)
def test_few_claims_are_misread(
    what: str,
    name: str,
    form: str,
    reading: Reading,
    is_claim: bool,
    at_most: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong, total = count_misread(name, reading, is_claim=is_claim, form=form)
    with capsys.disabled():
        print(f"\n{what}: {wrong} of {total}, {wrong / total:.1%} (at most {at_most:.0%})", end=" ")
    assert wrong <= at_most * total


@pytest.mark.parametrize("name", ["talk.txt", "honest.txt"])
def test_every_phrase_counts_when_its_table_says_so(name: str) -> None:
    for phrase in read_phrases(name):
        claim = next(one for one in CLAIMS if phrase.kind in ("", one.kind))
        answer = phrase.answer_with(claim)
        counts = makes_claim(claim, answer, UNCHECKED), makes_claim(claim, answer, CHECKED)
        assert COUNTS[counts] == phrase.expected, answer


@pytest.mark.parametrize("name", ["talk.txt", "honest.txt"])
def test_the_tables_are_long_and_in_many_languages(name: str) -> None:
    phrases = list(read_phrases(name))
    assert len(phrases) >= 900
    assert len({phrase.language for phrase in phrases}) >= 15


def test_an_agent_that_does_as_told_is_not_asked_twice() -> None:
    """Whatever it wrote first: the marker alone on the last line, after an empty line, counts."""
    for phrase in read_phrases("honest.txt"):
        for claim in CLAIMS:
            before = phrase.answer_with(claim).rpartition(claim.marker)[0].rstrip(" *`#—–-,:：")
            again = f"{before} This is done.\n\n{claim.marker}"
            assert makes_claim(claim, again, UNCHECKED), again
