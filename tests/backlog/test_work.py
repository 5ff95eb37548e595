"""`ralph work`: the real command, real git, and agents that follow a script."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from tests.backlog.works import AGENT, LIST, ONE, WAITING, Works, go, left

pytestmark = pytest.mark.timeout(120)


def test_every_task_is_merged_in_order_and_ticked(works: Works) -> None:
    works.todo("- [ ] T1 Make one\n- [ ] T2 Make two\n- [ ] T3 Make three\n  after: T1\n")
    done = works.work("-j", "2")
    assert done.returncode == 0, done.stderr
    target = works.target
    assert (
        done.stderr.rstrip().splitlines()[-1]
        == f"ralph: 3 of 3 merged into {target}: ralph accept {target.split('/')[1]}"
    )
    assert sorted(works.merged()) == ["T1", "T2", "T3"]
    assert works.merged().index("T1") < works.merged().index("T3"), "T3 comes after T1"
    assert works.show("TASKS.md").count("[x]") == 3
    assert works.show("T3.txt") == "T3"
    assert works.git("branch", "--list", "--format=%(refname:short)").splitlines() == ["main", target]
    status = works.run("work", "status")
    assert status.returncode == 0, status.stderr
    assert "T1" in status.stdout
    assert "3 merged" in status.stdout
    works.git("merge", "-q", target)
    assert (works.folder / "T1.txt").exists()


def test_the_gates_first_check_of_the_target_is_the_baseline_of_every_task(works: Works) -> None:
    log = Path(works.env["HOME"]) / "log"
    works.todo(f"{LIST}  after: T1\n")
    works.script(f"echo agent >> {log}; echo COMPLETE")
    check = f"case $RALPH_RUN_ID in *-gate) echo gate;; *) echo task;; esac >> {log}"
    done = works.work(checks=(check,))
    assert done.returncode == 0, done.stderr
    assert log.read_text().split() == ["gate", "agent", "task", "gate", "agent", "task", "gate"]
    for event in works.all("task_started"):
        (baseline,) = events_of(works, event["run"], "baseline")
        assert baseline["checks"] == [{"name": check, "passed": True}]
        (finished,) = events_of(works, event["run"], "run_finished")
        assert finished["reason"] == "1 check passes (no check was red before) and the agent said COMPLETE"


def test_a_task_with_checks_of_its_own_has_no_baseline(works: Works) -> None:
    works.todo("- [ ] T1 One\n  check: test -e T1.txt\n")
    assert works.work().returncode == 0
    (started,) = works.all("task_started")
    assert not events_of(works, started["run"], "baseline")
    (finished,) = events_of(works, started["run"], "run_finished")
    assert finished["reason"] == "2 checks pass and the agent said COMPLETE"


def events_of(works: Works, run: str, kind: str) -> list[dict[str, Any]]:
    """Return the events of this kind of a task's run."""
    lines = (works.folder / ".ralph/runs" / run / "journal.ndjson").read_bytes().splitlines()
    events = [json.loads(line) for line in lines]
    return [event["data"] for event in events if event["type"] == kind]


def test_the_users_tree_is_unchanged_and_uncommitted_changes_are_reported(works: Works) -> None:
    works.todo(ONE)
    (works.folder / "hot").write_text("mine\n")
    (works.folder / "new").write_text("mine\n")
    works.git("add", "new")
    before = works.git("status", "--porcelain"), works.git("rev-parse", "HEAD"), works.git("diff", "--cached")
    done = works.work()
    assert done.returncode == 0, done.stderr
    assert "2 uncommitted changes are left out" in done.stderr
    assert (works.git("status", "--porcelain"), works.git("rev-parse", "HEAD"), works.git("diff", "--cached")) == before
    assert works.show("hot") == "line"


def test_the_agent_of_a_refused_task_learns_of_the_conflict_and_the_task_is_merged(
    works: Works, prompts: Callable[..., list[str]]
) -> None:
    works.todo("- [ ] hot1 Add to the hot line\n- [ ] hot2 Add to it too\n")
    done = works.work("-j", "2")
    assert done.returncode == 0, done.stderr
    assert works.show("hot").split() == ["hot1", "hot2", "line"]
    (returned,) = works.all("task_returned")
    assert returned["files"] == ["hot"]
    last = prompts()[-1]
    assert "The merge gate refused the work on this task" in last
    assert "There are conflict markers (<<<<<<<, >>>>>>>) in: hot" in last
    assert "CONFLICT" in last.partition(" output>")[2], "git's message is marked as output"


def test_a_task_that_fails_is_parked_and_blocks_those_after_it(works: Works) -> None:
    works.todo("- [ ] bad1 Never\n- [ ] T1 One\n- [ ] T2 Two\n  after: bad1\n- [ ] T3 Three\n  after: T2\n")
    works.script('[ "$key" = bad1 ] || echo COMPLETE')
    done = works.work("-j", "2", "-m", "2")
    assert done.returncode == 1
    assert works.merged() == ["T1"]
    assert "1 of 4 merged" in done.stderr
    assert "1 parked, 2 blocked" in done.stderr.splitlines()[-1]
    assert "T3: blocked: after T2" in done.stderr
    (parked,) = works.all("task_parked")
    assert parked["key"] == "bad1"
    assert parked["reason"].startswith("exhausted")
    assert "ralph accept" in works.run("show").stdout
    assert works.run("accept").returncode == 0
    assert "ralph accept" not in works.run("show").stdout, "there is nothing left to accept"


LEADS_ELSEWHERE = """case $key in
  T1) printf 'gitdir: %s\\n' {folder}/.git > .git ;;
  T2) rm .git; git init -q ;;
  T3) rm .git ;;
esac
echo COMPLETE"""


def test_a_task_whose_worktree_leads_elsewhere_is_parked_and_the_users_tree_stays_as_it_is(works: Works) -> None:
    works.todo("".join(f"- [ ] T{number} Make {number}\n" for number in range(1, 5)))
    works.script(LEADS_ELSEWHERE.format(folder=works.folder))
    (works.folder / ".ralph").mkdir(exist_ok=True)
    (works.folder / ".ralph/settings.json").write_text('{"copies": "plain"}')
    (works.folder / "staged").write_text("mine\n")
    works.git("add", "staged")
    asked = (("symbolic-ref", "HEAD"), ("rev-parse", "HEAD"), ("status", "--porcelain"))
    before = [works.git(*words) for words in asked]
    done = works.work("-j", "2")
    assert done.returncode == 1
    for _ in range(2):  # the second time after a retry
        parked = works.all("task_parked")[-3:]
        assert sorted(task["key"] for task in parked) == ["T1", "T2", "T3"]
        assert all("is no longer the worktree of" in task["reason"] for task in parked)
        assert works.merged() == ["T4"]
        assert [works.git(*words) for words in asked] == before
        for key in ("T1", "T2", "T3"):
            works.run("work", "retry", key)
        done = works.run("resume")
    assert done.returncode == 1


def test_in_place_no_task_can_lead_its_worktree_elsewhere(works: Works) -> None:
    works.todo("".join(f"- [ ] T{number} Make {number}\n" for number in range(1, 5)))
    works.script(LEADS_ELSEWHERE.format(folder=works.folder))
    asked = (("symbolic-ref", "HEAD"), ("rev-parse", "HEAD"), ("status", "--porcelain"))
    before = [works.git(*words) for words in asked]
    assert works.work("-j", "2").returncode == 0
    assert sorted(works.merged()) == ["T1", "T2", "T3", "T4"]
    assert [works.git(*words) for words in asked] == before


def test_done_with_nothing_changed_is_parked(works: Works) -> None:
    works.todo("- [ ] bad1 Nothing to do\n")
    done = works.work()
    assert done.returncode == 1
    assert "done, but it changed nothing" in done.stderr


def test_a_task_that_fails_at_the_gate_is_returned_and_finally_parked(works: Works) -> None:
    works.todo("- [ ] T1 One\n- [ ] T2 Two\n")
    together = "! { test -e T1.txt && test -e T2.txt; }"
    done = works.work("-j", "2", "--returns", "2", checks=(together,))
    assert done.returncode == 1
    assert len(works.merged()) == 1
    (parked,) = works.all("task_parked")
    assert parked["reason"].startswith(("refused 2 times", "stalled: no progress", "exhausted"))
    assert works.git("branch", "--list", f"ralph/*/{parked['key']}"), "its branch stays"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing.md",), "nothing.md not found"),
        ((), "no checks given"),
        (("-j", "0", "--check", "true"), "--jobs: expected a whole number, 1 or more, got 0"),
        (("--check", "false"), "false fails on"),
        (("--check", "true", "--target", "main"), "main is checked out in"),
        (("--check", "true", "--target", "bad name"), "isn't a valid branch name"),
        (("--check", "true", "--push"), "no upstream"),
        (("--check", "true", "--push=nowhere/main"), "expected REMOTE/BRANCH"),
        (("--check", "true", "--agent", "not-there"), "not-there"),
        (("--check", "true", "--max-time", "soon"), "soon"),
        (("--check", "true", "--setup", "echo broken; false"), "--setup failed"),
    ],
)
def test_an_invalid_command_line_is_a_one_line_error_before_an_agent_starts(
    works: Works, words: tuple[str, ...], said: str
) -> None:
    own = () if words[:1] == ("nothing.md",) else ("TASKS.md",)
    agent = () if "--agent" in words else ("--agent", works.agent)
    done = works.run("work", *own, *words, *agent)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (Path(works.env["HOME"]) / "fake-agent.calls").exists(), "no agent was started"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "names no task"),
        ("- [ ] T1 a\n- [ ] T1 b\n", "TASKS.md:2: the key T1 is taken"),
        ("- [ ] T1 a\n  after: T9\n", "T1 comes after T9, which is not in the list"),
        ("- [ ] T1 a\n  after: T2\n- [ ] T2 b\n  after: T1\n", "T1 → T2 → T1"),
    ],
)
def test_an_invalid_backlog_names_the_line(works: Works, text: str, said: str) -> None:
    works.todo(text)
    done = works.work()
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_backlog_needs_a_repository_with_a_commit(workspace: Path, ralph: Callable[..., Any], git: Any) -> None:
    (workspace / "T.md").write_text("- [ ] T1 a\n")
    assert "is not in a git repository" in ralph("work", "T.md", "--check", "true").err
    git("init", "-q")
    assert "no commit yet" in ralph("work", "T.md", "--check", "true").err


def test_a_backlog_without_open_tasks_is_done(works: Works) -> None:
    works.todo(LIST.replace("[ ]", "[x]"))
    done = works.work()
    assert (done.returncode, "nothing to do" in done.stderr) == (0, True)


def test_an_agent_that_cannot_start_ends_the_run_and_parks_no_task(works: Works) -> None:
    works.script('rm "$0"; echo COMPLETE')
    done = works.work("-j", "1")
    assert done.returncode == 2, done.stderr
    assert works.all("task_parked") == []
    assert works.all("work_finished")[-1]["outcome"] == "fatal"


def test_a_backlog_outside_git_is_ticked_on_disk(works: Works) -> None:
    (works.folder / "mine.md").write_text("- [ ] T1 One\n- [ ] T2 Two\n")
    done = works.work("mine.md")
    assert done.returncode == 0, done.stderr
    assert (works.folder / "mine.md").read_text() == "- [x] T1 One\n- [x] T2 Two\n"
    assert works.git("ls-tree", "--name-only", works.target, "mine.md") == ""


def test_an_agents_edits_of_the_backlog_and_settings_are_not_merged(works: Works) -> None:
    works.todo(ONE)
    works.script('echo "- [ ] T9 Mine" > TASKS.md; mkdir -p .ralph; echo "{}" > .ralph/settings.json; echo COMPLETE')
    done = works.work()
    assert done.returncode == 0, done.stderr
    assert works.show("TASKS.md") == ONE.replace("[ ]", "[x]").rstrip("\n")
    assert works.git("ls-tree", "-r", "--name-only", works.target, ".ralph") == ""


def test_a_tasks_own_settings_apply_to_its_loop(works: Works, agent: Callable[..., str]) -> None:
    agent("echo other > other.txt; echo COMPLETE", "other-agent")
    works.todo(
        "- [ ] T1 One\n  check: test -e T1.txt\n- [ ] T2 Two\n  agent: other-agent\n  check: test -e other.txt\n"
    )
    done = works.work()
    assert done.returncode == 0, done.stderr
    assert works.show("other.txt") == "other"


def test_worktrees_are_filled_by_worktreeinclude_and_setup(works: Works) -> None:
    (works.folder / ".gitignore").write_text(".env\nsecret\n")
    (works.folder / ".worktreeinclude").write_text(".env\n")
    works.todo(ONE)
    (works.folder / ".env").write_text("KEY=1\n")
    (works.folder / "secret").write_text("no\n")
    check = "grep -q KEY .env && test -e setup.done && ! test -e secret"
    done = works.work(
        "--setup", "cp .env setup.done && echo setup.done >> .git/info/exclude || touch setup.done", checks=(check,)
    )
    assert done.returncode == 0, done.stderr


def test_what_setup_makes_stays_in_the_gates_worktree_and_is_never_merged(works: Works) -> None:
    """The gate checks out one candidate after another; a link that git doesn't ignore must survive that."""
    (works.folder / ".gitignore").write_text("libs/\n")
    works.todo("- [ ] T1 One\n- [ ] T2 Two\n  after: T1\n")
    done = works.work("--setup", 'ln -s "$PWD" libs', checks=("test -L libs",))
    assert done.returncode == 0, done.stderr
    assert {"T1.txt", "T2.txt"} <= {*(merged := works.git("ls-tree", "--name-only", works.target).split())}
    assert "libs" not in merged


def test_the_workspace_may_be_a_subfolder_of_the_repository(works: Works) -> None:
    below = works.folder / "app"
    below.mkdir()
    (below / "TASKS.md").write_text("- [ ] T1 One\n")
    works.git("add", "-A")
    works.git("commit", "-qm", "app")
    done = works.run("work", "app/TASKS.md", "-C", "app", "--check", "test -e TASKS.md", "--agent", works.agent)
    assert done.returncode == 0, done.stderr
    assert works.show("app/T1.txt") == "T1"
    assert works.show("app/TASKS.md") == "- [x] T1 One"


def test_an_agent_that_takes_over_may_be_a_relative_path_from_another_folder(works: Works) -> None:
    works.todo(ONE)
    there = works.folder.parent / "elsewhere"
    there.mkdir()
    (there / "helper.sh").write_text("#!/bin/sh\necho 1 > T1.txt; echo COMPLETE\n")
    (there / "helper.sh").chmod(0o755)
    words = ("--check", "test -e T1.txt", "--allow-red", "--stuck", "1", "--then", "./helper.sh", "--agent", "true")
    done = works.run("work", "TASKS.md", "-C", str(works.folder), *words, cwd=there)
    assert done.returncode == 0, done.stderr
    assert works.show("T1.txt") == "1"


def test_json_prints_every_event_in_order(works: Works) -> None:
    works.todo(ONE)
    done = works.work("--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["type"] for event in told]
    assert kinds[0] == "work_started"
    assert kinds[-1] == "work_finished"
    assert {"task_listed", "task_started", "task_ready", "gate_started", "gate_finished", "task_merged"} <= {*kinds}
    assert [event["seq"] for event in told] == list(range(1, len(told) + 1))


def test_push_merges_into_the_remote_branch(works: Works, tmp_path: Path) -> None:
    works.git("init", "-q", "--bare", str(tmp_path / "origin.git"))
    works.git("remote", "add", "origin", str(tmp_path / "origin.git"))
    works.git("push", "-qu", "origin", "main")
    done = works.work("--push", "-j", "2")
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith("ralph: 2 of 2 merged into origin/main")
    assert sorted(works.merged("origin/main")) == ["T1", "T2"]
    assert works.git("for-each-ref", "--format=%(refname)", cwd=tmp_path / "origin.git") == "refs/heads/main"
    assert works.git("rev-parse", "main") != works.git("rev-parse", "origin/main"), "the user's branch is not moved"


def test_a_task_branch_left_on_the_remote_is_removed_at_the_end(works: Works, tmp_path: Path) -> None:
    works.git("init", "-q", "--bare", str(tmp_path / "origin.git"))
    works.git("remote", "add", "origin", str(tmp_path / "origin.git"))
    works.git("push", "-qu", "origin", "main")
    works.todo("- [ ] T1 One\n- [ ] T2 Two\n")
    works.script('[ "$key" = T2 ] || [ -e "$HOME/go" ] && echo COMPLETE')
    assert works.work("--push", "-m", "1").returncode == 1
    parked = works.git("branch", "--list", "--format=%(refname:short)", "ralph/*/T1")
    works.git("push", "-q", "origin", f"origin/main:refs/heads/{parked.replace('T1', 'T2')}")
    go(works)
    works.run("work", "retry", "T1")
    assert works.run("resume").returncode == 0
    assert works.git("for-each-ref", "--format=%(refname)", cwd=tmp_path / "origin.git") == "refs/heads/main"


def test_a_backlog_of_an_earlier_version_is_resumed_with_its_setup(works: Works) -> None:
    """There, `setup` belonged to `work` in the stored settings."""
    works.todo(ONE)
    works.script("exit 1")
    works.work("--setup", "touch made", checks=("test -e made",))
    (order,) = Path(works.env["HOME"], ".local/state/ralph/orders").glob("*/work.json")
    stored = json.loads(order.read_text())
    stored["settings"]["work"]["setup"] = stored["settings"].pop("setup")
    order.write_text(json.dumps(stored))
    works.script("echo COMPLETE")
    works.run("work", "retry", "T1")
    resumed = works.run("resume")
    assert resumed.returncode == 0, resumed.stderr


def test_a_protected_remote_branch_is_reported_and_resume_merges_later(works: Works, tmp_path: Path) -> None:
    works.git("init", "-q", "--bare", str(tmp_path / "origin.git"))
    works.git("remote", "add", "origin", str(tmp_path / "origin.git"))
    works.git("push", "-qu", "origin", "main")
    hook = tmp_path / "origin.git" / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho protected >&2; exit 1\n")
    hook.chmod(0o755)
    works.todo(ONE)
    done = works.work("--push")
    assert done.returncode == 1
    assert "origin refuses main" in done.stderr.splitlines()[-1]
    assert works.git("branch", "--list", "ralph/*/T1")
    hook.unlink()
    assert works.run("resume").returncode == 0
    assert works.merged("origin/main") == ["T1"]


def test_ctrl_c_stops_a_backlog_and_resume_continues_it(works: Works) -> None:
    works.script(WAITING)
    process = works.start("-j", "2")
    works.wait_for("task_started", key="T2")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "stopped by you; resume it with `ralph resume`" in said.splitlines()[-1]
    go(works)
    again = works.run("resume")
    assert again.returncode == 0, again.stderr
    assert sorted(works.merged()) == ["T1", "T2"]


@pytest.mark.parametrize("where", ["in two loops", "in the checks of the gate"])
def test_ctrl_c_twice_ends_a_backlog_at_once_even_if_signals_are_ignored(
    works: Works, eventually: Callable[..., None], where: str
) -> None:
    deaf = "trap '' TERM INT HUP; echo $$ >> \"$HOME/working\"; while :; do sleep 600; done"
    in_gate = where == "in the checks of the gate"
    if not in_gate:
        works.script(deaf)
    check = f"case $RALPH_RUN_ID in *-gate) [ ! -e T1.txt ] || {{ {deaf}; }};; esac"
    process = works.start("-j", "2", checks=(check,) if in_gate else ("true",))
    working = Path(works.env["HOME"]) / "working"
    eventually(lambda: working.exists() and len(working.read_text().split()) >= (1 if in_gate else 2), 50)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)  # two equal signals may be delivered as one
    _, said = process.communicate(timeout=50)
    assert process.returncode == 130, said
    assert time.monotonic() - began < 4.9, "the grace period would be five seconds"
    eventually(lambda: not left(works))


def test_after_kill_9_nothing_runs_and_resume_merges_everything(works: Works, eventually: Callable[..., None]) -> None:
    works.script(WAITING)
    process = works.start("-j", "2")
    works.wait_for("task_started", key="T2")
    eventually(lambda: (Path(works.env["HOME"]) / "working").exists())
    process.kill()
    process.communicate()
    eventually(lambda: not left(works))
    go(works)
    again = works.run("resume")
    assert again.returncode == 0, again.stderr
    assert sorted(works.merged()) == ["T1", "T2"]
    assert len(works.all("task_merged")) == 2


def test_a_loop_that_is_killed_twice_is_continued(works: Works, eventually: Callable[..., None]) -> None:
    home = Path(works.env["HOME"])
    works.todo(ONE)
    works.script(WAITING)
    git = home / "bin" / "git"
    dying = f'case "$*" in *"worktree add"*"/T1"*) mkdir {home}/died 2> /dev/null && kill -9 $$ ;; esac'
    git.write_text(f'#!/bin/sh\n{dying}\nexec {which("git")} "$@"\n')
    git.chmod(0o755)
    process = works.start()
    eventually((home / "working").exists)
    assert (home / "died").exists(), "the first git was killed"
    (loop,) = left(works, b"run-task")
    os.kill(loop, signal.SIGKILL)
    works.wait_for("task_queued", reason="its process died")
    go(works)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert works.merged() == ["T1"]


def test_tasks_can_be_added_ticked_and_removed_during_the_run(works: Works) -> None:
    works.todo(f"{LIST}- [ ] T3 Make three\n  after: T1\n")
    works.script(WAITING)
    process = works.start("-j", "2")
    works.wait_for("task_started", key="T2")
    text = "- [ ] T1 Make one\n- [x] T2 Make two\n- [ ] T4 Make four\n"
    (works.folder / "TASKS.md").write_text(text)
    works.wait_for("task_withdrawn", key="T3")
    works.wait_for("task_withdrawn", key="T2")
    works.wait_for("task_listed")
    (works.folder / "TASKS.md").write_text("- [ ] T1 a\n- [ ] T1 b\n")
    works.wait_for("notice")
    go(works)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert sorted(works.merged()) == ["T1", "T4"]
    assert "cannot read the backlog again, so ralph keeps the last version" in said


def test_a_parked_task_is_retried_with_a_note(works: Works, prompts: Callable[..., list[str]]) -> None:
    works.todo(ONE)
    works.script('[ -e "$HOME/go" ] && echo COMPLETE')
    assert works.work("-m", "1").returncode == 1
    assert "ralph work status" in works.run("work", "retry", "T9").stderr
    told = works.run("tell", "T1", "Think of the edge cases")
    assert (told.returncode, "continue with `ralph resume" in told.stdout) == (0, True), told.stderr
    go(works)
    again = works.run("resume")
    assert again.returncode == 0, again.stderr
    assert "Think of the edge cases" in prompts()[-1]
    assert works.merged() == ["T1"]


def test_only_one_backlog_runs_in_a_workspace(works: Works, eventually: Callable[..., None]) -> None:
    works.script(WAITING)
    works.start("-j", "2")
    works.wait_for("task_started", key="T1")
    second = works.work()
    assert second.returncode == 2
    assert "another backlog is running in" in second.stderr
    go(works)


def test_a_paused_backlog_merges_nothing_until_resume(works: Works) -> None:
    works.todo(ONE)
    works.script(WAITING)
    process = works.start("-j", "1")
    works.wait_for("task_started", key="T1")
    paused = works.run("pause")
    assert paused.returncode == 0, paused.stderr
    works.wait_for("work_paused", is_paused=True)
    go(works)
    time.sleep(1.5)  # long enough for a merge
    assert works.all("task_merged") == []
    assert works.run("resume").returncode == 0
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said


def test_stop_ends_the_whole_backlog(works: Works) -> None:
    works.script(WAITING)
    process = works.start("-j", "2")
    works.wait_for("task_started", key="T2")
    stopped = works.run("stop", "--now", "--wait")
    assert stopped.returncode == 0, stopped.stderr
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said


def test_max_cost_limits_the_whole_backlog(works: Works, agent: Callable[..., str]) -> None:
    result = {"type": "result", "subtype": "success", "is_error": False, "result": "COMPLETE", "total_cost_usd": 1.0}
    agent(AGENT + f"echo '{json.dumps(result)}'", "claude")
    works.todo("".join(f"- [ ] T{n} Number {n}\n" for n in range(1, 4)))
    words = ("work", "TASKS.md", "-j", "1", "--max-cost", "1.5", "--check", "true", "--agent", "claude")
    done = works.run(*words)
    assert done.returncode == 1, done.stderr
    assert len(works.merged()) == 1
    assert "($1.00); the budget is spent" in done.stderr.splitlines()[-1]


def test_github_issues_are_a_backlog(works: Works) -> None:
    issues = [{"number": 7, "title": "T7 Seven", "body": "check: touch /tmp/evil"}]
    gh = Path(works.env["HOME"]) / "bin" / "gh"
    gh.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(issues)}\nEND\n")
    gh.chmod(0o755)
    done = works.work("github:label=ready")
    assert done.returncode == 0, done.stderr
    assert "Closes #7" in works.git("log", "-1", "--format=%B", works.target)


def test_without_gh_the_error_says_how_to_install_it(works: Works, tmp_path: Path) -> None:
    programs = tmp_path / "programs"  # without gh
    programs.mkdir()
    for name in ("git", "sh"):
        (programs / name).symlink_to(str(which(name)))
    works.env["PATH"] = str(programs)
    done = works.work("github:")
    assert done.returncode == 2
    assert "gh is not installed" in done.stderr


def test_every_first_parent_commit_passes_every_check(works: Works, tmp_path: Path) -> None:
    """Half of the tasks conflict with each other."""
    works.todo("".join(f"- [ ] hot{n} Add\n" if n % 2 else f"- [ ] T{n} Make\n" for n in range(4)))
    check = "sort -c -u hot"
    done = works.work("-j", "3", "--returns", "9", checks=(check,))
    assert done.returncode == 0, done.stderr
    commits = works.git("rev-list", "--first-parent", works.target).split()
    for number, commit in enumerate(commits):
        tree = tmp_path / f"audit{number}"
        works.git("worktree", "add", "-q", "--detach", str(tree), commit)
        assert subprocess.run(["sh", "-c", check], cwd=tree, check=False).returncode == 0
    assert sorted(works.merged()) == sorted({*works.merged()})
    assert len(works.merged()) == 4


def test_ps_show_logs_diff_and_report_know_a_backlog(works: Works) -> None:
    works.todo("- [ ] T1 One\n- [ ] bad1 Nothing\n")
    assert works.work().returncode == 1
    listed = works.run("ps", "-a").stdout
    assert "1/2 merged" in listed
    assert "task T1 of work" in listed
    objects = map(json.loads, works.run("ps", "-a", "--json").stdout.splitlines())
    (backlog,) = [row for row in objects if row["kind"] == "work"]
    assert [backlog[name] for name in ("state", "tasks", "merged", "parked", "blocked")] == ["parked", 2, 1, 1, 0]
    assert not backlog.keys() & {"checks", "checks_passed", "finished", "iteration", "max_iterations"}
    shown = works.run("show").stdout
    assert "needs you: bad1: done, but it changed nothing" in shown
    assert "T1: merged as" in works.run("logs").stdout
    assert "T1.txt" in works.run("diff", "--stat").stdout
    assert "ralph work retry bad1" in works.run("report", "-o", "-").stdout
    assert "merged as" in works.run("report").stdout
    assert json.loads(works.run("report", "--json").stdout)["merges"] == 1
    assert "task_merged" in works.run("logs", "--json").stdout
    assert works.run("show", "T1").returncode == 0, "a task's key names its latest run"


def test_diff_shows_a_merged_task(works: Works) -> None:
    works.todo("- [ ] hot1 Add to the hot line\n- [ ] hot2 Add to it too\n- [ ] T1 One\n")
    assert works.work("-j", "3").returncode == 0
    assert works.run("diff", "T1", "--stat").stdout == "A T1.txt (+1 -0)\n"
    last = works.merged()[-1] if works.merged()[-1] != "T1" else works.merged()[-2]
    shown = works.run("diff", last)
    assert f"+{last}" in shown.stdout.splitlines(), shown.stderr
    assert "T1.txt" not in shown.stdout, "not the changes of other tasks"
    assert "take it over" not in works.run("show", "T1").stdout, "the gate has merged it"


def test_merged_beads_are_closed(works: Works) -> None:
    bead = [{"id": "t7", "title": "t7 Seven", "status": "open", "priority": 1, "issue_type": "task"}]
    bd = Path(works.env["HOME"]) / "bin" / "bd"
    bd.write_text(f"#!/bin/sh\necho \"$@\" >> $HOME/bd.calls\n[ $1 = list ] && echo '{json.dumps(bead)}'\nexit 0\n")
    bd.chmod(0o755)
    done = works.work("beads:")
    assert done.returncode == 0, done.stderr
    commit = works.git("rev-parse", works.target)
    assert f"close t7 --reason merged as {commit[:12]}" in (Path(works.env["HOME"]) / "bd.calls").read_text()


def test_endless_output_of_a_tracker_is_cut(works: Works) -> None:
    bd = Path(works.env["HOME"]) / "bin" / "bd"
    bd.write_text("#!/bin/sh\nprintf '[]'; head -c 70000000 /dev/zero | tr '\\0' ' '\n")
    bd.chmod(0o755)
    done = works.work("beads:")
    assert done.returncode == 2
    assert "cannot parse the answer of bd" in done.stderr


def test_parked_tasks_and_the_end_are_notified(works: Works) -> None:
    works.todo("- [ ] bad1 Nothing\n")
    assert works.work("--notify", 'echo "$RALPH_EVENT: $RALPH_TEXT" >> "$HOME/told"').returncode == 1
    told = (Path(works.env["HOME"]) / "told").read_text()
    assert "failed: bad1 is parked" in told
    assert "failed: 0 of 1 merged" in told


ASTRAY = {
    "T1": 'git init -q --separate-git-dir "$(mktemp -d)/x" sub; touch sub/file',
    "T2": "git commit -q --allow-empty -m a; git checkout -q -b other HEAD~1; git commit -q --allow-empty -m b",
    "T3": "b=$(git symbolic-ref HEAD); git checkout -q --orphan o; git commit -qm o; git update-ref $b HEAD",
}
WHY_PARKED = {
    "T1": "not all of the work can be committed",
    "T2": "both have their own commits",
    "T3": "has nothing in common with",
}


def test_work_that_cannot_become_a_branch_parks_only_its_own_task(works: Works) -> None:
    works.todo("".join(f"- [ ] T{number} Make {number}\n" for number in range(1, 5)))
    cases = "".join(f"{key}) {script} ;; " for key, script in ASTRAY.items())
    works.script(f'touch "of-$key"; case $key in {cases} esac; echo COMPLETE')
    done = works.work("-j", "2")
    assert done.returncode == 1, done.stderr
    assert works.merged() == ["T4"]
    reasons = {task["key"]: task["reason"] for task in works.all("task_parked")}
    assert {key: WHY_PARKED[key] in reason for key, reason in reasons.items()} == dict.fromkeys(ASTRAY, True), reasons


def test_the_files_of_a_repository_that_an_agent_makes_are_merged(works: Works) -> None:
    works.todo(ONE)
    works.script("git init -q sub; touch sub/file; echo COMPLETE")
    done = works.work()
    assert done.returncode == 0, done.stderr
    assert "sub/file" in works.git("ls-tree", "-r", "--name-only", works.target).split()


def test_a_target_that_an_agent_has_moved_is_reported_at_the_end(works: Works) -> None:
    """Otherwise a person could merge commits that no check has seen."""
    works.todo(ONE)
    works.script(
        'git commit -q --allow-empty -m evil; git update-ref "$(git symbolic-ref HEAD | sed s/T1/merged/)" HEAD'
    )
    done = works.work("-m", "1")
    assert done.returncode == 1, done.stderr
    assert "/merged is not where the gate left it" in done.stderr.splitlines()[-1]


def test_carried_over_files_are_not_merged_even_if_no_longer_ignored(works: Works) -> None:
    for name, text in ((".gitignore", ".env\n"), (".worktreeinclude", ".env\n")):
        (works.folder / name).write_text(text)
    works.git("add", "-A")
    works.git("commit", "-qm", "ignored")
    (works.folder / ".env").write_text("KEY=mine\n")
    works.todo(ONE)
    works.script("echo built > .gitignore; echo COMPLETE")
    done = works.work(checks=("true",))
    assert done.returncode == 0, done.stderr
    assert ".env" not in works.git("ls-tree", "--name-only", works.target).split()


def test_max_time_ends_running_tasks_and_parks_none(works: Works) -> None:
    works.script("sleep 99")
    done = works.work("-j", "1", "--max-time", "3")
    assert done.returncode == 1, done.stderr
    (end,) = works.all("work_finished")
    assert end["outcome"] == "timeout"
    assert works.all("task_parked") == [], "no task is at fault"


def test_a_full_pipe_of_events_does_not_delay_the_end_of_a_backlog(works: Works) -> None:
    works.todo(
        "".join(f"- [ ] T{number} {'A long title. ' * 20}\n" for number in range(600))
    )  # more than fits in a pipe
    works.script("sleep 99")
    process = works.start("-j", "1", "--json", "--quiet", "--max-time", "3")
    assert process.wait(90) == 1
    (end,) = works.all("work_finished")
    assert end["outcome"] == "timeout"


def test_a_withdrawn_task_is_not_merged_and_its_branch_stays(works: Works, eventually: Callable[..., None]) -> None:
    works.script(WAITING)
    process = works.start("-j", "2")
    working = Path(works.env["HOME"]) / "working"
    eventually(lambda: working.exists() and len(working.read_text().split()) == 2)  # both have a branch by now
    assert works.run("work", "withdraw", "T2").returncode == 0
    works.wait_for("task_withdrawn", key="T2")
    assert "nothing is left to withdraw" in works.run("work", "withdraw", "T2").stderr
    go(works)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert works.merged() == ["T1"]
    assert works.git("branch", "--list", "ralph/*/T2")


COUNTING = """
n=$(grep -c FAIL results); test "$n" -eq 0 && exit 0
echo "=== $n failed, 5 passed in 0.1s ==="; exit 1
"""


def red_target(works: Works) -> str:
    """Make a target on which a check reports two failures; return that check."""
    (works.folder / "results").write_text("FAIL a\nFAIL b\n")
    (works.folder / "counting.sh").write_text(COUNTING)
    works.todo("- [ ] T1 One\n- [ ] T2 Two\n")
    return "sh counting.sh"


def test_a_failing_target_ends_the_run_with_a_hint(works: Works) -> None:
    done = works.work(checks=(red_target(works),))
    assert done.returncode == 2
    assert "--allow-red" in done.stderr.splitlines()[-1]


def test_allow_red_merges_tasks_that_do_not_make_it_worse(works: Works) -> None:
    check = red_target(works)
    works.script('case $key in T2) echo "FAIL a" > results;; esac; echo COMPLETE')
    done = works.work("--allow-red", "-j", "1", checks=(check, "true"))
    assert done.returncode == 0, done.stderr
    assert works.merged() == ["T1", "T2"]
    (opened,) = works.all("gate_opened")
    assert [(red["check"], red["count"]["failures"]) for red in opened["red"]] == [(check, 2)]
    accepted = works.run("accept")
    assert accepted.returncode == 0, accepted.stderr
    assert "1 check passed, 1 no worse than before" in accepted.stdout


def test_accept_merges_a_red_target_only_if_no_check_is_worse_than_on_your_branch(works: Works) -> None:
    check = red_target(works)
    works.todo("- [x] T1 One\n- [ ] T2 Two\n")
    works.script("echo COMPLETE > T2.txt; echo COMPLETE")
    assert works.work("--allow-red", checks=(check, "! test -e not-green")).returncode == 0
    tree, good = works.folder.parent / "tree", works.git("rev-parse", works.target)
    works.git("worktree", "add", "-q", "--detach", str(tree), good)
    for edit, said in (
        ("echo FAIL c >> results", "sh counting.sh gets worse (exit code 1)"),
        ("touch not-green", "! test -e not-green fails on the merged tree (exit code 1)"),
    ):
        works.git("checkout", "-q", good, cwd=tree)
        subprocess.run(["sh", "-c", edit], cwd=tree, check=True)
        works.git("add", "-A", cwd=tree)
        works.git("commit", "-qm", "edit", cwd=tree)
        works.git("update-ref", f"refs/heads/{works.target}", works.git("rev-parse", "HEAD", cwd=tree))
        accepted = works.run("accept")
        assert (accepted.returncode, said in accepted.stderr) == (1, True), accepted.stderr


def test_allow_red_refuses_tasks_that_make_it_worse(works: Works) -> None:
    check = red_target(works)
    works.todo("".join(f"- [ ] T{number} Make {number}\n" for number in range(1, 5)))
    worse = "T1) echo FAIL c >> results ;; T2) echo broken > counting.sh ;; T3) touch not-green ;;"
    works.script(f"case $key in {worse} esac; echo COMPLETE")
    done = works.work("--allow-red", "-j", "2", "--max-iterations", "1", checks=(check, "! test -e not-green"))
    assert done.returncode == 1, done.stderr
    assert works.merged() == ["T4"]


def test_after_kill_9_status_says_how_to_resume(works: Works) -> None:
    works.script(WAITING)
    process = works.start()
    works.wait_for("task_started", key="T1")
    process.kill()
    process.wait()
    status = works.run("work", "status").stdout.splitlines()
    assert status[-1] == f"interrupted: ralph resume {works.target.split('/')[1]}"
    go(works)
    assert works.run("resume").returncode == 0
    assert "interrupted" not in works.run("work", "status").stdout
