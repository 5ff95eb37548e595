"""A real agent that is stuck hands over to another one, and a real agent keeps to what is left of the budget."""

import pytest
from script import Forever, Say, Tokens, shell, write

GOAL, DONE = "make the file made.txt please", "It is made.\n<response>DONE</response>"
OTHER = {"claude": "codex", "codex": "claude"}
GREEN = 'grep -qs right made.txt && { echo "3 passed in 0.1s"; exit; }'
CHECK = f'{GREEN}; echo "1 failed, 2 passed in 0.1s"; exit 1'


@pytest.mark.parametrize("agent", list(OTHER), indirect=True)
def test_a_second_agent_takes_over_from_one_that_is_stuck(room, agent):
    other = OTHER[agent]
    with room() as place:
        place.invite(other)
        made = place.workspace / "made.txt"
        place.play(
            Say("I looked around."), write(made, "wrong\n"), Say("I made it."), write(made, "right\n"), Say(DONE)
        )
        ran = place.ralph("--check", CHECK, "--baseline", "--stuck", "2", "--then", other, GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert [told["agent"] for told in ran.of("agent_started")] == [agent, agent, other]
        assert place.stage.asked[-1].tools, "the last turn was a real one"
        prompt = next(asked.prompt for asked in place.stage.asked if "You take over from another agent" in asked.prompt)
        assert "0 of 1 checks pass, 1 failure: no progress: I made it." in prompt
        assert made.read_text() == "right\n"


@pytest.mark.parametrize("agent", ["claude"], indirect=True)
def test_claude_stays_within_the_remaining_budget(room, agent):
    work = shell("echo more >> work.txt")._replace(tokens=Tokens(200_000, 20_000))
    with room(Forever(work)) as place:
        ran = place.ralph("--max-cost", "2", "--check", "false", GOAL)
        assert ran.outcome == "budget", str(ran)
        (started,) = ran.of("agent_started")
        assert started["argv"][started["argv"].index("--max-budget-usd") + 1] == "2.0000"
        assert len(place.stage.asked) < 10
        assert ran.of("run_finished")[0]["cost_usd"] < 4
