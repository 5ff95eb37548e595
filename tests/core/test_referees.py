"""How the answer of a reviewer is read."""

import pytest

from ralph.core.findings import ChangeFinding, ComparedTests, FindingKind
from ralph.core.judgement import describe_tests
from ralph.core.model import Exam, Iteration, Note, Run, Stop, Turn
from ralph.core.referees import read_verdict, refuses_claim, unweakened_tests


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("APPROVE", ""),
        ("It does what it should.\n\n**APPROVE**", ""),
        ("I would APPROVE this if it handled zero.", None),
        ("APPROVE\nbut look at line 3", None),
        ("Hm.", None),
        ("CHANGES: zero is not handled", "zero is not handled"),
        ("**CHANGES:** a\nb\n\nAPPROVE", "a\nb\n\nAPPROVE"),
        ("Changes: one file.\n\nAPPROVE", ""),
        ("CHANGES:", "the review does not say what has to change"),
    ],
)
def test_the_place_of_approve_counts_and_changes_wins(answer: str, verdict: str | None) -> None:
    assert read_verdict(answer) == verdict


def test_a_reviewer_that_repeats_its_prompt_gives_no_verdict() -> None:
    prompt = "Review this.\nIf not, write this:\nCHANGES: what has to change\nand why.\n"
    assert read_verdict(prompt, prompt) is None


STILL_RED = ChangeFinding("S", "the checks pass only with changed tests (test_a was red at the start)", ("test_a",))
WEAKENED = ChangeFinding("weakened", "test_b, as it was, fails now, and is gone", ("test_b",))


def claims(*answers: ComparedTests | Exam) -> Run:
    """Return a run whose claims were answered so."""
    iterations = [
        Iteration(number=number, turn=Turn(text=""), exams=(answer,))
        if isinstance(answer, Exam)
        else Iteration(number=number, turn=Turn(text=""), compared=answer)
        for number, answer in enumerate(answers, 1)
    ]
    return Run(id="20261120-000000-k3fa", iterations=tuple(iterations))


REFUSED = ComparedTests(STILL_RED, refused=True)
ASKED = ComparedTests(WEAKENED, refused=True)


@pytest.mark.parametrize("kind", ["F", "Z", "N", "adapted", "load error", "not comparable", "green"])
def test_only_a_test_that_is_still_red_or_weakened_refuses_a_claim(kind: FindingKind) -> None:
    assert not refuses_claim(ChangeFinding(kind, "text"), claims(), "as-they-were")
    assert refuses_claim(STILL_RED, claims(REFUSED, REFUSED), "as-they-were")
    assert refuses_claim(WEAKENED, claims(REFUSED), "as-they-were")
    assert not refuses_claim(WEAKENED, claims(ASKED), "as-they-were"), "asked about once"
    assert not refuses_claim(STILL_RED, claims(), "may-change")


def test_the_agent_is_told_which_test_and_that_a_person_decides() -> None:
    (note,) = unweakened_tests(3)(claims(REFUSED))
    assert isinstance(note, Note)
    assert note.text.startswith("test_a was red before you began.")
    assert "(refusal 1 of 3)" in note.text
    assert "say BLOCKED and why; a person decides" in note.text
    (note,) = unweakened_tests(3)(claims(ASKED))
    assert isinstance(note, Note)
    assert note.text.startswith("Test_b, as it was, fails now, and is gone. If the goal asks for that, claim again.")


def test_the_third_refusal_ends_the_run_with_the_way_out_exams_included() -> None:
    failed = Exam("exam", passed=False)
    for run in (claims(REFUSED, REFUSED, REFUSED), claims(failed, ASKED, REFUSED)):
        *_, stop = unweakened_tests(3)(run)
        assert isinstance(stop, Stop)
        assert stop.reason == (
            "the checks pass only with changed tests (test_a was red at the start); "
            "to accept them: ralph resume k3fa --tests may-change"
        )
    assert not any(isinstance(opinion, Stop) for opinion in unweakened_tests(3)(claims(REFUSED, REFUSED)))


def test_the_last_line_says_what_changed_tests_mean() -> None:
    assert describe_tests(claims(ComparedTests(WEAKENED))) == ", but test_b, as it was, fails now, and is gone"
    adapted = ChangeFinding("adapted", "1 test was changed to fit: test_c", ("test_c",))
    assert describe_tests(claims(ComparedTests(adapted))) == "; 1 test was changed to fit: test_c"
    green = ChangeFinding("green", "test files changed, and as they were, they pass")
    assert describe_tests(claims(ComparedTests(green))) == ""
    assert describe_tests(claims(ComparedTests(green, mixed=("go.mod",)))) == "; go.mod changed how the tests run"
