"""A second Ctrl-C ends a run at once, in every state and whatever hangs, and leaves no process."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest

from ralph.files import locked

Start = Callable[..., Any]
Git = Callable[..., str]
AtOnce = Callable[[], AbstractContextManager[None]]
Alive = Callable[[str], list[int]]
pytestmark = pytest.mark.slow

DEAF = "trap '' TERM INT HUP; sleep {0}; sleep {0}; sleep {0}"


class Stage:
    """Prepares a repository and an agent for one state of a run."""

    def __init__(self, repository: Path, git: Git, agent: Callable[..., str], nap: str) -> None:
        self.repository, self.git, self.agent, self.nap = repository, git, agent, nap
        self.deaf = DEAF.format(nap)
        self.sign = repository.parent / "hang"

    def script(self, name: str, text: str) -> str:
        path = self.repository.parent / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    def hook(self, name: str) -> None:
        path = self.repository / ".git" / "hooks" / name
        path.write_text(f"#!/bin/sh\n{self.deaf}\n")
        path.chmod(0o755)

    def remote(self) -> Path:
        """Create a repository to push to."""
        bare = self.repository.parent / "remote.git"
        self.git("init", "-q", "--bare", "--template=", str(bare))
        (bare / "hooks").mkdir()
        self.git("remote", "add", "origin", str(bare))
        self.git("push", "-q", "-u", "origin", "main")
        return bare

    def slow_git(self, instead: str = "") -> None:
        """From now on git hangs while the file `sign` exists."""
        git, hangs = Path(self.agent("exit 0", "git")), instead or f"exec sleep {self.nap}"
        git.write_text(f'#!/bin/sh\n[ ! -e {self.sign} ] || {{ {hangs}; }}\nexec {shutil.which("git")} "$@"\n')

    def filter(self, kind: str) -> None:
        """Configure a filter that hangs."""
        self.git("config", f"filter.slow.{kind}", self.script("slow", self.deaf))
        (self.repository / ".git" / "info" / "attributes").write_text("*.slow filter=slow\n")


@pytest.fixture
def stage(repository: Path, git: Git, agent: Callable[..., str], nap: str) -> Stage:
    return Stage(repository, git, agent, nap)


WORKS = 'case "$PROMPT" in *"commit message"*) echo Message;; *) echo x > new.slow; echo hello;; esac'


def an_agent_that_is_deaf(stage: Stage) -> tuple[str, ...]:
    return ("--agent", stage.agent(stage.deaf))


def a_check_that_is_deaf(stage: Stage) -> tuple[str, ...]:
    return ("--agent", stage.agent("echo hello"), "--check", stage.deaf)


def a_git_that_hangs(stage: Stage) -> tuple[str, ...]:
    """git hangs once the agent has run."""
    stage.slow_git()
    return ("--agent", stage.agent(f"touch {stage.sign}; echo x > new; echo hello"), "--check", "true")


def a_hook_of_a_commit(stage: Stage) -> tuple[str, ...]:
    stage.hook("pre-commit")
    return ("--agent", stage.agent(WORKS), "--check", "true", "--commit")


def a_filter_in_a_commit(stage: Stage) -> tuple[str, ...]:
    stage.filter("clean")
    return ("--agent", stage.agent(WORKS), "--check", "true", "--commit")


def a_filter_while_a_worktree_is_made(stage: Stage) -> tuple[str, ...]:
    (stage.repository / "a.slow").write_text("slow\n")
    stage.git("add", "-A")
    stage.git("commit", "-qm", "slow")
    stage.filter("smudge")
    return ("--agent", stage.agent("echo hello"), "--worktree")


def a_filter_in_a_commit_of_a_worktree(stage: Stage) -> tuple[str, ...]:
    stage.filter("clean")
    return ("--agent", stage.agent(WORKS), "--check", "false", "--worktree")


def a_notification_of_the_end(stage: Stage) -> tuple[str, ...]:
    (stage.repository / ".ralph").mkdir()
    settings = json.dumps({"notify": [stage.script("tell", stage.deaf)]})
    (stage.repository / ".ralph" / "settings.json").write_text(settings)
    return ("--agent", stage.agent("echo hello"), "-m", "1")


DONE = 'echo x > new; echo "<response>DONE</response>"'


def a_reviewer_that_is_deaf(stage: Stage) -> tuple[str, ...]:
    reviewer = stage.agent(stage.deaf, "reviewer")
    return ("--agent", stage.agent(DONE), "--check", "true", "--review-agent", reviewer)


def a_commit_that_is_signed(stage: Stage) -> tuple[str, ...]:
    stage.git("config", "commit.gpgSign", "true")
    stage.git("config", "gpg.program", stage.script("gpg", stage.deaf))
    return ("--agent", stage.agent(WORKS), "--check", "true", "--commit")


def somebody_who_is_asked_for_a_message(stage: Stage) -> tuple[str, ...]:
    asked = f'case "$PROMPT" in *"commit message"*) {stage.deaf};; *) echo x > new; echo hello;; esac'
    return ("--agent", stage.agent(asked), "--check", "true", "--commit")


def a_hook_of_a_push(stage: Stage) -> tuple[str, ...]:
    stage.remote()
    stage.hook("pre-push")
    return ("--agent", stage.agent(WORKS), "--check", "true", "--commit", "--push")


def an_ssh_that_hangs(stage: Stage) -> tuple[str, ...]:
    stage.remote()
    stage.git("config", "remote.origin.url", "ssh://nowhere.invalid/x.git")
    stage.git("config", "core.sshCommand", stage.script("ssh", stage.deaf))
    return ("--agent", stage.agent(WORKS), "--check", "true", "--commit", "--push")


def a_host_that_hangs_when_it_is_pushed_to(stage: Stage) -> tuple[str, ...]:
    hook = stage.remote() / "hooks" / "pre-receive"
    hook.write_text(f"#!/bin/sh\n{stage.deaf}\n")
    hook.chmod(0o755)
    return ("--agent", stage.agent(WORKS), "--check", "true", "--commit", "--push")


State = Callable[[Stage], tuple[str, ...]]
STATES: list[State] = [
    an_agent_that_is_deaf,
    a_check_that_is_deaf,
    a_git_that_hangs,
    a_hook_of_a_commit,
    a_filter_in_a_commit,
    a_filter_while_a_worktree_is_made,
    a_filter_in_a_commit_of_a_worktree,
    a_reviewer_that_is_deaf,
    a_commit_that_is_signed,
    somebody_who_is_asked_for_a_message,
    a_hook_of_a_push,
    an_ssh_that_hangs,
    a_host_that_hangs_when_it_is_pushed_to,
]


def below(pid: int) -> list[int]:
    """Return the descendants of a process."""
    found = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                found += [child, *below(child)]
    return found


def is_living(pid: int) -> bool:
    """Return whether the process runs; False for a zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def words(pid: int) -> list[bytes]:
    """Return the command line of a process."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def test_ctrl_c_twice_kills_a_notification_that_hangs(
    live: Start, at_once: AtOnce, alive: Alive, nap: str, eventually: Any, stage: Stage
) -> None:
    run = live("run", "g", *a_notification_of_the_end(stage))
    eventually(lambda: alive(nap))
    run.process.send_signal(signal.SIGINT)
    eventually(lambda: has_heard(run.process.pid))
    with at_once():
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 1, "it was over before: only its notification was not"
        eventually(lambda: not alive(nap))
    assert run.err.splitlines()[-1].startswith("ralph: exhausted"), "nothing follows the outcome"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("words", "ends"),
    [
        (("run", "g", "--check", "true", "--until", "checks"), "run_finished"),
        (("work", "TODO.md", "--check", "true", "--until", "checks"), "work_finished"),
    ],
)
def test_a_signal_after_the_end_does_not_change_the_exit_code(
    live: Start, stage: Stage, words: tuple[str, ...], ends: str, number: int
) -> None:
    (stage.repository / "TODO.md").write_text("- [ ] one\n")
    run = live(*words, "--agent", stage.agent(DONE))
    assert run.until(ends)["outcome"] == "done"
    while run.process.poll() is None:
        run.process.send_signal(number)
    assert run.end() == 0


def end_by_two(
    run: Any,
    at_once: AtOnce,
    eventually: Any,
    is_over: Callable[[], bool] = lambda: True,
    code: int = 130,
) -> None:
    """Send Ctrl-C, and again once the first one was handled; check that no process is left."""
    everybody = below(run.process.pid)
    run.process.send_signal(signal.SIGINT)
    assert any("Received signal" in line for line in iter(run.process.stderr.readline, ""))
    with at_once():
        run.process.send_signal(signal.SIGINT)
        assert run.end() == code
        eventually(lambda: is_over() and not any(map(is_living, everybody)))


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_ctrl_c_twice_ends_a_run_at_once_whatever_hangs(
    live: Start, at_once: AtOnce, alive: Alive, nap: str, eventually: Any, stage: Stage, state: State
) -> None:
    run = live("run", "g", "-m", "2", *state(stage))
    eventually(lambda: alive(nap))
    end_by_two(run, at_once, eventually, lambda: not alive(nap))
    assert run.kinds()[-1:] == ["run_finished"]
    assert run.one("run_finished")["outcome"] == "interrupted"


def a_question_about_untested_parts(stage: Stage) -> tuple[str, ...]:
    works = f"echo x = 1 > tested.py; echo y = 1 > untested.py; {DONE}"
    asked = f'case "$PROMPT" in *"every check still passes"*) {stage.deaf};; *) {works};; esac'
    return ("--agent", stage.agent(asked), "--check", "test -e tested.py", "--prove=ask")


def a_gh_that_is_to_open_a_request(stage: Stage) -> tuple[str, ...]:
    bare = stage.remote()
    stage.git("config", "remote.origin.url", "https://github.com/acme/shop.git")
    stage.git("config", "remote.origin.pushUrl", str(bare))
    told = json.dumps({"default_branch": "main", "permissions": {"push": True}})
    stage.agent(f"case \"$*\" in *pulls*) {stage.deaf};; *) echo '{told}';; esac", "gh")
    return ("--agent", stage.agent(DONE), "--check", "true", "--worktree", "--pr")


@pytest.mark.parametrize(
    ("state", "code"),
    [(a_question_about_untested_parts, 0), (a_gh_that_is_to_open_a_request, 130)],
    ids=lambda state: getattr(state, "__name__", ""),
)
def test_ctrl_c_twice_ends_the_followups_of_a_done_run_at_once(
    live: Start, at_once: AtOnce, alive: Alive, nap: str, eventually: Any, stage: Stage, state: State, code: int
) -> None:
    """A run whose proof is cut short is done; a run without its pull request is not."""
    run = live("run", "g", "-m", "2", *state(stage))
    eventually(lambda: alive(nap))
    end_by_two(run, at_once, eventually, lambda: not alive(nap), code)
    assert run.one("run_finished")["outcome"] == ("interrupted" if code else "done")


def test_ctrl_c_ends_a_gh_that_hangs_before_the_run_begins(
    live: Start, at_once: AtOnce, alive: Alive, nap: str, eventually: Any, stage: Stage
) -> None:
    stage.git("remote", "add", "origin", "https://github.com/acme/shop.git")
    stage.agent(stage.deaf, "gh")
    run = live("run", "--issue", "5", "--agent", stage.agent(DONE), "--check", "true")
    eventually(lambda: alive(nap))
    with at_once():
        assert run.end(signal.SIGINT) == 130
        eventually(lambda: not alive(nap))


@pytest.mark.parametrize("words", [(), ("--sandbox",)], ids=["free", "sandboxed"])
def test_ctrl_c_twice_ends_a_flooding_agent_that_ignores_signals(
    live: Start, at_once: AtOnce, eventually: Any, stage: Stage, words: tuple[str, ...], bubblewrap: str
) -> None:
    flood = "trap '' TERM INT HUP; while :; do yes a line of a flood that nobody wants to read; done"
    run = live("run", "g", "--quiet", "--agent", stage.agent(flood), *words)
    run.until("agent_started")
    with ThreadPoolExecutor(1) as reader:  # a process that reads everything
        reading = reader.submit(run.process.stdout.read)
        eventually(lambda: any(stage.repository.glob(".ralph/runs/*/iterations/001/stdout.log")))
        everybody = below(run.process.pid)
        run.process.send_signal(signal.SIGINT)
        assert any("Received signal" in line for line in iter(run.process.stderr.readline, ""))
        with at_once():
            run.process.send_signal(signal.SIGINT)
            assert run.process.wait(60) == 130
            eventually(lambda: not any(map(is_living, everybody)))
        reading.result()
    (journal,) = stage.repository.glob(".ralph/runs/*/journal.ndjson")  # a busy reader may have missed the end
    assert json.loads(journal.read_text().splitlines()[-1])["data"]["outcome"] == "interrupted"


def unread(pipe: Any) -> int:
    """Return the number of unread bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_ctrl_c_twice_ends_a_run_although_nobody_reads_its_events(
    live: Start, at_once: AtOnce, eventually: Any, agent: Any, workspace: Path
) -> None:
    run = live("run", "g", "--agent", agent("exec yes a line of a flood that nobody wants to read"))
    run.until("agent_started")
    eventually(lambda: unread(run.process.stdout) > 60_000)
    everybody = below(run.process.pid)
    run.process.send_signal(signal.SIGINT)
    assert any("Received signal" in line for line in iter(run.process.stderr.readline, ""))
    with at_once():
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(60) == 130
        eventually(lambda: not any(map(is_living, everybody)))
    (journal,) = workspace.glob(".ralph/runs/*/journal.ndjson")
    assert '"run_finished"' in journal.read_text().splitlines()[-1]


def fill(pipe: int) -> None:
    """Fill a pipe, so that the next writer blocks."""
    os.set_blocking(pipe, False)
    for size in (512, 1):
        with suppress(BlockingIOError):
            while os.write(pipe, b"x" * size):
                pass
    os.set_blocking(pipe, True)


def a_request_to_end(run: Any, ralph: Callable[..., Any]) -> tuple[int, str]:
    assert ralph("stop", "--now").code == 0
    return 130, "interrupted"


def the_end_of_its_time(run: Any, ralph: Callable[..., Any]) -> tuple[int, str]:
    return 1, "timeout"


@pytest.mark.parametrize("reason", [a_request_to_end, the_end_of_its_time], ids=lambda one: one.__name__)
def test_a_run_ends_although_nobody_reads_its_events(
    live: Start, eventually: Any, agent: Any, workspace: Path, ralph: Callable[..., Any], reason: Callable[..., Any]
) -> None:
    longest = "8" if reason is the_end_of_its_time else "1h"
    flood = "exec yes a line of a flood that nobody wants to read"
    run = live("run", "g", "--max-time", longest, "--agent", agent(flood))
    run.until("agent_started")
    eventually(lambda: unread(run.process.stdout) > 60_000)
    everybody = below(run.process.pid)
    code, outcome = reason(run, ralph)
    assert run.process.wait(60) == code
    eventually(lambda: not any(map(is_living, everybody)))
    (journal,) = workspace.glob(".ralph/runs/*/journal.ndjson")
    assert f'"outcome":"{outcome}"' in journal.read_text().splitlines()[-1]


def test_a_run_ends_although_nobody_reads_its_terminal(
    live: Start, at_once: AtOnce, nap: str, alive: Alive, eventually: Any, agent: Any
) -> None:
    run = live("run", "g", "--agent", agent(f"exec sleep {nap}"))
    eventually(lambda: alive(nap))
    full = os.open(f"/proc/self/fd/{run.process.stderr.fileno()}", os.O_WRONLY)
    fill(full)
    os.close(full)
    with at_once():
        run.process.send_signal(signal.SIGHUP)
        assert run.process.wait(60) == 130


def test_ctrl_c_twice_ends_the_wait_for_a_lock(
    live: Start, at_once: AtOnce, eventually: Any, stage: Stage, environment: dict[str, str]
) -> None:
    worktrees = Path(environment["HOME"], ".local", "state", "ralph", "worktrees")
    worktrees.mkdir(parents=True)
    with locked(worktrees):
        run = live("run", "g", "--worktree", "--agent", stage.agent("echo hello"))
        eventually(lambda: any(is_same(one, worktrees) for one in Path(f"/proc/{run.process.pid}/fd").iterdir()))
        end_by_two(run, at_once, eventually)


def is_same(descriptor: Path, file: Path) -> bool:
    with suppress(OSError):
        return descriptor.samefile(file)
    return False


def test_ctrl_c_twice_ends_a_run_with_fifty_thousand_new_files(
    live: Start, at_once: AtOnce, agent: Callable[..., str], eventually: Any, repository: Path
) -> None:
    for folder in range(500):
        (repository / f"{folder}").mkdir()
        (repository / f"{folder}" / "0").write_text(f"{folder}\n")
        for number in range(1, 100):
            os.link(repository / f"{folder}" / "0", repository / f"{folder}" / f"{number}")
    run = live("run", "g", "-m", "1", "--agent", agent("echo hello"))
    eventually(lambda: any(b"update-index" in words(pid) for pid in below(run.process.pid)))
    end_by_two(run, at_once, eventually)


LIMIT = {"status": "rejected", "resetsAt": 4_000_000_000}
SAID = [
    {"type": "rate_limit_event", "rate_limit_info": LIMIT},
    {
        "type": "result",
        "subtype": "success",
        "is_error": True,
        "api_error_status": 429,
        "result": "You've hit your limit",
    },
]
OVERLOADED = "echo 'API Error: 529 Overloaded' >&2; exit 1"


def a_pause(live: Start, agent: Callable[..., str], ralph: Callable[..., Any], nap: str) -> Any:
    run = live("run", "g", "--agent", agent("echo hello"), "--restart-delay", "2")
    run.until("iteration_finished")
    assert ralph("pause").code == 0
    run.until("paused")
    return run


def a_limit(live: Start, agent: Callable[..., str], ralph: Callable[..., Any], nap: str) -> Any:
    agent("cat <<'END'\n" + "\n".join(map(json.dumps, SAID)) + "\nEND\nexit 1", "claude")
    run = live("run", "g", "--agent", "claude")
    run.until("waiting")
    return run


def a_backoff(live: Start, agent: Callable[..., str], ralph: Callable[..., Any], nap: str) -> Any:
    agent(OVERLOADED, "claude")
    run = live("run", "g", "--agent", "claude")
    run.until("waiting")
    return run


def a_question(live: Start, agent: Callable[..., str], ralph: Callable[..., Any], nap: str) -> Any:
    run = live("run", "g", "--on-question", "wait", "--agent", agent("echo 'May I?' > .ralph/QUESTION.md; echo hello"))
    run.until("paused")
    return run


def a_delay(live: Start, agent: Callable[..., str], ralph: Callable[..., Any], nap: str) -> Any:
    run = live("run", "g", "--restart-delay", "1h", "--agent", agent("echo hello"))
    run.until("waiting")
    return run


def children_of_a_task(live: Start, agent: Callable[..., str], ralph: Callable[..., Any], nap: str) -> Any:
    script = f"trap '' TERM INT HUP; touch \"$TASK_FOLDER/DONE\"; sleep {nap}; sleep {nap}"
    run = live("task", "--root", "tasks", "--project", "p", "--task", "t", "--prompt", "x", "--agent", agent(script))
    run.until("agent_started")
    return run


def _with_a_deaf_child(live: Start, agent: Callable[..., str], nap: str, goes_on: str) -> Any:
    up = Path(agent("exit 0")).with_name("up")
    os.mkfifo(up)
    child = agent(f"trap '' TERM INT HUP; echo > {up}; sleep {nap}; sleep {nap}; sleep {nap}", "child")
    parent = agent(f"ralph job --agent {child} x & read line < {up}; {goes_on}")
    run = live("task", "--root", "tasks", "--project", "p", "--task", "t", "--prompt", "x", "--agent", parent)
    run.until("agent_started")
    return run


def a_task_whose_child_is_deaf(live: Start, agent: Callable[..., str], ralph: Callable[..., Any], nap: str) -> Any:
    run = _with_a_deaf_child(live, agent, nap, f"echo up; {DEAF.format(nap)}")
    run.until("agent_text")
    return run


def a_task_that_waits_for_a_deaf_child(
    live: Start, agent: Callable[..., str], ralph: Callable[..., Any], nap: str
) -> Any:
    run = _with_a_deaf_child(live, agent, nap, 'touch "$TASK_FOLDER/DONE"')
    run.until("waiting")
    return run


@pytest.mark.parametrize(
    "wait",
    [
        a_pause,
        a_limit,
        a_backoff,
        a_question,
        a_delay,
        children_of_a_task,
        a_task_whose_child_is_deaf,
        a_task_that_waits_for_a_deaf_child,
    ],
    ids=lambda wait: wait.__name__,
)
def test_ctrl_c_twice_ends_every_wait_at_once(
    live: Start,
    at_once: AtOnce,
    agent: Callable[..., str],
    ralph: Callable[..., Any],
    alive: Callable[[str], list[int]],
    nap: str,
    eventually: Any,
    wait: Callable[..., Any],
) -> None:
    run = wait(live, agent, ralph, nap)
    everybody = below(run.process.pid)
    with at_once():
        run.process.send_signal(signal.SIGINT)
        run.process.send_signal(signal.SIGTERM)  # two equal signals may be merged into one
        assert run.end() == 130
        eventually(lambda: not alive(nap) and not any(map(is_living, everybody)))
    assert run.one("run_finished")["outcome"] == "interrupted"


@pytest.mark.parametrize(
    "state",
    [a_git_that_hangs, a_filter_while_a_worktree_is_made],
    ids=lambda state: state.__name__,
)
def test_a_git_that_hangs_does_not_outlive_a_ralph_that_is_killed(
    live: Start, alive: Alive, nap: str, eventually: Any, stage: Stage, state: State
) -> None:
    run = live("run", "g", *state(stage))
    eventually(lambda: alive(nap))
    everybody = below(run.process.pid)
    assert run.end(signal.SIGKILL) == -9
    eventually(lambda: not alive(nap) and not any(map(is_living, everybody)))


@pytest.mark.parametrize("state", [a_git_that_hangs, a_filter_in_a_commit], ids=lambda state: state.__name__)
def test_the_time_of_the_run_ends_a_git_that_hangs(live: Start, stage: Stage, state: State) -> None:
    run = live("run", "g", "--max-time", "2", *state(stage))
    assert run.end() == 1
    assert run.one("run_finished")["outcome"] == "timeout"


def test_ctrl_c_ends_a_rewind_whose_filter_hangs(
    at_once: AtOnce,
    ralph: Callable[..., Any],
    alive: Alive,
    nap: str,
    eventually: Any,
    stage: Stage,
    environment: dict[str, str],
) -> None:
    a_filter_while_a_worktree_is_made(stage)
    assert ralph("run", "g", "-m", "1", "--agent", stage.agent("rm a.slow")).code == 1
    words = [sys.executable, "-m", "ralph", "rewind", "0"]
    rewind = subprocess.Popen(words, cwd=stage.repository, env=environment, stderr=subprocess.PIPE)
    eventually(lambda: alive(nap))
    with at_once():
        rewind.send_signal(signal.SIGINT)
        rewind.send_signal(signal.SIGINT)
        rewind.communicate(timeout=120)
        assert rewind.returncode == 130
        eventually(lambda: not alive(nap))


@pytest.mark.parametrize(
    "words", ["show", "report", "diff", "rewind 0", "accept", "clean --older-than 0s --yes", "demo"]
)
def test_ctrl_c_twice_ends_every_command_whose_git_hangs(
    at_once: AtOnce,
    ralph: Callable[..., Any],
    alive: Alive,
    nap: str,
    eventually: Any,
    stage: Stage,
    environment: dict[str, str],
    words: str,
) -> None:
    begun = ("run", "g", "-m", "1", "--agent", stage.agent("echo x > new"))
    assert ralph(*begun, *(("--worktree",) if words == "accept" else ())).code == 1
    was_asked = stage.sign.with_name("was-asked")
    stage.slow_git(f"trap 'touch {was_asked}' TERM; trap '' INT HUP; while :; do sleep {nap}; done")
    stage.sign.touch()
    command = [sys.executable, "-m", "ralph", *words.split()]
    with subprocess.Popen(command, cwd=stage.repository, env=environment, stdin=subprocess.DEVNULL) as asked:
        eventually(lambda: alive(nap))
        asked.send_signal(signal.SIGINT)
        eventually(was_asked.exists)
        with at_once():
            asked.send_signal(signal.SIGINT)
            assert asked.wait(60) == 130
            eventually(lambda: not alive(nap))


def waits_for_a_reader(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/wchan").read_text().endswith("pipe_write")
    return False


def has_heard(pid: int) -> bool:
    """Return whether no signal is pending."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/status").read_text().partition("ShdPnd:")[2].split()[0], 16) == 0
    return True


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "words", ["ps -a", "show", "logs --json", "report -o -", "serve --port 0", "work no.md", "--help"]
)
def test_ctrl_c_twice_ends_every_command_although_nobody_reads_it(
    at_once: AtOnce,
    ralph: Callable[..., Any],
    eventually: Any,
    agent: Callable[..., str],
    workspace: Path,
    environment: dict[str, str],
    words: str,
    closed: str,
) -> None:
    """A command that ends doesn't wait for a reader of its last output, not even of an error."""
    assert ralph("run", "g", "-m", "1", "--agent", agent("echo hello")).code == 1
    reader, writer = os.pipe()
    fill(writer)
    command = [sys.executable, "-m", "ralph", *words.split()]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, closed: writer}
    with subprocess.Popen(command, cwd=workspace, env=environment, **streams) as asked:  # type: ignore[call-overload]
        eventually(lambda: asked.poll() is not None or waits_for_a_reader(asked.pid))
        with at_once():
            asked.send_signal(signal.SIGINT)
            eventually(lambda: has_heard(asked.pid))
            eventually(lambda: asked.poll() is not None or waits_for_a_reader(asked.pid))
            asked.send_signal(signal.SIGINT)
            assert asked.wait(60) in (0, 2, 130)
    os.close(reader)
    os.close(writer)


def is_tied(pid: int) -> bool:
    """Return whether the process would get SIGHUP at the end of its parent."""
    with suppress(OSError):
        return bool(int(Path(f"/proc/{pid}/fdinfo/3").read_text().partition("flags:")[2].split()[0], 8) & os.O_ASYNC)
    return False


@pytest.mark.parametrize("command", [("diff",), ("diff", "--stat"), ("rewind", "0"), ("report",)], ids=" ".join)
def test_a_git_that_hangs_does_not_outlive_a_command_that_is_killed(
    ralph: Callable[..., Any],
    alive: Alive,
    nap: str,
    eventually: Any,
    stage: Stage,
    environment: dict[str, str],
    command: tuple[str, ...],
) -> None:
    assert ralph("run", "g", "-m", "1", "--agent", stage.agent("echo x > new")).code == 1
    stage.slow_git()
    stage.sign.touch()
    asked = subprocess.Popen([sys.executable, "-m", "ralph", *command], cwd=stage.repository, env=environment)
    try:
        eventually(lambda: any(is_tied(pid) for pid in alive(nap)))
    finally:
        asked.kill()
        asked.wait()
    eventually(lambda: not alive(nap))
