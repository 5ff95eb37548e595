"""Real agents driven through the Agent Client Protocol: `--agent acp:NAME` against the scripted model."""

import install
import lab
import pytest
from script import Forever, Say, Tokens, shell, write
from troubles import no_login

GOAL = "make the file made.txt please"
DONE = "It is made.\n<response>DONE</response>"
CHECK = "grep -q fixed made.txt"
ADAPTERS = {"claude": "claude-agent-acp", "codex": "codex-acp"}  # the others speak ACP themselves

pytestmark = pytest.mark.parametrize("agent", ["claude", "codex", "opencode", "copilot"], indirect=True)


def run_acp(place: lab.Room, *words: str) -> lab.Ran:
    if adapter := ADAPTERS.get(place.agent):
        place.env["PATH"] = f"{install.agent(adapter).program.parent}:{place.env['PATH']}"
    return place.finish(place.start(*lab.RALPH, "run", "--json", "--agent", f"acp:{place.agent}", *words))


@pytest.mark.scenario("by protocol (`--agent acp:NAME`): failing check, then fixed")
def test_an_acp_agent_works_until_the_check_passes(room, agent):
    with room() as place:
        made = place.workspace / "made.txt"
        place.play(Say(DONE), write(made, "fixed\n"), shell("echo ran-it"), Say(DONE, tokens=Tokens(1200, 30)))
        ran = run_acp(place, "--yolo", "--check", CHECK, GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert made.read_text() == "fixed\n"
        turns = [event["record"]["turn"] for event in ran.of("iteration_finished")]
        assert [turn["text"] for turn in turns] == [DONE, DONE]
        assert turns[1]["tool_calls"] == 2
        assert [tool["ok"] for tool in ran.of("tool_finished")] == [True, True]
        assert ran.left == {}


def test_an_acp_agent_may_edit_the_workspace_without_yolo(room, agent):
    with room() as place:
        made = place.workspace / "made.txt"
        place.play(write(made, "fixed\n"), Say(DONE))
        ran = run_acp(place, "--check", CHECK, GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert ran.left == {}


def test_an_acp_agent_without_a_login_fails_at_once(room, agent):
    with room(Forever(no_login())) as place:
        ran = run_acp(place, "--max-iterations", "2", GOAL)
        assert ran.outcome in ("failed", "fatal"), str(ran)
        assert ran.left == {}
