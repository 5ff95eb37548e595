"""How the answer of a reviewer is read."""

import pytest

from ralph.core.referees import read_verdict


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
