"""A real agent reviews another's work, reports that it is blocked, and is understood when its provider refuses it."""

import json
import time

import pytest
from script import Fail, Forever, Say, write
from troubles import limited, overloaded

GOAL = "make the file made.txt please"
DONE = "It is made.\n<response>DONE</response>"
OTHER = {"claude": "codex", "codex": "claude"}

pytestmark = pytest.mark.parametrize("agent", list(OTHER), indirect=True)


def settings(place, **said) -> None:
    folder = place.workspace / ".ralph"
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(said))


def test_a_second_agent_reviews_the_first_and_writes_the_message(room, agent):
    other = OTHER[agent]
    with room() as place:
        place.invite(other)
        review = {"name": "bugs", "prompt": "Look for mistakes in made.txt."}
        settings(
            place,
            reviews={"prompts": [review]},
            scm={"command": "git", "tasks": ["commit"], "agent": other},
        )
        made = place.workspace / "made.txt"
        refused = (write(made, "wrong\n"), Say(DONE), Say("CHANGES: it has to say right"))
        place.play(*refused, write(made, "right\n"), Say(DONE), Say("Good.\n\nAPPROVE"), Say("Make the file"))
        ran = place.ralph("--check", "test -e made.txt", "--review-agent", other, GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        started = [(told["agent"], told.get("purpose", "work")) for told in ran.of("agent_started")]
        asked = [(agent, "work"), (other, "review-bugs"), (other, "message")]
        assert started == [*asked[:2], *asked]
        assert review["prompt"] in place.stage.asked[2].prompt
        assert "it has to say right" in place.stage.asked[3].prompt
        assert made.read_text() == "right\n"
        assert place.git("log", "-1", "--format=%s").strip() == "Make the file"


def test_an_agent_that_is_blocked_ends_the_run(room, agent):
    with room(Say("I tried.\n\n<response>BLOCKED: the key is missing</response>")) as place:
        ran = place.ralph("--check", "false", GOAL)
        assert (ran.code, ran.outcome) == (1, "blocked"), str(ran)
        assert ran.of("run_finished")[0]["reason"] == "the key is missing"


@pytest.mark.parametrize("mode", ["--stream-agent-output", "--no-stream-agent-output"])
@pytest.mark.parametrize("trouble", ["limit", "transient"])
def test_a_refusal_by_the_provider_is_recognised_in_the_stream_and_in_plain_text(room, agent, mode, trouble):
    refused = limited(agent, time.time() + 3600) if trouble == "limit" else overloaded(agent)
    with room(Forever(refused)) as place:
        if trouble == "limit" and agent == "claude":  # which knows of limits that reset on a subscription alone
            place.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-made-up-for-the-tests"
            del place.env["ANTHROPIC_API_KEY"]
        ran = place.ralph(mode, "--on-limit", "stop", "--max-time", "20s", GOAL)
        kinds = {
            event["turn"]["failure"]["kind"] for event in ran.of("turn_not_counted") if event["turn"].get("failure")
        }
        assert kinds == {trouble}, str(ran)
        assert not ran.of("iteration_finished") or ran.outcome == "timeout", str(ran)


def test_the_message_of_a_refusal_is_the_reason(room, agent):
    with room(Forever(Fail(400, "the lab has no such model"))) as place:
        ran = place.ralph("--max-failures", "1", GOAL)
        assert ran.code in (1, 2), str(ran)
        assert "the lab has no such model" in ran.of("run_finished")[0]["reason"], str(ran)
