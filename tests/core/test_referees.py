"""How the answer of a reviewer is read."""

import pytest

from ralph.core.referees import ReviewAnswer, read_verdict


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("APPROVE", ReviewAnswer(approves=True)),
        ("It does what it should.\n\n**APPROVE**", ReviewAnswer(approves=True)),
        ("I would APPROVE this if it handled zero.", ReviewAnswer()),
        ("APPROVE\nbut look at line 3", ReviewAnswer()),
        ("Hm.", ReviewAnswer()),
        ("CHANGES: zero is not handled", ReviewAnswer(changes="zero is not handled")),
        ("**CHANGES:** a\nb\n\nAPPROVE", ReviewAnswer(changes="a\nb\n\nAPPROVE")),
        ("Changes: one file.\n\nAPPROVE", ReviewAnswer(approves=True)),
        ("CHANGES:", ReviewAnswer(changes="the review does not say what has to change")),
    ],
)
def test_the_place_of_approve_counts_and_changes_wins(answer: str, verdict: ReviewAnswer) -> None:
    assert read_verdict(answer) == verdict


def test_a_reviewer_that_repeats_its_prompt_gives_no_verdict() -> None:
    prompt = "Review this.\nIf not, write this:\nCHANGES: what has to change\nand why.\n"
    assert read_verdict(prompt, prompt) == ReviewAnswer()
