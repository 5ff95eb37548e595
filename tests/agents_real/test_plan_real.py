"""Planning with real agents. They only look: a write that their model asks for is refused or undone, and their answer
becomes the plan."""

import subprocess

from lab import RALPH
from script import Call, Say, offers

PLAN = """# Plan: Greeting

It says hello.

## Checks

- `test -f hello.txt`

## Tasks

- [ ] T1 File: hello.txt says hello
"""
WITHOUT_SHELL = ("gemini", "qwen")
"""Agents that don't offer their model a shell while it only looks, so it can't even try."""


def test_a_real_agent_plans_and_changes_nothing(room, agent):
    with room() as place:
        (place.workspace / "mine.txt").write_text("mine\n")
        for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "first")):
            command = ["git", "-c", "user.name=T", "-c", "user.email=t@x", *words]
            subprocess.run(command, cwd=place.workspace, check=True, capture_output=True)
        tries = [Call("shell", "cat mine.txt"), Call("shell", "echo sly > mine.txt; echo sly > new.txt")]
        place.stage.has_asides = agent not in WITHOUT_SHELL
        place.play(*(() if agent in WITHOUT_SHELL else tries), Say(f"Here is the plan.\n\n{PLAN}"))
        ran = place.finish(place.start(*RALPH, "plan", "Say hello", "--yes", "--agent", place.agent))
        assert ran.code == 0, str(ran)
        assert (place.workspace / "PLAN.md").read_text() == PLAN
        assert (place.workspace / "mine.txt").read_text() == "mine\n"
        assert not (place.workspace / "new.txt").exists()
        assert "red           test -f hello.txt" in ran.stderr
        assert ran.left == {}
        if agent in WITHOUT_SHELL:
            assert not [asked for asked in place.stage.asked if offers(asked, "shell")]
