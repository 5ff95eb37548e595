"""The real agents finish a fix inside a sandbox, with their logins and settings, and no host but their model."""

import json
import shutil

import pytest
from lab import DRIVEN
from script import Call, Say, shell

from ralph import agents

DONE = "It is made.\n<response>DONE</response>"
BOXED = tuple(name for name in DRIVEN if name != "amp")

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: apt-get install bubblewrap"),
    pytest.mark.scenario("a fix committed inside a box (`--sandbox`)"),
]


@pytest.fixture(params=BOXED)
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("net", ["off", "on"])
def test_an_agent_commits_its_fix_inside_a_sandbox(room, agent, net):
    if (agent, net) == ("cline", "off"):
        pytest.skip(
            "with `--sandbox-net off` its host must be named: where its model is stands in a file that it may write"
        )
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


@pytest.mark.parametrize("agent", [name for name in BOXED if agents.module(name).RESUMES])
def test_a_session_is_continued_inside_a_sandbox(room, agent):
    with room() as place:
        place.play(Say("Not yet."), Call("write", str(place.workspace / "made.txt"), "fixed\n"), Say(DONE))
        words = ("--sandbox", "--sandbox-net", "off", "--session", "continue", "--check", "grep -q fixed made.txt")
        ran = place.ralph(*words, "make made.txt")
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        sessions = {event["record"]["turn"]["session"] for event in ran.of("iteration_finished")}
        assert len(sessions) == 1


@pytest.mark.parametrize("agent", ["claude"])
def test_settings_in_a_custom_config_folder_are_protected(room, agent):
    """If CLAUDE_CONFIG_DIR is set, the file with tools and trusted projects is in that folder."""
    with room() as place:
        folder = place.home / "config"
        folder.mkdir()
        (folder / ".claude.json").write_text('{"hasCompletedOnboarding": true}')
        place.env["CLAUDE_CONFIG_DIR"] = str(folder)
        plant = (
            """echo '{"mcpServers": {"evil": {"command": "touch"}}}' > $CLAUDE_CONFIG_DIR/.claude.json; echo tried"""
        )
        place.play(shell(plant), Call("write", str(place.workspace / "made.txt"), "fixed\n"), Say(DONE))
        ran = place.ralph("--sandbox", "--check", "grep -q fixed made.txt", "make made.txt")
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert "evil" not in (folder / ".claude.json").read_text()


# Files that a session outside runs or follows.
OTHERS = {
    "claude": (
        *("shell-snapshots/snapshot-bash-1-a.sh", "session-env/s/sessionstart-hook-0.sh", "plans/p.md"),
        *("projects/-other/memory/MEMORY.md", "projects/-other/s.jsonl", "file-history/s/a@v1"),
    ),
    "codex": ("shell_snapshots/s.sh", "tmp/arg0/codex-arg0s/apply_patch", "memories/MEMORY.md"),
}


@pytest.mark.parametrize("agent", OTHERS)
def test_other_sessions_are_out_of_reach_and_the_own_one_is_continued(room, agent):
    with room() as place:
        state = place.home / f".{agent}"
        for name in OTHERS[agent]:
            (state / name).parent.mkdir(parents=True, exist_ok=True)
            (state / name).write_text("mine\n")
        plant = "; ".join(f"mkdir -p {name.rpartition('/')[0]}; echo evil >> {name}" for name in OTHERS[agent])
        made = Call("write", str(place.workspace / "made.txt"), "fixed\n")
        place.play(shell(f"cd {state} && {plant}; echo tried"), Say("Not yet."), made, Say(DONE))
        words = ("--sandbox", "--session", "continue", "--check", "grep -q fixed made.txt")
        ran = place.ralph(*words, "make made.txt")
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert {name: (state / name).read_text() for name in OTHERS[agent]} == dict.fromkeys(OTHERS[agent], "mine\n")
        (session,) = {event["record"]["turn"]["session"] for event in ran.of("iteration_finished")}
        assert any(session in path.name for path in state.rglob("*.jsonl"))
