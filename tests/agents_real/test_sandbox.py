"""Do the real agents finish a fix inside a box? With their own logins and settings, and no host but their model."""

import json
import shutil

import pytest
from script import Call, Say, shell

DONE = "It is made.\n<response>DONE</response>"
BOXED = ("claude", "codex")

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: apt-get install bubblewrap"),
    pytest.mark.scenario("a fix committed inside a box (`--sandbox`)"),
]


@pytest.fixture(params=BOXED)
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("net", ["on", "off"])
def test_an_agent_commits_its_fix_inside_a_box(room, agent, net):
    with room() as place:
        secret = place.home / "secret"
        secret.write_text("not for the agent")
        place.play(
            Call("write", str(place.workspace / "made.txt"), "fixed\n"),
            shell(f"git add -A && git commit -qm 'by the agent'; cat {secret}; touch {place.home}/outside; echo tried"),
            shell("mkdir -p ~/.claude/commands ~/.codex/prompts; touch ~/.claude/commands/x.md ~/.codex/prompts/x.md"),
            Say(DONE),
        )
        ran = place.ralph("--sandbox", "--sandbox-net", net, "--check", "grep -q fixed made.txt", "make made.txt")
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert "by the agent" in place.git("log", "--format=%s")
        assert "not for the agent" not in json.dumps([asked.results for asked in place.stage.asked])
        assert not (place.home / "outside").exists()
        assert not list(place.home.glob(".c*/*/x.md"))
        assert ran.left == {}


def test_a_session_is_continued_inside_a_box(room, agent):
    with room() as place:
        place.play(Say("Not yet."), Call("write", str(place.workspace / "made.txt"), "fixed\n"), Say(DONE))
        words = ("--sandbox", "--sandbox-net", "off", "--session", "continue", "--check", "grep -q fixed made.txt")
        ran = place.ralph(*words, "make made.txt")
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        sessions = {event["record"]["turn"]["session"] for event in ran.of("iteration_finished")}
        assert len(sessions) == 1
