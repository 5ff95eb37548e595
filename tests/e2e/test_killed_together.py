"""ralph and its keeper are killed together, or an agent goes for the keeper: nothing lives on without being found."""

import json
import os
import signal
import subprocess
import sys
import time
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
    """The child of ralph that bears the keeper's name."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (found,) = [child for child in listed if Path(f"/proc/{child}/comm").read_text() == "loop-keeper\n"]
    return int(found)


@pytest.fixture
def left(live: Start, agent: Agent, alive: Alive, nap: str, eventually: Any) -> Callable[..., Any]:
    """Starts a run, kills it together with its keeper while its agent works, and gives it."""

    def kill(*words: str, script: str = ESCAPES, number: int = 3) -> Any:
        run = live("run", "g", "--agent", agent(f"{script.format(nap)}\nsleep {nap}"), *words)
        run.until("agent_started")
        eventually(lambda: len(alive(nap)) > number)
        keeper = keeper_of(run.process.pid)
        os.kill(run.process.pid, signal.SIGSTOP)  # neither gets to see what happens to the other
        for pid in (keeper, run.process.pid):
            os.kill(pid, signal.SIGKILL)
        assert run.end() == -9
        assert len(alive(nap)) > number, "this is what the test is about"
        return run

    return kill


def test_pkill_ralph_spares_the_keeper(live: Start, agent: Agent, alive: Alive, nap: str, eventually: Any) -> None:
    """As the program that people install: its name is ralph, and so is its command line."""
    program = str(Path(sys.executable).parent / "ralph")
    run = live("run", "g", "--agent", agent(f"{ESCAPES.format(nap)}\nsleep {nap}"))
    run.until("agent_started")
    eventually(lambda: len(alive(nap)) > 3)
    keeper = Path("/proc", str(keeper_of(run.process.pid)))
    for text in ((keeper / "comm").read_bytes(), (keeper / "cmdline").read_bytes()):
        assert b"ralph" not in text, f"`pkill ralph` and `pkill -f ralph` (as {program}) kill this one too"
        assert text.startswith(b"loop-keeper")
    run.process.kill()
    eventually(lambda: not alive(nap))


@pytest.mark.parametrize("who", ["ralph clean", "the next run"])
def test_what_lives_on_when_both_were_killed_is_shown_and_ended(
    left: Callable[..., Any], ralph: Any, agent: Agent, alive: Alive, nap: str, eventually: Any, who: str
) -> None:
    left()
    shown = ralph("ps").out
    assert "was killed together with its keeper" in shown
    assert "`ralph clean` ends it" in shown
    (told,) = map(json.loads, ralph("ps", "--json").out.splitlines())
    assert (told["state"], told["alive"]) == ("left behind", False)
    assert told["processes"]
    assert "lives on" in ralph("doctor").out
    if who == "ralph clean":
        assert "what it had left was ended: " in ralph("clean").out
    else:
        done = ralph("run", "g", "--agent", agent("echo '<response>DONE</response>'"))
        assert done.code == 0
        assert "what it had left was ended: " in done.err
    eventually(lambda: not alive(nap))
    assert ralph("clean", "-C", ".").out == "nothing to take away that is older than 14d\n"
    assert "killed together" not in ralph("ps").out


def test_one_that_has_cleared_its_environment_is_found_below_the_recorded_agent(
    left: Callable[..., Any], ralph: Any, alive: Alive, nap: str, eventually: Any
) -> None:
    left(script="exec env -i sh -c 'sleep {0} & sleep {0}; :'", number=1)
    assert "(" in ralph("clean").out
    eventually(lambda: not alive(nap))


def test_a_run_that_the_surviving_agent_starts_ends_neither_its_own_keeper_nor_who_started_it(
    left: Callable[..., Any], ralph: Any, agent: Agent, alive: Alive, nap: str, eventually: Any, tmp_path: Path
) -> None:
    told, over, done = tmp_path / "go", tmp_path / "code", agent("echo '<response>DONE</response>'", "other")
    inner = f"mkdir -p {tmp_path}/inner; {sys.executable} -m ralph run g -C {tmp_path}/inner --agent {done}"
    waits = f"until [ -e {told} ]; do sleep 0.01; done; {inner} 2> {tmp_path}/said; echo $? > {over}.new"
    left(script=f"{ESCAPES}({waits}; mv {over}.new {over}; sleep {{0}}) &", number=3)
    told.touch()
    eventually(over.exists)
    assert over.read_text() == "0\n", (tmp_path / "said").read_text()
    assert "what it had left was ended: " in (tmp_path / "said").read_text()
    eventually(lambda: alive(nap))  # who started it goes on
    assert "what it had left was ended: " in ralph("clean").out, "and is found by the next one"
    eventually(lambda: not alive(nap))


AVENGER = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print(flush=True)
while True:
    os.kill(signal.sigwaitinfo({signal.SIGTERM}).si_pid, int(sys.argv[1]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_one_that_kills_or_stops_whoever_asks_it_to_end_is_ended(
    live: Start, agent: Agent, ralph: Any, alive: Alive, nap: str, eventually: Any, tmp_path: Path, how: int
) -> None:
    """The keeper, when ralph is gone, and then whoever finds what it has left."""
    (tmp_path / "avenger.py").write_text(AVENGER)
    run = live("run", "g", "--agent", agent(f"exec {sys.executable} {tmp_path}/avenger.py {int(how)} {nap}"))
    run.until("agent_text")
    keeper = Path(f"/proc/{keeper_of(run.process.pid)}/stat")
    run.process.kill()
    eventually(lambda: not keeper.exists() or ") T " in keeper.read_text() or ") Z " in keeper.read_text())
    assert alive(nap), "this is what the test is about"
    assert "lives on" in ralph("ps").out
    assert "what it had left was ended: " in ralph("clean").out
    eventually(lambda: not alive(nap))
    eventually(lambda: not keeper.exists() or ") Z " in keeper.read_text())


def test_a_notification_that_hangs_is_found_too(
    live: Start, agent: Agent, ralph: Any, alive: Alive, nap: str, eventually: Any, workspace: Path
) -> None:
    (workspace / ".ralph").mkdir()
    (workspace / ".ralph" / "settings.json").write_text(json.dumps({"notify": [f"sleep {nap}; true"]}))
    run = live("run", "g", "-m", "1", "--agent", agent("echo hello"))
    eventually(lambda: alive(nap))
    keeper = keeper_of(run.process.pid)
    os.kill(run.process.pid, signal.SIGSTOP)
    for pid in (keeper, run.process.pid):
        os.kill(pid, signal.SIGKILL)
    run.end()
    assert alive(nap), "this is what the test is about"
    assert "what it had left was ended: " in ralph("clean").out
    eventually(lambda: not alive(nap))


def a_hook_of_a_commit(repository: Path, agent: Agent, ralph: Any, nap: str) -> tuple[str, ...]:
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.write_text(f"#!/bin/sh\n{ESCAPES.format(nap)}\nsleep {nap}\n")
    hook.chmod(0o755)
    works = 'case "$PROMPT" in *"commit message"*) echo Message;; *) echo x > new;; esac'
    return ("run", "g", "--commit", "--check", "true", "--agent", agent(works))


def the_check_of_work_that_is_accepted(repository: Path, agent: Agent, ralph: Any, nap: str) -> tuple[str, ...]:
    go = repository.parent / "go"
    check = repository.parent / "check.sh"
    check.write_text(f"[ -e {go} ] || exit 0\n{ESCAPES.format(nap)}\nsleep {nap}\n")
    done = "echo x > new; echo '<response>DONE</response>'"
    assert ralph("run", "g", "--worktree", "--check", f"sh {check}", "--agent", agent(done)).code == 0
    go.touch()
    return ("accept",)


def an_agent_that_is_asked_for_its_version(repository: Path, agent: Agent, ralph: Any, nap: str) -> tuple[str, ...]:
    agent(f"{ESCAPES.format(nap)}\nsleep {nap}", "claude")
    return ("doctor",)


def a_check_that_is_tried(repository: Path, agent: Agent, ralph: Any, nap: str) -> tuple[str, ...]:
    agent("echo 1.0", "claude")
    (repository / "check.sh").write_text(f"{ESCAPES.format(nap)}\nsleep {nap}\n")
    (repository / "Makefile").write_text("test:\n\tsh check.sh\n")
    return ("init", "--yes")


@pytest.mark.parametrize(
    "begun",
    [
        a_hook_of_a_commit,
        the_check_of_work_that_is_accepted,
        an_agent_that_is_asked_for_its_version,
        a_check_that_is_tried,
    ],
    ids=lambda begun: begun.__name__,
)
def test_whatever_a_command_has_started_is_found_when_it_was_killed_together_with_its_keeper(
    agent: Agent,
    ralph: Any,
    alive: Alive,
    nap: str,
    eventually: Any,
    repository: Path,
    environment: dict[str, str],
    begun: Callable[..., tuple[str, ...]],
) -> None:
    words = begun(repository, agent, ralph, nap)
    command = [sys.executable, "-m", "ralph", *words]
    with subprocess.Popen(command, cwd=repository, env=environment, stdin=subprocess.DEVNULL) as killed:
        eventually(lambda: len(alive(nap)) > 3)
        both = (keeper_of(killed.pid), killed.pid)
        os.kill(killed.pid, signal.SIGSTOP)
        for pid in both:
            os.kill(pid, signal.SIGKILL)
    assert len(alive(nap)) > 3, "this is what the test is about"
    assert "what it had left was ended: " in ralph("clean").out
    eventually(lambda: not alive(nap))


def test_runs_that_may_keep_their_children_are_left_alone(
    left: Callable[..., Any], ralph: Any, alive: Alive, nap: str
) -> None:
    left("--keep-children")
    assert ralph("clean", "-C", ".").out == "nothing to take away that is older than 14d\n"
    assert len(alive(nap)) > 3


def test_what_a_run_may_keep_lives_on_when_it_is_resumed(ralph: Any, agent: Agent, alive: Alive, nap: str) -> None:
    first = f"setsid sleep {nap} > /dev/null 2>&1 &"
    ralph("run", "g", "-m", "1", "--keep-children", "--agent", agent(f"test $N -gt 1 || {first}"))
    kept = alive(nap)
    assert len(kept) == 1
    assert ralph("resume", "-m", "1").code == 1
    assert alive(nap) == kept


def test_a_run_that_goes_on_is_none_of_anybodys_business(
    live: Start, agent: Agent, ralph: Any, alive: Alive, nap: str, eventually: Any
) -> None:
    run = live("run", "g", "--agent", agent(f"sleep {nap}"))
    run.until("agent_started")
    eventually(lambda: alive(nap))
    assert ralph("clean", "-C", ".").out == "nothing to take away that is older than 14d\n"
    assert alive(nap)
    assert run.process.poll() is None


def test_a_run_that_goes_on_in_a_container_is_none_either(
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
    """Numbers of processes are others there; the home is the same, and who is outside sees all that is inside."""
    apart = [bubblewrap, "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--die-with-parent"]
    words = [sys.executable, "-m", "ralph", "run", "g", "--agent", agent(f"sleep {nap}")]
    (tmp_path / "other").mkdir()
    with subprocess.Popen([*apart, *words], cwd=workspace, env=environment, stderr=subprocess.PIPE) as run:
        try:
            eventually(lambda: alive(nap))
            assert "killed together" not in ralph("ps").out
            done = agent("echo '<response>DONE</response>'", "other-agent")
            assert "was ended" not in ralph("run", "g", "--agent", done, cwd=tmp_path / "other").err
            assert alive(nap)
            for pid in map(int, Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()):
                os.kill(pid, signal.SIGKILL)  # the first process there: all others go with it
            assert run.wait(60)
            ralph("clean")
            left = Path(environment["HOME"], ".local/state/ralph/alive")
            assert not list(left.iterdir())
        finally:
            run.kill()


@pytest.mark.parametrize("how", ["KILL", "STOP"])
@pytest.mark.parametrize("who", ["agent", "check"])
def test_an_agent_that_kills_or_stops_the_keeper_ends_the_run(
    live: Start, agent: Agent, alive: Alive, nap: str, eventually: Any, workspace: Path, how: str, who: str
) -> None:
    (workspace / "attack.sh").write_text(
        f"{ESCAPES.format(nap)}\nenv -i setsid sleep {nap} > /dev/null 2>&1 &\n"
        "pid=$$; while ! grep -q loop-keeper /proc/$pid/comm; do pid=$(ps -o ppid= -p $pid | tr -d ' '); done\n"
        f"kill -{how} $pid\nsleep {nap}\n"
    )
    fake = agent("sh attack.sh" if who == "agent" else "echo hello")
    began = time.monotonic()
    run = live("run", "g", "--check", "sh attack.sh", "--agent", fake)
    assert run.end() == 2
    assert time.monotonic() - began < 60
    finished = run.one("run_finished")
    assert finished["outcome"] == "fatal"
    assert "(loop-keeper) was killed or stopped" in finished["reason"]
    assert not alive(nap), "even those that bear no mark and have lost their parents"


def test_a_stopped_keeper_does_not_hang_ctrl_c(
    live: Start, agent: Agent, alive: Alive, nap: str, eventually: Any
) -> None:
    run = live("run", "g", "--agent", agent(f"trap '' TERM; {ESCAPES.format(nap)}\nsleep {nap}"))
    run.until("agent_started")
    eventually(lambda: len(alive(nap)) > 3)
    keeper = keeper_of(run.process.pid)
    os.kill(keeper, signal.SIGSTOP)
    began = time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # two of one kind may arrive as one
        run.process.send_signal(number)
    run.end()
    assert time.monotonic() - began < 30
    assert not alive(nap)
    assert not Path(f"/proc/{keeper}").exists()


HOLD = "import ctypes, sys, time; print(ctypes.CDLL(None).ptrace(16, int(sys.argv[1]), 0, 0), flush=1); time.sleep(300)"


@pytest.mark.parametrize("by", ["the agent", "somebody else"])
def test_a_keeper_that_a_debugger_holds_does_not_hang_ctrl_c(
    live: Start, agent: Agent, alive: Alive, nap: str, tmp_path: Path, eventually: Any, by: str
) -> None:
    said = tmp_path / "said"
    hold = f"{sys.executable} -c '{HOLD}' $PPID > {said} &" if by == "the agent" else ""
    run = live("run", "g", "--agent", agent(f"trap '' TERM; {hold} sleep {nap}; sleep {nap}"))
    run.until("agent_started")
    words = [sys.executable, "-c", HOLD if not hold else "", str(keeper_of(run.process.pid))]
    with open(said, "a") as file, subprocess.Popen(words, stdout=file) as debugger:
        try:
            eventually(said.read_text)
            if said.read_text() != "0\n":
                pytest.skip("this machine lets nobody debug others: sysctl kernel.yama.ptrace_scope=0")
            began = time.monotonic()
            for number in (signal.SIGINT, signal.SIGTERM):  # two of one kind may arrive as one
                run.process.send_signal(number)
            run.end()
            assert time.monotonic() - began < 8  # it took eleven seconds, or for ever
            assert not alive(nap)
        finally:
            debugger.kill()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_run_that_its_agent_has_stopped_ends_when_it_is_told_to(
    live: Start, agent: Agent, ralph: Any, alive: Alive, nap: str, eventually: Any
) -> None:
    """Ctrl-C does not reach it: the shell has taken the terminal back, and says that it was stopped."""
    run = live("run", "g", "--agent", agent(f"kill -STOP $(ps -o ppid= -p $PPID); sleep {nap}"))
    eventually(lambda: alive(nap) and state_of(run.process.pid) == "T")
    assert ralph("stop", "--now").code == 0
    assert run.end() == 130
    assert run.one("run_finished")["outcome"] == "interrupted"
    assert not alive(nap)


def test_a_run_that_a_debugger_holds_ends_when_it_is_told_to(
    live: Start, agent: Agent, ralph: Any, alive: Alive, nap: str, tmp_path: Path, eventually: Any
) -> None:
    said = tmp_path / "said"
    hold = f"exec {sys.executable} -c '{HOLD}' $(ps -o ppid= -p $PPID) > {said}"
    run = live("run", "g", "--agent", agent(f"sleep {nap} & {hold}"))
    eventually(lambda: said.exists() and said.read_text())
    if said.read_text() != "0\n":
        pytest.skip("this machine lets nobody debug others: sysctl kernel.yama.ptrace_scope=0")
    eventually(lambda: state_of(run.process.pid) == "t")
    assert ralph("stop", "--now").code == 0
    assert run.end() == -signal.SIGKILL
    eventually(lambda: not alive(nap))
    agent("echo hello")
    assert ralph("resume", "--max-iterations", "1").code == 1, "nothing of it is lost"


def test_what_another_run_started_is_not_ended_with_a_dead_one(
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
