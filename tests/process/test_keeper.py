"""No process of a turn survives, however it tries to escape, and however the turn or ralph itself ends."""

import errno
import os
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from ralph.errors import UserError
from ralph.process import keeper as keeper_module
from ralph.process import keeper_program
from ralph.process.descendants import RunningProcess, can_signal, descendants_of
from ralph.process.keeper import Ended, Exited, Keeper, KeeperLost
from ralph.process.kept_process import KeptProcess, Limits
from ralph.process.program import Command
from ralph.process.signals import Interrupt

QUICK = Limits(stop=0.2, leftovers=0.2)

ESCAPES = {
    "in the background": "sleep {n} &",
    "in another group": "set -m; sleep {n} &",
    "in another session": "setsid sleep {n} &",
    "a daemon": "(setsid sh -c 'sleep {n} & exec sleep {n}' &) ; (setsid sh -c '(sleep {n} &)' )",
    "deaf to SIGTERM": "trap '' TERM HUP INT; setsid sleep {n} & sleep {n} & trap - TERM HUP INT",
    "with stdout closed": "sleep {n} >/dev/null 2>&1 &",
    "with everything closed": "sleep {n} <&- >&- 2>&- &",
    "without an environment": "env -i setsid sleep {n} &",
    "stopped": "sleep {n} & kill -STOP $!",
    "deep below": 'sh -c \'sh -c "sh -c \\"setsid sleep {n}; :\\"; :" ; :\' &',
    "born of SIGTERM": "(trap 'setsid sleep {n} & exit' TERM; sleep {n} & wait) &",
}


@pytest.fixture(params=[*ESCAPES.values()], ids=[*ESCAPES])
def escape(request: pytest.FixtureRequest, mark) -> str:
    return str(request.param).format(n=mark.seconds)


def test_processes_that_a_turn_leaves_are_killed(keeper: Keeper, shell, mark, escape: str) -> None:
    lines: list[bytes] = []
    ended = KeptProcess(shell(f"{escape}\necho ready"), keeper=keeper, limits=QUICK).stream(lines.extend)
    assert lines == [b"ready"]
    assert (ended.code, ended.ended_by) == (0, "")
    assert mark.bearers() == []


def test_a_second_interrupt_kills_all_that_the_turn_started(keeper: Keeper, shell, mark, escape: str) -> None:
    with Interrupt(announce=lambda: None) as interrupt:
        ended = KeptProcess(
            shell(f"{escape}\necho ready; wait; sleep {mark.seconds}"), keeper=keeper, interrupt=interrupt, limits=QUICK
        ).stream(lambda _: interrupt.raise_to(2, "test"))
    assert ended.ended_by == "interrupt"
    assert mark.bearers() == []


def test_a_timeout_kills_all_that_the_turn_started(keeper: Keeper, shell, mark, escape: str) -> None:
    limits = Limits(turn=0.1, stop=0.2)
    ended = KeptProcess(shell(f"{escape}\nwait; sleep {mark.seconds}"), keeper=keeper, limits=limits).stream(
        lambda _: None
    )
    assert ended.ended_by == "turn-timeout"
    assert mark.bearers() == []


def test_an_error_in_the_listener_kills_the_program_first(keeper: Keeper, shell, mark) -> None:
    def refuse(line: bytes) -> None:
        raise ValueError(line)

    with pytest.raises(ValueError, match="ready"):
        KeptProcess(
            shell(f"setsid sleep {mark.seconds} & echo ready; exec sleep {mark.seconds}"), keeper=keeper
        ).stream(refuse)
    assert mark.bearers() == []
    assert KeptProcess(shell("exit 5"), keeper=keeper).stream(refuse).code == 5


def test_an_error_in_on_start_kills_the_program(keeper: Keeper, shell, mark) -> None:
    def refuse(pid: int) -> None:
        raise ValueError("while it starts")

    command = Command(argv=("sleep", mark.seconds), cwd="/", env={"PATH": os.environ["PATH"]})
    with pytest.raises(ValueError, match="while it starts"):
        KeptProcess(command, keeper=keeper, on_start=refuse).stream(print)
    assert mark.bearers() == []
    assert KeptProcess(shell("exit 5"), keeper=keeper).stream(print).code == 5


def _spawned(keeper: Keeper, command: Command) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    keeper.spawn(command.argv[0], command, [nothing] * 3)
    os.close(nothing)


def _heard(keeper: Keeper, kind: type) -> object:
    """Return the next report that is not about an earlier request; check its type."""
    while (report := keeper.receive()) is None:
        pass
    assert isinstance(report, kind)
    return report


def test_an_unread_report_about_one_program_is_not_taken_for_the_next_one(keeper: Keeper, shell) -> None:
    """A process that could not be killed may end later, and a kill request may cross the report that all is over."""
    _spawned(keeper, shell("exit 0"))
    while descendants_of(keeper.pid):
        pass
    keeper.kill_all(0.0)
    keeper.kill_all(0.0)
    _spawned(keeper, shell("exit 3"))
    exited = _heard(keeper, Exited)
    assert isinstance(exited, Exited)
    assert exited.code == 3
    keeper.kill_all(0.0)
    _heard(keeper, Ended)


def test_a_kill_request_after_a_failed_start_does_not_end_the_next_program(
    keeper: Keeper, shell, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError):
        _spawned(keeper, replace(shell("exit 0"), cwd=str(tmp_path / "nowhere")))
    keeper.kill_all(0.0)
    _spawned(keeper, shell("exit 3"))
    _heard(keeper, Exited)


def test_closing_the_keeper_kills_the_running_program(shell, mark) -> None:
    command = shell(f"setsid sleep {mark.seconds} & echo ready; exec sleep {mark.seconds}", RALPH_RUN_ID=mark.seconds)
    reader, writer = os.pipe()
    with Keeper.start() as keeper, open(reader, "rb") as output, open(writer) as theirs:
        keeper.spawn(command.argv[0], command, [theirs.fileno()] * 3)
        assert output.readline() == b"ready\n"
        assert mark.bearers()
    assert mark.bearers() == []


@pytest.mark.parametrize(("patience", "code"), [(60.0, 7), (0.0, -15)])
def test_term_delay_lets_the_program_end_by_itself(keeper: Keeper, shell, tmp_path, patience: float, code: int) -> None:
    os.mkfifo(tmp_path / "go")
    command = shell(f"echo ready; read word < {tmp_path}/go; exit 7")
    reader, writer = os.pipe()
    with open(reader, "rb") as output, open(writer) as theirs:
        keeper.spawn(command.argv[0], replace(command, term_delay=patience), [theirs.fileno()] * 3)
        assert output.readline() == b"ready\n"
        keeper.kill_all(60.0)
        if patience:
            (tmp_path / "go").write_text("on\n")
        exited = keeper.receive()
        assert isinstance(exited, Exited)
        assert exited.code == code
        assert isinstance(keeper.receive(), Ended)


def test_kept_children_outlive_the_turn_and_the_keeper(shell, mark) -> None:
    with Keeper.start() as keeper:
        keeping = shell(f"setsid sleep {mark.seconds} >/dev/null 2>&1 & sleep {mark.seconds} >/dev/null 2>&1 &")
        ended = KeptProcess(keeping, keeper=keeper, keep_children=True).stream(print)
        assert (ended.code, ended.leftovers) == (0, 0)
        assert len(mark.bearers()) == 2
        KeptProcess(shell(f"sleep {mark.seconds} &"), keeper=keeper, limits=QUICK).stream(print)
        assert len(mark.bearers()) == 2
    assert len(mark.bearers()) == 2


def test_no_children_are_kept_after_a_timeout(keeper: Keeper, shell, mark) -> None:
    command = shell(f"setsid sleep {mark.seconds} & exec sleep {mark.seconds}")
    KeptProcess(command, keeper=keeper, limits=Limits(turn=0.1, stop=0.2), keep_children=True).stream(print)
    assert mark.bearers() == []


def test_when_the_keeper_is_killed_everything_that_it_started_is_killed(shell, mark) -> None:
    command = shell(f"setsid sleep {mark.seconds} & echo $PPID; exec sleep {mark.seconds}", RALPH_RUN_ID=mark.seconds)
    with Keeper.start() as keeper:
        with pytest.raises(UserError, match=r"was killed; ralph killed what it had started: [12] process"):
            KeptProcess(command, keeper=keeper).stream(lambda lines: os.kill(int(lines[0]), signal.SIGKILL))
        assert mark.bearers() == []
        assert KeptProcess(shell("exit 7"), keeper=keeper).stream(print).code == 7, "the new keeper works"


def test_the_agent_dies_with_the_keeper_by_the_kernel(mark) -> None:
    """If ralph is killed together with its keeper, nobody is left to kill the agent."""
    script = f"""
        import os, signal, time
        from ralph.process.keeper import Keeper
        from ralph.process.program import Command
        keeper = Keeper.start()
        nothing = os.open(os.devnull, os.O_RDWR)
        keeper.spawn("/bin/sleep", Command(argv=("sleep", "{mark.seconds}"), cwd="/", env={{}}), [nothing] * 3)
        os.kill(keeper.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False).returncode == -signal.SIGKILL
    mark.wait_until_gone()


def test_a_keeper_that_is_killed_while_it_closes_leaves_nothing_running(
    shell, mark, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = shell(f"setsid sleep {mark.seconds} & echo ready; exec sleep {mark.seconds}", RALPH_RUN_ID=mark.seconds)
    reader, writer = os.pipe()
    keeper = Keeper.start()
    with open(reader, "rb") as output, open(writer) as theirs:
        keeper.spawn(command.argv[0], command, [theirs.fileno()] * 3)
        assert output.readline() == b"ready\n"
    wait = keeper._wait_for_exit
    monkeypatch.setattr(keeper, "_wait_for_exit", lambda: os.kill(keeper.pid, signal.SIGKILL) or wait())
    keeper.close()
    assert mark.bearers() == []


def test_a_keeper_that_cannot_be_replaced_is_an_error(shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with Keeper.start() as keeper:
        monkeypatch.setattr(keeper_module, "execute_keeper", refuse)
        with pytest.raises(UserError, match="cannot start a process"):
            KeptProcess(shell("kill -9 $PPID; sleep 30"), keeper=keeper).stream(print)


def test_processes_that_cannot_be_killed_are_named(shell, mark, forked_keeper, monkeypatch) -> None:
    monkeypatch.setattr(keeper_program, "kill", lambda processes: None)
    monkeypatch.setattr(keeper_program, "terminate", lambda processes, asked: None)
    monkeypatch.setattr(keeper_program, "KILL_TIMEOUT", 0.0)
    with Keeper.start() as keeper:
        KeptProcess(shell(f"sleep {mark.seconds} &"), keeper=keeper, limits=Limits(leftovers=0.05)).stream(print)
        assert list(keeper.survivors) == mark.bearers() != []


def test_processes_of_other_users_are_not_waited_for(shell, mark, forked_keeper, monkeypatch) -> None:
    """An agent may start processes with `sudo`: ralph cannot signal them."""
    monkeypatch.setattr(keeper_program, "kill", lambda processes: None)
    monkeypatch.setattr(keeper_program, "terminate", lambda processes, asked: None)
    monkeypatch.setattr(keeper_program, "can_signal", lambda process: False)
    monkeypatch.setattr(keeper_program, "KILL_TIMEOUT", 10_000.0)
    monkeypatch.setattr(keeper_program, "SHUTDOWN_GRACE", 10_000.0)
    with Keeper.start() as keeper:
        ended = KeptProcess(shell(f"sleep {mark.seconds} &"), keeper=keeper, limits=Limits(leftovers=10_000.0)).stream(
            print
        )
        assert list(keeper.survivors) == mark.bearers() != []
        assert ended.leftovers == 0


def test_in_a_foreign_program_only_marked_processes_of_a_killed_keeper_are_killed(shell, mark) -> None:
    with Keeper.start() as keeper, subprocess.Popen(["sleep", mark.seconds]) as theirs:
        with pytest.raises(UserError, match="was killed"):
            KeptProcess(
                shell(
                    f"setsid sleep {mark.seconds} & echo $PPID; exec sleep {mark.seconds}", RALPH_RUN_ID=mark.seconds
                ),
                keeper=keeper,
            ).stream(lambda lines: os.kill(int(lines[0]), signal.SIGKILL))
        assert mark.bearers() == [theirs.pid]
        theirs.kill()


def test_a_request_to_a_dead_keeper_is_an_error(keeper: Keeper, shell) -> None:
    os.kill(_pid_of(keeper, shell), signal.SIGKILL)
    with pytest.raises(KeeperLost):
        keeper.receive()


def _pid_of(keeper: Keeper, shell) -> int:
    lines: list[bytes] = []
    KeptProcess(shell("echo $PPID"), keeper=keeper).stream(lines.extend)
    return int(lines[0])


def test_only_root_can_signal_processes_of_other_users() -> None:
    theirs, ours = (RunningProcess(pid, 0, 0, b"") for pid in (1, os.getpid()))
    assert can_signal(ours)
    assert can_signal(theirs) == (os.geteuid() == 0)


DRIVER = """
import os, signal, sys
from ralph.process.signals import Interrupt
from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess, Limits
from ralph.process.program import Command

keeper = Keeper.start()

def on_lines(lines):
    for line in lines:
        print(line.decode(), os.getpid(), flush=True)
        exec(os.environ.get("ON_LINE", ""))

env = {**os.environ, "TEST_MARK": os.environ["MARK"]}
command = Command(argv=("/bin/sh", "-c", sys.argv[1]), cwd=os.getcwd(), env=env)
with Interrupt() as interrupt:
    limits = Limits(grace=60, stop=0.2)
    ended = KeptProcess(command, keeper=keeper, interrupt=interrupt, limits=limits).stream(on_lines)
print(ended.code, ended.ended_by, flush=True)
"""


@pytest.fixture
def ralph(tmp_path: Path, mark) -> Callable[..., "subprocess.Popen[str]"]:
    """Return a function that starts a program which runs one turn, as ralph does, and repeats the agent's lines."""

    def start(script: str, **env: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", DRIVER, script],
            cwd=tmp_path,
            env={**os.environ, "MARK": mark.seconds, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def test_nothing_survives_a_ralph_that_is_killed(ralph, mark, escape: str) -> None:
    with ralph(f"{escape}\necho ready; exec sleep {mark.seconds}") as process:
        assert process.stdout.readline().startswith("ready")
        process.kill()
    mark.wait_until_gone()


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)", "1 / 0", "os.abort()"])
def test_nothing_survives_a_ralph_that_crashes(ralph, mark, end: str) -> None:
    with ralph(f"setsid sleep {mark.seconds} & echo ready; exec sleep {mark.seconds}", ON_LINE=end) as process:
        process.communicate()
    mark.wait_until_gone()


def test_nothing_survives_a_ralph_that_exits_without_reading_the_last_report(shell, mark) -> None:
    command = shell(f"setsid sleep {mark.seconds} & exit 1")
    pid = os.fork()
    if pid == 0:
        keeper = Keeper.start()
        nothing = os.open(os.devnull, os.O_RDWR)
        keeper.spawn(command.argv[0], command, [nothing] * 3)
        select.select([keeper], [], [])  # the exit was reported, but is not read
        os._exit(0)
    os.waitpid(pid, 0)
    mark.wait_until_gone()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux tells of the death of a process that is no child")
def test_nothing_survives_although_a_forked_copy_of_ralph_is_running(shell, mark) -> None:
    command = shell(f"exec sleep {mark.seconds}")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        keeper = Keeper.start()
        nothing = os.open(os.devnull, os.O_RDWR)
        keeper.spawn(command.argv[0], command, [nothing] * 3)
        copy = os.fork()  # like `multiprocessing`
        if copy == 0:
            signal.pause()
        os.write(writer, str(copy).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    copy = int(os.read(reader, 100))
    try:
        mark.wait_until_gone()
    finally:
        os.kill(copy, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("signals", [[signal.SIGHUP], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM, signal.SIGINT]])
def test_a_second_signal_or_a_closed_terminal_kills_everything_at_once(ralph, mark, signals: list[int]) -> None:
    with ralph(f"setsid sleep {mark.seconds} & echo ready; exec sleep {mark.seconds}") as process:
        assert process.stdout.readline().startswith("ready")
        said = b""
        for number in signals:
            os.killpg(process.pid, number)  # to the whole group, like a terminal
            said = said or os.read(process.stderr.fileno(), 100)
        assert said == b"Received signal, shutting down...\n"
        assert process.stdout.readline() == "-15 interrupt\n"
        assert mark.bearers() == []


def test_the_first_signal_lets_the_agent_finish(ralph, mark, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    with ralph(f"trap 'echo hit' INT TERM HUP; echo ready; read answer < go; sleep {mark.seconds} & exit 4") as process:
        assert process.stdout.readline().startswith("ready")
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr.readline() == "Received signal, shutting down...\n"
        (tmp_path / "go").write_text("go\n")
        assert process.stdout.readline() == "4 \n"
        assert mark.bearers() == []


class Noted:
    """Spares processes that wrote their pids to files, and expects those whose script contains `spared`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def pids(self) -> list[int]:
        return [int(pid) for path in self._folder.glob("spared*") for pid in path.read_text().split()]

    def expects(self, pid: int) -> bool:
        return b"spared" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_spared_processes_outlive_their_turn_but_not_the_keeper(shell, mark, tmp_path: Path) -> None:
    spared = f"setsid sh -c 'echo $$ > spared; sleep {mark.seconds}; :' >/dev/null 2>&1 &"
    with Keeper.start() as keeper:
        keeper.spared = Noted(tmp_path)
        script = f"{spared} sleep {mark.seconds} & until [ -s spared ]; do :; done"
        assert KeptProcess(shell(script), keeper=keeper, limits=QUICK).stream(print).code == 0
        (first,) = keeper.spared.pids()
        assert {first, *(one.pid for one in descendants_of(first))} == set(mark.bearers()), (
            "what is not spared is ended"
        )
        ended = KeptProcess(shell("sleep 600"), keeper=keeper, limits=Limits(turn=0.1, stop=0.2)).stream(print)
        assert (ended.ended_by, mark.bearers() != []) == ("turn-timeout", True)
    assert mark.bearers() == []


def test_a_background_process_gets_time_to_become_a_spared_one(keeper: Keeper, shell, mark, tmp_path: Path) -> None:
    keeper.spared = Noted(tmp_path)
    script = f"sh -c 'sleep 1; echo $$ > spared; exec sleep {mark.seconds}' >/dev/null 2>&1 &"
    ended = KeptProcess(shell(script), keeper=keeper).stream(print)
    assert (ended.code, ended.leftovers, len(mark.bearers())) == (0, 0, 1), "it was given time to say who it is"


def test_kept_children_of_an_earlier_turn_are_not_waited_for(keeper: Keeper, shell, mark, tmp_path: Path) -> None:
    keeper.spared = Noted(tmp_path)
    KeptProcess(shell(f"sleep {mark.seconds} >/dev/null 2>&1 &"), keeper=keeper, keep_children=True).stream(print)
    assert mark.bearers() != []
    assert not keeper.is_unsettled(late=False)


def test_the_parent_of_a_spared_process_is_spared_too(keeper: Keeper, shell, mark, tmp_path: Path) -> None:
    keeper.spared = Noted(tmp_path)
    spared = f"sh -c 'echo $$ > spared; exec sleep {mark.seconds}'; sleep {mark.seconds}"
    ended = KeptProcess(shell(f"({spared}) >/dev/null 2>&1 & until [ -s spared ]; do :; done"), keeper=keeper).stream(
        print
    )
    assert (ended.code, ended.leftovers, len(mark.bearers())) == (0, 0, 2)
    keeper.spared = None
    KeptProcess(shell("true"), keeper=keeper, limits=QUICK).stream(print)
    assert mark.bearers() == []


def test_a_timeout_ends_the_turn_although_a_child_of_it_is_spared(keeper: Keeper, shell, mark, tmp_path: Path) -> None:
    keeper.spared = Noted(tmp_path)
    script = f"sh -c 'echo $$ > spared; exec sleep {mark.seconds}'; sleep {mark.seconds}"
    ended = KeptProcess(shell(script), keeper=keeper, limits=Limits(turn=3.0, stop=0.2)).stream(print)
    assert (ended.ended_by, mark.bearers()) == ("turn-timeout", keeper.spared.pids())
