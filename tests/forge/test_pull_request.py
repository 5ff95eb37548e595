"""From a run to a pull request, and back from the host's checks to the run. Real gh, real git, a host on loopback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.forge.hosted import TOKEN, LoopbackHost

Start = Callable[..., Any]
WORKS = "echo coupon > cart; echo COMPLETE"
CHECK = ("--check", "grep -q coupon cart")


@pytest.fixture(autouse=True)
def impatient(workspace: Path) -> None:
    """Let a run poll the host's checks more often."""
    (workspace / ".ralph").mkdir(exist_ok=True)
    (workspace / ".ralph" / "settings.local.json").write_text('{"pollInterval": "50ms"}')


def heads(host: LoopbackHost) -> list[str]:
    return host.git("for-each-ref", "--format=%(refname:short)", "refs/heads").split()


def test_verified_work_becomes_a_pull_request_with_the_report_as_its_text(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost
) -> None:
    host.issue(42, "Add @coupons <b>", "Please")
    fake = agent(f"[ $N = 1 ] && echo COMPLETE || {{ {WORKS}; }}")
    done = ralph("loop", "--issue", "42", *CHECK, "--pr", "--agent", fake)
    assert done.code == 0, done.err
    (pull,) = host.pulls.values()
    assert (pull["title"], pull["draft"], pull["base"]["ref"]) == ("Add @coupons <b>", False, "main")
    assert host.git("show", f"{pull['head']['ref']}:cart") == "coupon"
    assert pull["body"].startswith("Closes #42\n\n## ✅ done after 2 iterations")
    assert "| 1 | ❌ |" in pull["body"]
    assert "### Claims that were refused" in pull["body"]
    assert "### What was done, in the agent's words" in pull["body"]
    assert "git merge" not in pull["body"], "whoever reads it there merges it there"
    assert str(clone) not in pull["body"]
    assert f"{clone.parent}" not in pull["body"], "nothing of the machine on which it was made"
    assert "@coupons" not in pull["body"]  # a report mentions nobody
    assert f"pull request: https://github.com/acme/shop/pull/{pull['number']}" in done.err
    assert not (clone / "cart").exists()
    assert "Please" not in host.git("log", "--format=%B", pull["head"]["ref"])


def test_nothing_is_pushed_for_a_run_that_is_not_done(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost
) -> None:
    done = ralph("loop", "x", *CHECK, "--pr", "-m", "1", "--agent", agent("echo half > cart; echo COMPLETE"))
    assert done.code == 1
    assert heads(host) == ["main"]
    assert not host.pulls


def test_with_draft_an_unfinished_run_opens_a_draft_that_a_later_success_makes_ready(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost
) -> None:
    script = f"if [ $N = 1 ]; then echo half > cart; echo COMPLETE; else {WORKS}; fi"
    done = ralph("loop", "x", *CHECK, "--pr=draft", "-m", "1", "--agent", agent(script))
    assert done.code == 1, done.err
    (pull,) = host.pulls.values()
    assert pull["draft"]
    assert "## ❌ exhausted" in pull["body"]
    again = ralph("resume", "-m", "1")
    assert again.code == 0, again.err
    assert len(host.pulls) == 1
    assert not pull["draft"]
    assert "## ✅ done" in pull["body"]


def test_the_logs_of_the_hosts_red_checks_go_into_the_next_prompt(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost, prompts: Start
) -> None:
    host.ci = {"build": "echo compiling; test -f receipt || { echo no receipt here; exit 1; }", "lint": "true"}
    host.slow = 2
    script = f"{WORKS}; if [ $N = 2 ]; then echo r > receipt; fi"
    done = ralph("loop", "x", *CHECK, "--pr=wait", "--agent", agent(script))
    assert done.code == 0, done.err
    assert len(prompts()) == 2
    assert "github.com: build: exit code 1" in prompts()[1]
    assert "\ncompiling\nno receipt here\n</" in prompts()[1]
    (pull,) = host.pulls.values()
    assert "receipt" in host.git("ls-tree", "--name-only", pull["head"]["ref"])
    assert "| 1 | ✅ | ❌ | ✅ |" in pull["body"]
    assert "| 2 | ✅ | ✅ | ✅ |" in pull["body"]
    assert host.asked.count("POST /repos/acme/shop/pulls") == 1


def test_ralph_does_not_wait_for_a_host_without_checks(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost
) -> None:
    done = ralph("loop", "x", *CHECK, "--pr=wait", "--agent", agent(WORKS))
    assert done.code == 0, done.err
    assert "shows no checks for https://github.com/acme/shop/pull/1" in done.err


def test_a_pull_request_that_was_closed_during_the_run_stays_closed_and_the_work_is_kept(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost, git: Start
) -> None:
    host.ci, host.slow = {"build": "true"}, 100
    host.after_pull = lambda: host.pulls[1].update(state="closed")
    done = ralph("loop", "x", *CHECK, "--pr=wait", "--agent", agent(WORKS))
    assert done.code == 2
    assert "pull request #1 was closed: https://github.com/acme/shop/pull/1" in done.last_line
    assert len(host.pulls) == 1
    (branch,) = [name for name in heads(host) if name != "main"]
    assert git("show", f"{branch}:cart") == "coupon\n"


def test_a_run_interrupted_while_it_waits_is_not_done_and_can_be_resumed(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost, live: Start
) -> None:
    host.ci, host.slow = {"build": "true"}, 10_000
    run = live("loop", "x", *CHECK, "--pr=wait", "--agent", agent(WORKS))
    while "waiting for the checks" not in run.until("notice").get("text", ""):
        pass
    assert run.end(2) == 130
    host.slow = 0
    host.ci = {"build2": "true"}
    done = ralph("resume")
    assert done.code == 0, done.err
    assert len(host.pulls) == 1


def test_a_run_killed_while_it_waits_resumes_and_opens_no_second_pull_request(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost, live: Start
) -> None:
    host.ci, host.slow = {"build": "test -f cart"}, 10_000
    run = live("loop", "x", *CHECK, "--pr=wait", "--agent", agent(WORKS))
    while "waiting for the checks" not in run.until("notice").get("text", ""):
        pass
    run.process.kill()
    run.process.wait()
    (pull,) = host.pulls.values()
    assert host.git("show", f"{pull['head']['ref']}:cart") == "coupon", "what was pushed stays pushed"
    host.slow, host._runs = 0, {}
    done = ralph("resume")
    assert done.code == 0, done.err
    assert list(host.pulls) == [1]
    assert host.asked.count("POST /repos/acme/shop/pulls") == 1
    assert "## ✅ done" in pull["body"]


def test_a_refusal_by_a_protected_branch_is_a_one_line_error_and_resume_retries(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost
) -> None:
    hook = host.bare / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho 'error: GH006: Protected branch update failed.'\nexit 1\n")
    hook.chmod(0o755)
    done = ralph("loop", "x", *CHECK, "--pr", "--agent", agent(WORKS))
    assert done.code == 2
    assert "not published: cannot push ralph/" in done.last_line
    assert "GH006: Protected branch update failed." in done.last_line
    assert not host.pulls
    hook.unlink()
    again = ralph("resume")
    assert again.code == 0, again.err
    assert len(host.pulls) == 1
    assert len(list(Path(clone, ".ralph", "runs").glob("*/iterations/*"))) == 1  # the agent was not started again


def test_with_a_remote_that_is_a_folder_the_branch_is_pushed_and_the_next_command_shown(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost, git: Start
) -> None:
    git("remote", "set-url", "origin", str(host.bare))
    done = ralph("loop", "x", *CHECK, "--pr", "--agent", agent(WORKS), PATH="/usr/bin:/bin")
    assert done.code == 0, done.err
    (branch,) = [name for name in heads(host) if name != "main"]
    assert f"to open one: git request-pull main origin {branch}" in done.err
    assert not host.pulls
    assert "cart | 1 +" in git("request-pull", "main", "origin", branch)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--pr=soon", *CHECK), "--pr: expected draft or wait, got 'soon'"),
        (("--pr", "--preset", "guardrails"), "--pr needs something that verifies the work"),
    ],
)
def test_an_invalid_use_of_the_pr_option_is_refused(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost, words: tuple[str, ...], said: str
) -> None:
    done = ralph("run", "x", *words, "--agent", agent(WORKS))
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_host_that_cannot_be_used_is_reported_before_the_agent_starts(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost, git: Start, tmp_path: Path, prompts: Start
) -> None:
    words = ("loop", "x", *CHECK, "--agent", agent(WORKS))
    assert "gh is not logged in to github.com" in ralph(*words, "--pr", GH_TOKEN="").err
    bare = tmp_path / "bin"
    bare.mkdir()
    for program in ("git", "sh", "cat"):
        (bare / program).symlink_to(f"/usr/bin/{program}")
    assert "gh is not installed" in ralph(*words, "--pr", PATH=str(bare)).err
    host.answers["/repos/acme/shop"] = (200, {"default_branch": "main", "permissions": {"push": False}})
    assert "you may not push to acme/shop" in ralph(*words, "--pr").err
    git("remote", "set-url", "origin", "git@gitlab.example:acme/shop.git")
    assert "--pr=wait needs GitHub, and gitlab.example isn't" in ralph(*words, "--pr=wait").err
    git("remote", "remove", "origin")
    assert "no remote in this repository" in ralph(*words, "--pr").err
    assert prompts() == []
    assert heads(host) == ["main"]


def test_a_run_that_changed_nothing_has_nothing_to_publish(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost
) -> None:
    done = ralph("loop", "x", "--check", "true", "--pr", "--agent", agent("echo COMPLETE"))
    assert done.code == 0, done.err
    assert "nothing was changed, so there is nothing to publish" in done.err
    assert not host.pulls


def test_a_pull_request_contains_no_key(ralph: Start, agent: Start, clone: Path, host: LoopbackHost) -> None:
    done = ralph("loop", "x", *CHECK, "--pr", "--agent", agent(f"echo my key is $GH_TOKEN; {WORKS}"))
    assert done.code == 0, done.err
    assert TOKEN not in json.dumps(host.pulls)


PLAN = """# Plan: Coupons

A cart takes coupons.

## Tasks

- [ ] T1 Cart: it says coupon
  check: `grep -q coupon cart`
"""


def test_a_goal_becomes_a_merged_pull_request(
    ralph: Start, agent: Start, clone: Path, host: LoopbackHost, git: Start
) -> None:
    """From an issue to a plan, a run, and a pull request. The host's check refuses the first version and passes the
    second. A maintainer merges it: the issue is closed, and main has the work."""
    (clone / "Makefile").write_text("test:\n\ttest -f README\n")
    git("add", "-A")
    git("commit", "-qm", "a check")
    git("push", "-q")
    host.issue(42, "Coupons", "A cart should take coupons.")
    host.ci = {"build": "grep -q final cart"}
    planner = agent(f"cat <<'END'\n{PLAN}END", "planner")
    planned = ralph("plan", "--issue", "42", "--yes", "--agent", planner)
    assert planned.code == 0, planned.err
    assert "green         make test" in planned.err
    git("add", "PLAN.md")
    git("commit", "-qm", "the plan")
    git("push", "-q")
    ticks = "sed -i 's/\\[ ]/[x]/' PLAN.md"
    worker = agent(f"if [ $N = 1 ]; then echo coupon > cart; else echo coupon final > cart; fi; {ticks}; echo COMPLETE")
    words = ("loop", "--issue", "42", "--tasks", "PLAN.md", *CHECK, "--pr=wait", "--agent", worker)
    done = ralph(*words)
    assert done.code == 0, done.err
    (number,) = host.pulls
    assert host.pulls[number]["title"] == "Coupons"
    host.merge(number)
    assert host.issues[42]["state"] == "closed"
    git("pull", "-q")
    assert (clone / "cart").read_text() == "coupon final\n"
    assert "- [x] T1" in (clone / "PLAN.md").read_text()
