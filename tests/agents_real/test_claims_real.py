"""Claims of real agents: repeated claims, and a claim that is asked for once more."""

import pytest
from script import Say, write

GOAL = "write the text text.md please"
DONE = "It is written.\n\n<response>DONE</response>"

pytestmark = pytest.mark.parametrize("agent", ["claude", "codex"], indirect=True)


@pytest.mark.parametrize("session", ["fresh", "continue"])
def test_with_claims_2_a_claim_counts_once_a_second_look_changes_nothing(room, agent, session):
    with room() as place:
        text = place.workspace / "text.md"
        place.play(write(text, "one\n"), Say(DONE), write(text, "two\n"), Say(DONE), Say(DONE))
        ran = place.ralph("--claims", "2", "--session", session, GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert [told["gate"] for told in ran.of("claim_rejected")] == ["claims"] * 2
        asked = [one.prompt for one in place.stage.asked]
        assert "This is claim 1 of 2 that are needed in a row." in asked[2]
        assert "This is claim 1 of 2 that are needed in a row." in asked[4], "the second look changed something"
        assert (place.stage.steps, place.stage.surplus) == ([], 0)


def test_a_claim_inside_a_sentence_counts_once_it_is_made_as_asked(room, agent):
    with room() as place:
        talk = "As instructed I will output <response>DONE</response> when it is written."
        place.play(Say(talk), write(place.workspace / "text.md", "one\n"), Say(DONE))
        ran = place.ralph(GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        [told] = ran.of("claim_rejected")
        assert told["gate"] == "wording"
        assert f'You wrote "{talk}"' in place.stage.asked[1].prompt
