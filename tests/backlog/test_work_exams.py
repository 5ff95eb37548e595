"""Exams of a backlog: a task's own exam runs at its claim, those of the whole backlog run once at the end."""

from collections.abc import Callable
from pathlib import Path

from tests.backlog.works import ONE, Works

TOKEN = "zq-exam-token-9152"


def write(works: Works, name: str, script: str) -> str:
    path = Path(works.env["HOME"], "exams", name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{script}\n")
    return f"sh {path}"


def test_a_tasks_own_exam_refuses_its_claim(works: Works, prompts: Callable[..., list[str]]) -> None:
    own = write(works, "one.sh", f"echo {TOKEN}; grep -q two T1.txt")
    works.todo(f"- [ ] T1 Make one\n  exam: `{own}`\n")
    works.script("[ $N -lt 2 ] || echo two >> T1.txt; echo COMPLETE")
    done = works.work()
    assert done.returncode == 0, done.stderr
    assert "two" in works.show("T1.txt")
    assert sum("the hidden exam does not (refusal" in prompt for prompt in prompts()) >= 1
    assert not any(TOKEN in prompt for prompt in prompts())


def test_the_exam_of_the_backlog_runs_once_when_every_task_is_merged(works: Works) -> None:
    log = Path(works.env["HOME"], "ran")
    exam = write(works, "all.sh", f"echo {TOKEN}; ls >> {log}; test -f T1.txt -a -f T2.txt")
    done = works.work("--exam", exam)
    assert done.returncode == 0, done.stderr
    assert log.read_text().split().count("T2.txt") == 1  # once, after all merges
    assert works.run("accept").returncode == 0
    assert log.read_text().split().count("T2.txt") == 2


def test_a_backlog_that_its_exam_refuses_is_blocked_and_its_output_stays_secret(works: Works) -> None:
    exam = write(works, "all.sh", f"echo {TOKEN}; exit 1")
    works.todo(ONE)
    ended = works.work("--exam", exam)
    assert ended.returncode == 1
    assert "the exam refuses the finished backlog" in ended.stderr
    assert works.merged() == ["T1"]
    assert TOKEN not in ended.stderr
    assert TOKEN in works.run("show").stdout
    found = [path for path in works.folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert found == []
    refused = works.run("accept")
    assert (refused.returncode, "the exam fails on the merged tree" in refused.stderr) == (1, True)


def test_an_invalid_exam_is_refused_before_an_agent_starts(works: Works) -> None:
    works.todo("- [ ] T1 Make one\n  exam: sh -c true\n")
    refused = works.work()
    assert (refused.returncode, "the exam doesn't name a script" in refused.stderr) == (2, True)
