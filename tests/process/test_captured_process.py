"""Commands that ralph runs for itself, without a keeper: output, exit code, timeouts and interrupts."""

import fcntl
import os
import resource
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ralph.process.own_process import OwnProcess, kill_running_commands
from ralph.process.program import Command, open_input
from ralph.process.signals import Cancelled, Deadline, Interrupt

ENV = {"PATH": os.environ["PATH"]}


def asked_program(script: str, stdin: bytes = b"", deadline: Deadline | None = None) -> OwnProcess:
    return OwnProcess(Command(argv=("sh", "-c", script), env=ENV, stdin=stdin), deadline=deadline)


@pytest.mark.parametrize("size", [0, 10, 65536, 65537, 3_000_000])
def test_the_program_reads_exactly_its_stdin(size: int) -> None:
    with asked_program("cat", b"x" * size) as cat:
        assert cat.output(30) == b"x" * size
    assert (cat.code, cat.error) == (0, "")


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="only Linux makes pipes smaller")
def test_stdin_arrives_through_small_pipes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = os.pipe

    def small_pipe() -> tuple[int, int]:
        reader, writer = pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        return reader, writer

    monkeypatch.setattr(os, "pipe", small_pipe)
    with asked_program("cat", b"x" * 20_000) as cat:
        assert cat.output(30) == b"x" * 20_000


def test_exit_code_and_stderr_are_kept() -> None:
    with asked_program("echo out; echo trouble >&2; exit 3") as program:
        assert program.output(30) == b"out\n"
    assert (program.code, program.error) == (3, "trouble\n")


def test_a_killed_command_has_a_negative_exit_code() -> None:
    with asked_program("kill -9 $$") as program:
        program.output(30)
    assert program.code == -9


def test_a_long_stderr_does_not_block_the_program() -> None:
    with asked_program("head -c 3000000 /dev/zero | tr '\\0' e >&2; echo done") as program:
        assert program.output(30) == b"done\n"
    assert len(program.error) == 3_000_000


def test_only_the_end_of_an_endless_stderr_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ralph.process.own_process.ERRORS_KEPT", 1 << 20)
    with asked_program("head -c 3000000 /dev/zero | tr '\\0' e >&2; echo last >&2") as flood:
        assert flood.output(60) == b""
    assert flood.error.endswith("elast\n")
    assert len(flood.error) == 1 << 20


def test_a_missing_program_is_an_error() -> None:
    before = len(os.listdir("/dev/fd"))
    with pytest.raises(FileNotFoundError), OwnProcess(Command(argv=("no-such-program",), env=ENV)):
        pass
    assert len(os.listdir("/dev/fd")) == before


def test_a_background_process_that_keeps_stdout_open_is_not_waited_for(tmp_path: Path) -> None:
    """The program's own output is complete, and the background process keeps running."""
    os.mkfifo(tmp_path / "pipe")
    said = "head -c 60000 /dev/zero"
    with asked_program(f"(read end < {tmp_path}/pipe; touch {tmp_path}/ended) & {said}; exit 3") as program:
        assert program.output(600) == bytes(60_000)
    assert program.code == 3
    (tmp_path / "pipe").write_text("\n")
    while not (tmp_path / "ended").exists():
        time.sleep(0.01)


def test_output_of_a_background_process_is_ignored_after_the_exit() -> None:
    with asked_program("echo $$; yes & exit 0") as program:
        group = int(program.read().split()[0])
        program.output(600, latest=1000)
    assert program.code == 0
    assert not is_alive(group)


def test_a_timeout_kills_the_program_and_its_group() -> None:
    with asked_program("sleep 600 & echo $$; sleep 600") as program:
        group = int(program.read())
        with pytest.raises(TimeoutError):
            program.output(0.1)
    assert program.code == -15
    assert not is_alive(group)


def test_leaving_the_block_early_kills_the_program() -> None:
    before = len(os.listdir("/dev/fd"))
    with asked_program("trap 'exit 7' TERM; yes") as program:
        assert program.read().startswith(b"y\n")
    assert program.code in (7, -13, -15)
    assert len(os.listdir("/dev/fd")) == before


def test_a_ctrl_c_while_the_program_is_being_ended_leaves_nothing_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C may arrive at any instruction, even right after SIGTERM was sent."""
    killpg = os.killpg

    def interrupted(group: int, number: int) -> None:
        killpg(group, number)
        if number == signal.SIGTERM:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "killpg", interrupted)
    with pytest.raises(KeyboardInterrupt), asked_program("trap '' TERM; echo $$; while :; do sleep 600; done") as deaf:
        group = int(deaf.read())
    assert not is_alive(group)


def is_alive(group: int) -> bool:
    """Return whether a process of the group keeps running. Zombies don't count: their new parent may not have waited
    for them yet."""
    for _ in range(3000):
        if not any(state != "Z" for state in states_in(group)):
            return False
        time.sleep(0.01)
    return True


def states_in(group: int) -> Iterator[str]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, its_group, *_ = stat.read_text().rpartition(")")[2].split()
            if int(its_group) == group:
                yield state


def test_programs_that_other_threads_wait_for_can_be_killed(tmp_path: Path) -> None:
    def ask(number: int) -> int:
        with asked_program(f"trap '' TERM HUP; echo $$ > {tmp_path}/{number}; cat {tmp_path}/pipe") as it:
            it.output(600)
        return it.code

    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(3) as threads:
        asked = [threads.submit(ask, number) for number in range(3)]
        while not all((tmp_path / str(number)).exists() for number in range(3)):
            time.sleep(0.01)
        began = time.monotonic()
        kill_running_commands()
        assert [one.result(60) for one in asked] == [-signal.SIGKILL] * 3
    assert time.monotonic() - began < 60, "it would have been ten minutes"


def test_a_run_without_time_left_ends_its_command_and_starts_no_other() -> None:
    with Interrupt(announce=lambda: None) as interrupt:
        deadline = Deadline(interrupt, grace=0.1)
        with asked_program("echo $$; sleep 600", deadline=deadline) as program:
            group = int(program.read())
            interrupt.raise_to(1, "test")
            with pytest.raises(Cancelled):
                program.output(600)
        assert not is_alive(group)
        with pytest.raises(Cancelled), asked_program("true", deadline=deadline):
            pass


def test_a_ctrl_c_while_the_program_starts_does_not_leave_it_running(tmp_path: Path) -> None:
    # The program itself sends the interrupt, before ralph knows that it has started.
    script = f"echo $$ > {tmp_path}/pid; trap '' INT HUP; kill -INT {os.getpid()}; sleep 600"
    for _ in range(20):
        with pytest.raises(KeyboardInterrupt), asked_program(script) as program:
            program.output(60)
        assert not is_alive(int((tmp_path / "pid").read_text()))


def test_an_input_that_does_not_fit_on_the_disk_is_an_error() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError):
            open_input(b"x" * (3 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
