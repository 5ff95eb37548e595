"""ralph, its keeper, or both are killed: whatever is left running is found and ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]
Agent = Callable[..., str]
Alive = Callable[[str], list[int]]

# In its own group, in another session, and as a daemon that has lost its parent.
ESCAPES = """
setsid sleep {0} > /dev/null 2>&1 &
(setsid sh -c 'sleep {0} & exit' > /dev/null 2>&1 &)
sleep {0} &
"""


def keeper_of(pid: int) -> int:
    """Return the pid of the keeper."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = [child for child in listed if Path(f"/proc/{child}/comm").read_text() == "loop-keeper\n"]
    return int(found)


@pytest.fixture
def left(live: Start, agent: Agent, alive: Alive, nap: str, eventually: Any) -> Callable[..., Any]:
    """Start a run and kill it together with its keeper while its agent works."""

    def kill(*words: str, script: str = ESCAPES, number: int = 3) -> Any:
        run = live("run", "g", "--agent", agent(f"{script.format(nap)}\nexec sleep {nap}"), *words)
        run.until("agent_started")
        eventually(lambda: len(alive(nap)) > number)
        keeper = keeper_of(run.process.pid)
        os.kill(run.process.pid, signal.SIGSTOP)  # neither can react to the end of the other
        for pid in (keeper, run.process.pid):
            os.kill(pid, signal.SIGKILL)
        assert run.end() == -9
        eventually(lambda: len(alive(nap)) == number)  # the kernel kills the agent itself, not its background processes
        return run

    return kill


def test_pkill_ralph_spares_the_keeper(live: Start, agent: Agent, alive: Alive, nap: str, eventually: Any) -> None:
    run = live("run", "g", "--agent", agent(f"{ESCAPES.format(nap)}\nsleep {nap}"))
    run.until("agent_started")
    eventually(lambda: len(alive(nap)) > 3)
    assert "ralph" not in Path(f"/proc/{keeper_of(run.process.pid)}/comm").read_text()
    run.process.kill()
    eventually(lambda: not alive(nap))


@pytest.mark.parametrize("who", ["ralph clean", "the next run"])
def test_processes_left_when_both_were_killed_are_shown_and_ended(
    left: Callable[..., Any], ralph: Any, agent: Agent, alive: Alive, nap: str, eventually: Any, who: str
) -> None:
    left()
    shown = ralph("ps").out
    assert "was killed; still running: 3 processes" in shown
    assert "`ralph clean` kills it" in shown
    (told,) = map(json.loads, ralph("ps", "--json").out.splitlines())
    assert (told["state"], told["alive"]) == ("left behind", False)
    assert len(told["processes"]) == 3
    assert "still running" in ralph("doctor").out
    if who == "ralph clean":
        assert "killed what it left running: 3 processes" in ralph("clean").out
    else:
        done = ralph("run", "g", "--agent", agent("echo '<response>DONE</response>'"))
        assert done.code == 0
        assert "killed what it left running: 3 processes" in done.err
    eventually(lambda: not alive(nap))
    assert ralph("clean", "-C", ".").out == "nothing to delete that is older than 14d\n"
    assert "still running" not in ralph("ps").out


@pytest.mark.parametrize("who", ["agent", "check"])
def test_an_agent_that_kills_the_keeper_ends_the_run(
    live: Start, agent: Agent, alive: Alive, nap: str, workspace: Path, who: str
) -> None:
    (workspace / "attack.sh").write_text(
        f"{ESCAPES.format(nap)}\n"
        "pid=$$; while ! grep -q loop-keeper /proc/$pid/comm; do pid=$(ps -o ppid= -p $pid | tr -d ' '); done\n"
        f"kill -KILL $pid\nsleep {nap}\n"
    )
    fake = agent("sh attack.sh" if who == "agent" else "echo hello")
    run = live("run", "g", "--check", "sh attack.sh", "--agent", fake)
    assert run.end() == 2
    finished = run.one("run_finished")
    assert finished["outcome"] == "fatal"
    assert "(loop-keeper) was killed" in finished["reason"]
    assert not alive(nap)


def test_kept_children_are_not_reported_or_killed(left: Callable[..., Any], ralph: Any, alive: Alive, nap: str) -> None:
    left("--keep-children")
    kept = alive(nap)
    assert ralph("clean", "-C", ".").out == "nothing to delete that is older than 14d\n"
    assert alive(nap) == kept


def test_kept_children_survive_a_resume(ralph: Any, agent: Agent, alive: Alive, nap: str) -> None:
    first = f"setsid sleep {nap} > /dev/null 2>&1 &"
    ralph("run", "g", "-m", "1", "--keep-children", "--agent", agent(f"test $N -gt 1 || {first}"))
    kept = alive(nap)
    assert len(kept) == 1
    assert ralph("resume", "-m", "1").code == 1
    assert alive(nap) == kept


def test_clean_leaves_a_running_run_alone(
    live: Start, agent: Agent, ralph: Any, alive: Alive, nap: str, eventually: Any
) -> None:
    run = live("run", "g", "--agent", agent(f"sleep {nap}"))
    run.until("agent_started")
    eventually(lambda: alive(nap))
    assert ralph("clean", "-C", ".").out == "nothing to delete that is older than 14d\n"
    assert alive(nap)
    assert run.process.poll() is None


def test_a_run_inside_a_container_is_left_alone(
    environment: dict[str, str],
    bubblewrap: str,
    agent: Agent,
    ralph: Any,
    alive: Alive,
    nap: str,
    eventually: Any,
    workspace: Path,
    tmp_path: Path,
) -> None:
    """Pids differ inside; the home is the same, and all its processes are visible from outside."""
    apart = [bubblewrap, "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--die-with-parent"]
    words = [sys.executable, "-m", "ralph", "run", "g", "--agent", agent(f"sleep {nap}")]
    (tmp_path / "other").mkdir()
    with subprocess.Popen([*apart, *words], cwd=workspace, env=environment, stderr=subprocess.PIPE) as run:
        try:
            eventually(lambda: alive(nap))
            assert "still running" not in ralph("ps").out
            done = agent("echo '<response>DONE</response>'", "other-agent")
            assert "still running" not in ralph("run", "g", "--agent", done, cwd=tmp_path / "other").err
            assert alive(nap)
            for pid in map(int, Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()):
                os.kill(pid, signal.SIGKILL)  # the first process there: all others go with it
            assert run.wait(60)
            ralph("clean")
            assert "still running" not in ralph("ps").out
        finally:
            run.kill()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_run_ends_on_ralph_stop(
    live: Start, agent: Agent, ralph: Any, alive: Alive, nap: str, eventually: Any
) -> None:
    """After Ctrl-Z, a process handles no signal until it is continued."""
    run = live("run", "g", "--agent", agent(f"kill -STOP $(ps -o ppid= -p $PPID); sleep {nap}"))
    eventually(lambda: alive(nap) and state_of(run.process.pid) == "T")
    assert ralph("stop", "--now").code == 0
    assert run.end() == 130
    assert run.one("run_finished")["outcome"] == "interrupted"
    assert not alive(nap)


def test_clean_kills_no_process_without_the_mark(
    left: Callable[..., Any],
    live: Start,
    agent: Agent,
    ralph: Any,
    alive: Alive,
    nap: str,
    tmp_path: Path,
    eventually: Any,
) -> None:
    left()
    other = subprocess.Popen(["sleep", nap + "1"])
    try:
        ralph("clean")
        eventually(lambda: not alive(nap))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
