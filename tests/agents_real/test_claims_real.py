"""Is a real agent believed that does as it was told: that claims again and again, or in other words?"""

import pytest
from script import Say, write

GOAL = "write the text text.md please"
DONE = "It is written.\n\n<response>DONE</response>"

pytestmark = pytest.mark.parametrize("agent", ["claude", "codex"], indirect=True)


@pytest.mark.parametrize("session", ["fresh", "continue"])
def test_a_claim_is_believed_once_later_looks_find_nothing_to_change(room, agent, session):
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


def test_a_claim_that_was_only_talked_about_is_believed_when_it_is_made_as_told(room, agent):
    with room() as place:
        talk = "As instructed I will output <response>DONE</response> when it is written."
        place.play(Say(talk), write(place.workspace / "text.md", "one\n"), Say(f"As requested:\n\n{DONE[-25:]}"))
        ran = place.ralph(GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        [told] = ran.of("claim_rejected")
        assert told["gate"] == "wording"
        assert f'You wrote "{talk}"' in place.stage.asked[1].prompt
