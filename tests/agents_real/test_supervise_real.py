"""A supervised task is done by the real agents with their default permissions."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import RALPH
from script import Say, shell, write

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "supervise.md"
PROMPT = "Add the login page. When everything is done, create the file $TASK_FOLDER/DONE."


@pytest.fixture
def root() -> Iterator[Path]:
    """Return a folder in which no agent may write by default: some may write in /tmp."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


def test_the_prompt_is_the_one_in_the_guide():
    assert PROMPT.replace("$", "\\$") in GUIDE.read_text()


@pytest.mark.parametrize("way", ["with a tool for files", "in a shell"])
def test_the_first_example_of_the_guide_ends_as_done(room, agent, way, root):
    if agent in ("gemini", "qwen"):
        pytest.skip("short of --yolo it has no shell, by which the scripted model knows its requests")
    done = root / "shop" / "login" / "DONE"
    with room() as place:
        leaves = write(done, "done\n") if way == "with a tool for files" else shell(f"touch {done}")
        place.play(write(place.workspace / "login.html", "<form>\n"), leaves, Say("It is made."))
        words = ("--root", str(root), "--project", "shop", "--task", "login", "--max-restarts", "2", "--prompt", PROMPT)
        ran = place.finish(place.start(*RALPH, "task", "--json", "--agent", agent, *words))
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert len(ran.of("iteration_finished")) == 1
        assert not ran.of("permission_denied")
        assert f"The folder of the task, $TASK_FOLDER, is {done.parent}" in place.stage.asked[0].prompt


@pytest.mark.parametrize("agent", ["claude", "copilot", "opencode"], indirect=True)
def test_denied_tools_are_reported(room, agent, root):
    with room() as place:
        tries = [write(root / "outside.txt", "x\n"), *([] if agent == "opencode" else [Say("I could not.")])]
        place.play(*tries, *tries)
        ran = place.finish(place.start(*RALPH, "run", "--json", "--agent", agent, "make a file elsewhere"))
        assert (ran.code, ran.outcome) == (1, "failed"), str(ran)
        assert len(ran.of("permission_denied")) == 2
        assert "--yolo" in ran.of("run_finished")[-1]["reason"]


@pytest.mark.parametrize("agent", ["claude", "codex"], indirect=True)
def test_a_supervised_run_ends_as_done_without_yolo(room, agent):
    with room() as place:
        done = place.workspace / "DONE"
        place.play(write(place.workspace / "login.html", "<form>\n"), write(done, "done\n"), Say("It is made."))
        words = ("--preset", "supervise", "-m", "2", "--agent", agent, "Add the login page.")
        ran = place.finish(place.start(*RALPH, "run", "--json", *words))
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert len(ran.of("iteration_finished")) == 1
        assert not ran.of("permission_denied")
        assert "create the file DONE" in place.stage.asked[0].prompt
