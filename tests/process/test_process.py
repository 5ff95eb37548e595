import gc
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess, Limits, ask_program
from ralph.process.program import CannotStart, Command, ProgramMissing, find_program
from ralph.process.signals import Interrupt
from ralph.process.streams import LogFile


def lines_of(keeper: Keeper, command: Command) -> list[bytes]:
    lines: list[bytes] = []
    KeptProcess(command, keeper=keeper).stream(lines.extend)
    return lines


def test_stdout_stderr_and_exit_code_are_separate(keeper: Keeper, shell) -> None:
    lines: list[bytes] = []
    started: list[int] = []
    script = "echo $$; echo two; echo oops >&2; printf three; exit 3"
    ended = KeptProcess(shell(script), keeper=keeper, on_start=started.append).stream(lines.extend)
    assert lines == [b"%d" % started[0], b"two", b"three"]
    assert (ended.code, ended.stderr, ended.ended_by, ended.leftovers) == (3, "oops\n", "", 0)
    assert 0 < ended.duration < 60


def test_a_signal_gives_a_negative_exit_code(keeper: Keeper, shell) -> None:
    assert KeptProcess(shell("kill -SEGV $$"), keeper=keeper).stream(print).code == -signal.SIGSEGV


@pytest.mark.parametrize("prompt", [b"", b"one line", "é😀\r\n\0\xff".encode("latin-1", "replace"), b"x" * 5_000_000])
def test_the_prompt_arrives_byte_for_byte_and_then_ends(keeper: Keeper, shell, tmp_path: Path, prompt: bytes) -> None:
    KeptProcess(shell("cat > got; cat >> got", prompt), keeper=keeper).stream(print)
    assert (tmp_path / "got").read_bytes() == prompt


def test_a_prompt_may_stay_unread(keeper: Keeper, shell) -> None:
    assert KeptProcess(shell("exit 0", b"x" * 5_000_000), keeper=keeper).stream(print).code == 0


def test_a_program_runs_in_its_folder_session_and_environment(keeper: Keeper, python, tmp_path) -> None:
    script = "import os; print(os.getcwd(), os.getsid(0) == os.getpid() == os.getpgid(0), sorted(os.environ))"
    (line,) = lines_of(keeper, python(script))
    assert line.decode() == f"{tmp_path} True ['LC_CTYPE', 'PATH', 'TEST_MARK']"


def test_a_program_inherits_no_signal_mask_no_ignored_signal_and_no_descriptor(keeper: Keeper) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Keeper.start() as deaf:
            command = Command(argv=("cat", "/proc/self/status"), cwd="/", env={"PATH": os.environ["PATH"]})
            status = dict(line.split(b":\t", 1) for line in lines_of(deaf, command))
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    assert int(status[b"SigBlk"], 16) == 0
    assert int(status[b"SigIgn"], 16) & 0x7FFFFFFF == 0  # without two that the C library uses itself
    command = Command(argv=("ls", "/proc/self/fd"), cwd="/", env={"PATH": os.environ["PATH"]})
    assert lines_of(keeper, command) == [b"0", b"1", b"2", b"3"]  # the last one is the listing itself


def test_the_turn_ends_with_the_exit_and_not_with_the_output(keeper: Keeper, shell, mark) -> None:
    lines: list[bytes] = []
    ended = KeptProcess(shell(f"sleep {mark.seconds} & echo out"), keeper=keeper).stream(lines.extend)
    assert (ended.code, ended.leftovers, lines) == (0, 1, [b"out"])
    assert ended.duration < 60


@pytest.mark.skipif(not shutil.which("bash"), reason="process substitution is a thing of bash")
def test_output_that_passes_through_a_tee_still_arrives(keeper: Keeper, tmp_path: Path) -> None:
    script = "exec > >(read line; echo $line; cat); echo one; echo two"
    command = Command(argv=("bash", "-c", script), cwd=str(tmp_path), env={"PATH": os.environ["PATH"]})
    assert lines_of(keeper, command) == [b"one", b"two"]


def test_a_full_pipe_is_read_after_the_exit(keeper: Keeper, python) -> None:
    lines = lines_of(keeper, python("import os; os.write(1, b'x' * 900_000); os.write(1, b'\\nlast'); os._exit(0)"))
    assert [len(line) for line in lines] == [900_000, 4]


def test_a_program_that_closes_its_output_is_waited_for(keeper: Keeper, shell, tmp_path: Path) -> None:
    ended = KeptProcess(shell("exec >&- 2>&-; sleep 0.05; echo done > file; exit 2"), keeper=keeper).stream(print)
    assert ended.code == 2
    assert (tmp_path / "file").exists()


TIMEOUTS = {
    "turn-timeout": Limits(turn=0.1),
    "idle-timeout": Limits(idle=0.1),
    "max-time": Limits(turn=50, idle=50, total=0.1),
}


@pytest.mark.parametrize("reason", TIMEOUTS)
def test_each_time_limit_ends_the_turn_and_is_named(keeper: Keeper, shell, mark, reason: str) -> None:
    ended = KeptProcess(shell(f"exec sleep {mark.seconds}"), keeper=keeper, limits=TIMEOUTS[reason]).stream(print)
    assert (ended.code, ended.ended_by) == (-signal.SIGTERM, reason)
    assert mark.bearers() == []


def test_the_limit_that_was_reached_first_is_named(keeper: Keeper, shell) -> None:
    """Both limits have passed by the time that ralph looks."""
    limits = Limits(turn=0.2, idle=0.1)
    ended = KeptProcess(shell("sleep 3456"), keeper=keeper, limits=limits, on_start=lambda _: time.sleep(0.3)).stream(
        print
    )
    assert ended.ended_by == "idle-timeout"


def test_a_silent_program_is_ended_only_if_it_is_idle(keeper: Keeper, shell) -> None:
    answers = iter([False, False, True])
    how = {"limits": Limits(idle=0.05), "is_idle": lambda: next(answers)}
    ended = KeptProcess(shell("sleep 3456"), keeper=keeper, **how).stream(print)
    assert (ended.ended_by, [*answers]) == ("idle-timeout", [])
    assert ended.duration >= 0.15


@pytest.mark.parametrize("stream", [1, 2])
def test_output_on_either_stream_restarts_the_idle_timeout(keeper: Keeper, shell, stream: int) -> None:
    script = f"for n in 1 2 3 4 5 6 7 8 9 10; do sleep 0.4; echo $n >&{stream}; done"
    ended = KeptProcess(shell(script), keeper=keeper, limits=Limits(idle=3.5)).stream(lambda _: None)
    assert (ended.code, ended.ended_by) == (0, "")


def test_a_program_that_ignores_sigterm_is_killed(keeper: Keeper, shell, mark) -> None:
    with Interrupt(announce=lambda: None) as interrupt:
        ended = KeptProcess(
            shell(f"trap '' TERM; echo ready; exec sleep {mark.seconds}"),
            keeper=keeper,
            interrupt=interrupt,
            limits=Limits(stop=0.1),
        ).stream(lambda _: interrupt.raise_to(2, "test"))
    assert (ended.code, ended.ended_by) == (-signal.SIGKILL, "interrupt")


def test_a_program_may_clean_up_on_sigterm(keeper: Keeper, shell, mark) -> None:
    lines: list[bytes] = []

    def on_lines(some: list[bytes]) -> None:
        lines.extend(some)
        interrupt.raise_to(2, "test")

    script = f"trap 'kill $!; echo bye; exit 9' TERM; sleep {mark.seconds} & echo ready; wait"
    with Interrupt(announce=lambda: None) as interrupt:
        ended = KeptProcess(shell(script), keeper=keeper, interrupt=interrupt).stream(on_lines)
    assert (ended.code, ended.ended_by, lines) == (9, "interrupt", [b"ready", b"bye"])


def test_the_first_interrupt_lets_the_program_finish(keeper: Keeper, shell, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")

    def on_lines(_: list[bytes]) -> None:
        interrupt.raise_to(1, "test")
        (tmp_path / "go").write_text("go\n")

    with Interrupt(announce=lambda: None) as interrupt:
        ended = KeptProcess(shell("echo ready; read x < go; exit 6"), keeper=keeper, interrupt=interrupt).stream(
            on_lines
        )
    assert (ended.code, ended.ended_by) == (6, "")


def test_the_time_to_finish_after_an_interrupt_is_limited(keeper: Keeper, shell, mark) -> None:
    with Interrupt(announce=lambda: None) as interrupt:
        ended = KeptProcess(
            shell(f"echo ready; exec sleep {mark.seconds}"),
            keeper=keeper,
            interrupt=interrupt,
            limits=Limits(grace=0.1),
        ).stream(lambda _: interrupt.raise_to(1, "test"))
    assert ended.ended_by == "interrupt"
    assert mark.bearers() == []


def test_an_interrupt_that_came_before_the_start_counts(keeper: Keeper, shell, mark) -> None:
    with Interrupt(announce=lambda: None) as interrupt:
        interrupt.raise_to(2, "test")
        interrupt.acknowledge()
        ended = KeptProcess(
            shell(f"exec sleep {mark.seconds}"), keeper=keeper, interrupt=interrupt, limits=Limits(turn=20)
        ).stream(print)
    assert ended.ended_by == "interrupt"


def test_after_two_signals_the_rest_of_a_flood_is_not_parsed(keeper: Keeper, shell, tmp_path: Path) -> None:
    calls: list[int] = []

    def listen(lines: list[bytes]) -> None:
        calls.append(len(lines))
        for _ in range(2 if len(calls) == 1 else 0):
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.05)

    with Interrupt() as interrupt, LogFile(str(tmp_path / "log")) as log:
        ended = KeptProcess(shell("trap '' TERM; exec yes"), keeper=keeper, interrupt=interrupt).stream(
            listen, stdout_log=log
        )
    assert ended.ended_by == "interrupt"
    assert len(calls) <= 4
    assert (tmp_path / "log").stat().st_size > sum(calls) * len("y\n"), "the log has it all the same"


def test_tick_is_called_a_second_after_an_event_and_again_on_request(keeper: Keeper, shell, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    ticks: list[int] = []

    def tick() -> bool:
        ticks.append(1)
        if len(ticks) == 2:
            (tmp_path / "go").write_text("go\n")
        return len(ticks) < 2

    assert KeptProcess(shell("read x < go; exit 4"), keeper=keeper, tick=tick).stream(print).code == 4
    assert ticks == [1, 1]


def test_a_due_tick_does_not_disturb_the_end_after_an_error(keeper: Keeper, shell, mark) -> None:
    """The program takes longer to end than the tick to become due."""

    def fail(lines: list[bytes]) -> None:
        raise ZeroDivisionError

    script = f"trap '' TERM; echo x; sleep {mark.seconds}; sleep {mark.seconds}"
    with pytest.raises(ZeroDivisionError):
        KeptProcess(shell(script), keeper=keeper, limits=Limits(stop=1.2), tick=lambda: True).stream(fail)
    assert not mark.bearers()


def test_nothing_wakes_up_while_the_program_is_silent(keeper: Keeper, shell) -> None:
    ticks: list[int] = []
    woken: list[int] = []
    script = "sleep 2.5; echo something"
    KeptProcess(shell(script), keeper=keeper, tick=lambda: bool(ticks.append(1))).stream(
        lambda _: woken.append(len(ticks))
    )
    assert woken in ([1], [0]), "on a busy machine both have come when somebody looks"


def test_a_nudge_wakes_a_sleeping_run(keeper: Keeper, shell, tmp_path: Path) -> None:
    doors = [tmp_path / "first", tmp_path / "second"]
    for door in doors:
        os.mkfifo(door)

    def tick() -> bool:
        doors.pop(0).write_text("open\n")
        return False

    script = f"read x < first; kill -URG {os.getpid()}; read x < second; exit 4"
    with Interrupt(announce=lambda: None) as interrupt:
        assert KeptProcess(shell(script), keeper=keeper, tick=tick, interrupt=interrupt).stream(print).code == 4
    assert (interrupt.level, doors) == (0, [])


def test_both_streams_are_logged(keeper: Keeper, shell, tmp_path: Path) -> None:
    with LogFile(str(tmp_path / "out")) as out, LogFile(str(tmp_path / "err")) as err:
        KeptProcess(shell("echo a; echo b >&2"), keeper=keeper).stream(lambda _: None, stdout_log=out, stderr_log=err)
    assert (tmp_path / "out").read_bytes() == b"a\n"
    assert (tmp_path / "err").read_bytes() == b"b\n"


def test_the_logs_of_a_silent_program_exist_while_it_runs(keeper: Keeper, shell, tmp_path: Path) -> None:
    paths = [tmp_path / "out", tmp_path / "err"]
    found: list[bool] = []
    with LogFile(str(paths[0])) as out, LogFile(str(paths[1])) as err:
        process = KeptProcess(
            shell(":"), keeper=keeper, on_start=lambda _: found.extend(path.exists() for path in paths)
        )
        process.stream(print, stdout_log=out, stderr_log=err)
    assert found == [True, True]


def test_keys_in_stderr_are_redacted(keeper: Keeper, shell) -> None:
    ended = KeptProcess(shell("echo ghp_AbCdEfGhIjKlMnOpQrStUvWxYz0123456789 >&2"), keeper=keeper).stream(print)
    assert ended.stderr == "[redacted]\n"


def test_a_hundred_turns_leave_no_descriptor_open(keeper: Keeper, shell) -> None:
    def turn() -> tuple[int, int]:
        (pid,) = lines_of(keeper, shell("echo $PPID", b"prompt"))
        with pytest.raises(CannotStart):
            KeptProcess(Command(argv=("/nowhere",), cwd="/", env={}), keeper=keeper).stream(print)
        return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{int(pid)}/fd"))

    gc.collect()  # descriptors of earlier tests
    (ours, keepers), (ours_later, keepers_later) = turn(), [turn() for _ in range(100)][-1]
    assert ours_later == ours
    assert keepers_later <= keepers + 3, "the keeper closes the three of a turn after its report"


class TestPrograms:
    def test_a_name_is_looked_up_on_the_path_of_the_command(self, tmp_path: Path) -> None:
        program = tmp_path / "tool"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        assert find_program("tool", {"PATH": f"/nowhere:{tmp_path}"}, "/") == str(program)
        assert find_program("./tool", {}, str(tmp_path)) == f"{tmp_path}/./tool"
        with pytest.raises(ProgramMissing, match="command not found: tool"):
            find_program("tool", {"PATH": "/nowhere"}, "/")
        with pytest.raises(ProgramMissing, match="no such program"):
            find_program("./tool", {"PATH": str(tmp_path)}, "/")

    def test_a_program_is_taken_from_the_first_folder_that_has_one(self, tmp_path: Path) -> None:
        early, late = tmp_path / "early", tmp_path / "late"
        for folder in (late, early):
            folder.mkdir()
            _script(folder / "tool", "#!/bin/sh\n")
            assert find_program("tool", {"PATH": f"{early}:{late}"}, "/") == str(folder / "tool")

    def test_a_file_that_is_not_executable_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "tool").write_text("#!/bin/sh\n")
        with pytest.raises(CannotStart, match="not executable: "):
            find_program("tool", {"PATH": str(tmp_path)}, "/")

    def test_a_folder_is_not_a_program(self, tmp_path: Path) -> None:
        with pytest.raises(ProgramMissing):
            find_program(str(tmp_path), {}, "/")

    def test_a_missing_interpreter_is_named_as_the_reason(self, keeper: Keeper, tmp_path: Path) -> None:
        _script(tmp_path / "tool", "#!/nowhere/python\n")
        with pytest.raises(ProgramMissing, match="interpreter"):
            KeptProcess(Command(argv=(str(tmp_path / "tool"),), cwd="/", env={}), keeper=keeper).stream(print)

    def test_a_script_without_a_shebang_is_run_by_the_shell(self, keeper: Keeper, tmp_path: Path) -> None:
        _script(tmp_path / "tool", 'echo "$0" "$1"\n')
        assert lines_of(keeper, Command(argv=(str(tmp_path / "tool"), "a b"), cwd="/", env={})) == [
            f"{tmp_path}/tool a b".encode()
        ]

    @pytest.mark.parametrize(
        ("argv", "cwd", "reason"),
        [
            (("true",), "/nowhere", "cannot run .* in /nowhere: No such file or directory"),
            (("true", "a\0b"), "/", "Invalid argument"),
            (("true", "x" * 3_000_000), "/", "Argument list too long"),
        ],
    )
    def test_a_refused_start_is_explained(self, keeper: Keeper, argv, cwd: str, reason: str) -> None:
        with pytest.raises(CannotStart, match=reason):
            KeptProcess(Command(argv=argv, cwd=cwd, env={"PATH": os.environ["PATH"]}), keeper=keeper).stream(print)
        assert (
            KeptProcess(Command(argv=("false",), cwd="/", env={"PATH": os.environ["PATH"]}), keeper=keeper)
            .stream(print)
            .code
            == 1
        )


class TestCommands:
    def test_stdout_and_stderr_are_captured_in_order(self, keeper: Keeper, shell, tmp_path: Path) -> None:
        with LogFile(str(tmp_path / "log")) as log:
            output = KeptProcess(shell("echo a; echo b >&2; echo c; exit 1"), keeper=keeper).capture(
                head=100, tail=100, log=log
            )
        assert (output.exit.code, output.head, output.tail, output.cut) == (1, "a\nb\nc\n", "a\nb\nc\n", False)
        assert (tmp_path / "log").read_text() == "a\nb\nc\n"

    @pytest.mark.parametrize(
        ("text", "head", "tail", "expected"),
        [
            ("", 5, 5, ("", "", False)),
            ("12345", 5, 5, ("12345", "12345", False)),
            ("123456", 5, 5, ("12345", "23456", True)),
            ("äöü😀ß€", 3, 4, ("äöü", "ü😀ß€", True)),
            ("😀" * 100, 99, 1, ("😀" * 99, "😀", True)),
            ("abc", 0, 0, ("", "", True)),
            ("\x1b[31mred\x1b[0m", 3, 3, ("red", "red", False)),
            ("\x1b[1;31mred\x1b[0m and \x1b[32mgreen\x1b[0m", 5, 5, ("red a", "green", True)),
            ("a\r\nb\0c", 4, 4, ("a\nbc", "a\nbc", False)),
        ],
    )
    def test_head_and_tail_count_visible_characters(
        self, keeper: Keeper, shell, text: str, head: int, tail: int, expected: tuple[str, str, bool]
    ) -> None:
        output = KeptProcess(shell("cat", text.encode()), keeper=keeper).capture(head=head, tail=tail)
        assert (output.head, output.tail, output.cut) == expected

    def test_invalid_utf8_is_replaced(self, keeper: Keeper, shell) -> None:
        assert (
            KeptProcess(shell("cat", b"a\xff\xfeb"), keeper=keeper).capture(head=10, tail=10).head == "a\ufffd\ufffdb"
        )

    def test_output_before_a_timeout_is_kept(self, keeper: Keeper, shell, mark) -> None:
        command = shell(f"echo started; setsid sleep {mark.seconds} & exec sleep {mark.seconds}")
        output = KeptProcess(command, keeper=keeper, limits=Limits(turn=3.0)).capture(head=100, tail=100)
        assert (output.exit.ended_by, output.head) == ("turn-timeout", "started\n")
        assert mark.bearers() == []


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


FLOOD = """
import os, resource, sys
from ralph.process.keeper import Keeper
from ralph.process.streams import LogFile
from ralph.process.kept_process import KeptProcess
from ralph.process.program import Command

keeper = Keeper.start()

command = Command(argv=("/bin/sh", "-c", sys.argv[2]), cwd=".", env=dict(os.environ))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with LogFile("log", 8 << 20) as log:
    if sys.argv[1] == "lines":
        seen = [0, 0]
        def on_lines(lines):
            seen[0] += len(lines)
            seen[1] = max(seen[1], *map(len, lines))
        KeptProcess(command, keeper=keeper).stream(on_lines, stdout_log=log)
        print(*seen)
    else:
        output = KeptProcess(command, keeper=keeper).capture(head=5000, tail=2000, log=log)
        print(len(output.head), len(output.tail))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, os.stat("log").st_size)
"""


@pytest.mark.parametrize(
    ("kind", "script", "told"),
    [
        ("lines", "head -c 100000000 /dev/zero", "1 1048522"),
        (
            "lines",
            "yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 100000000",
            "1612904 61",
        ),
        ("command", "yes 0123456789 | head -c 100000000", "5000 2000"),
    ],
    ids=["one line", "many lines", "a check"],
)
def test_memory_and_logs_do_not_grow_with_the_output(tmp_path: Path, kind: str, script: str, told: str) -> None:
    run = [sys.executable, "-c", FLOOD, kind, script]
    seen, figures = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()
    megabytes, log_size = map(int, figures.split())
    assert seen == told
    assert megabytes <= 24
    assert log_size <= 8 << 20


def test_ask_program_returns_output_and_exit(keeper: Keeper, tmp_path: Path) -> None:
    said, ended = ask_program(
        keeper, Command(argv=("sh", "-c", "echo 1.2.3; echo careful >&2; exit 3"), cwd=str(tmp_path), env=os.environ)
    )
    assert (said, ended.stderr, ended.code) == ("1.2.3", "careful\n", 3)


def test_ask_program_limits_the_output(keeper: Keeper, tmp_path: Path) -> None:
    command = ("sh", "-c", "yes aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | head -c 3000000")
    said, ended = ask_program(keeper, Command(argv=command, cwd=str(tmp_path), env=os.environ))
    assert ended.code == 0
    assert 0 < len(said) < 300_000


def test_ask_program_kills_a_program_that_hangs(
    keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ralph.process.kept_process.ASK_TIMEOUT", 0.3)
    os.mkfifo(tmp_path / "alive")
    reader = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    command = ("sh", "-c", "(setsid sleep 600 > alive) & sleep 600 > alive")
    _, ended = ask_program(keeper, Command(argv=command, cwd=str(tmp_path), env=os.environ))
    assert ended.ended_by
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # end of file: the last process that had it open is gone
    os.close(reader)
