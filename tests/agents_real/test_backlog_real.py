"""`ralph work` with real agents: each task is done in its own worktree, and merged."""

import subprocess

import pytest
from script import Call, Say

LIST = "- [ ] T1 Write one into one.txt\n- [ ] T2 Write two into two.txt\n  after: T1\n"
ME = ("-c", "user.name=T", "-c", "user.email=t@x")


@pytest.mark.parametrize("agent", ["claude", "codex"], indirect=True)
def test_a_backlog_of_two_tasks_is_merged(room, agent):
    with room() as place:

        def git(*words: str) -> str:
            command = ["git", *ME, *words]
            return subprocess.run(command, cwd=place.workspace, check=True, capture_output=True, text=True).stdout

        (place.workspace / "TASKS.md").write_text(LIST)
        git("init", "-q", "-b", "main")
        git("add", "-A")
        git("commit", "-qm", "list")
        place.play(
            Call("shell", "echo one > one.txt"),
            Say("It is made.\nCOMPLETE"),
            Call("shell", "cat one.txt > two.txt && echo two >> two.txt"),
            Say("It is made.\nCOMPLETE"),
        )
        ran = place.finish(
            place.start_command("work", "TASKS.md", "-j", "2", "--check", "test ! -e two.txt -o -e one.txt")
        )
        assert ran.code == 0, str(ran)
        assert [event["key"] for event in ran.of("task_merged")] == ["T1", "T2"]
        target = ran.of("work_started")[0]["target"]
        assert git("show", f"{target}:two.txt") == "one\ntwo\n"
        assert git("show", f"{target}:TASKS.md") == LIST.replace("[ ]", "[x]")
        assert git("status", "--porcelain") == ""
        assert ran.left == {}
