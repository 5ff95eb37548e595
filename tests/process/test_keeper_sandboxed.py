"""The keeper and a sandbox: programs inside get SIGTERM, bubblewrap doesn't; killing bubblewrap kills everything
inside."""

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.process.keeper import Keeper
from ralph.process.kept_process import KeptProcess, Limits
from ralph.process.program import Command
from ralph.process.signals import Interrupt

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="boxes are of Linux")

Sandboxed = Callable[..., Command]


@pytest.fixture
def sandboxed(bubblewrap: str, tmp_path: Path, mark) -> Sandboxed:
    def command(script: str, interpreter: tuple[str, ...] = ("sh", "-c"), **more: object) -> Command:
        walls = ("--unshare-user", "--unshare-pid", "--die-with-parent", "--new-session", "--cap-drop", "ALL")
        seen = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(tmp_path), str(tmp_path))
        argv = (bubblewrap, *walls, *seen, "--chdir", str(tmp_path), "--", *interpreter, script)
        env = {"PATH": os.environ["PATH"], "RALPH_RUN_ID": f"sandboxed-{mark.seconds}", **mark.env}
        return Command(argv=argv, cwd=str(tmp_path), env=env, sandboxed=True, **more)  # type: ignore[arg-type]

    return command


def test_programs_in_a_sandbox_get_sigterm_first(keeper: Keeper, sandboxed: Sandboxed, mark, tmp_path: Path) -> None:
    script = f"trap 'echo tidied > tidied; exit 3' TERM; echo up; sleep {mark.seconds} & wait"
    with Interrupt() as interrupt:
        ended = KeptProcess(sandboxed(script), keeper=keeper, interrupt=interrupt).stream(
            lambda _: interrupt.raise_to(2, "test")
        )
    assert (tmp_path / "tidied").read_text() == "tidied\n"
    assert (ended.code, ended.ended_by) == (3, "interrupt")
    assert not mark.bearers()


def test_a_sandboxed_program_that_ignores_sigterm_is_killed(keeper: Keeper, sandboxed: Sandboxed, mark) -> None:
    script = f"trap '' TERM; setsid sh -c \"trap '' TERM; sleep {mark.seconds}\" & echo up; sleep {mark.seconds}"
    with Interrupt() as interrupt:
        ended = KeptProcess(sandboxed(script), keeper=keeper, interrupt=interrupt, limits=Limits(stop=0.2)).stream(
            lambda _: interrupt.raise_to(2, "test")
        )
    assert ended.ended_by == "interrupt"
    assert not mark.bearers()


def test_nothing_outlives_the_sandboxed_program(keeper: Keeper, sandboxed: Sandboxed, mark) -> None:
    ended = KeptProcess(sandboxed(f"setsid nohup sleep {mark.seconds} >/dev/null 2>&1 & exit 7"), keeper=keeper).stream(
        lambda _: None
    )
    assert ended.code == 7
    assert not mark.bearers()


def test_killing_bubblewrap_kills_everything_inside(keeper: Keeper, sandboxed: Sandboxed, mark) -> None:
    """It takes 50 ms on an idle machine, but this one may be busy."""
    taken: list[float] = []
    box: list[int] = []

    def kill(_: object) -> None:
        began = time.monotonic()
        os.kill(box[0], signal.SIGKILL)
        while mark.bearers():
            time.sleep(0.001)
        taken.append(time.monotonic() - began)

    script = f"for i in 1 2 3 4 5; do setsid sleep {mark.seconds} & done; echo up; exec sleep {mark.seconds}"
    KeptProcess(sandboxed(script), keeper=keeper, on_start=box.append).stream(kill)
    assert taken[0] < 10.0


def test_killing_the_keeper_kills_the_sandbox(sandboxed: Sandboxed, mark) -> None:
    with Keeper.start() as keeper:
        with pytest.raises(UserError, match="was killed"):
            KeptProcess(
                sandboxed(f"setsid sleep {mark.seconds} & sleep {mark.seconds}"),
                keeper=keeper,
                on_start=lambda _: os.kill(keeper.pid, signal.SIGKILL),
            ).stream(lambda _: None)
        mark.wait_until_gone()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 5", 5), ("kill -9 $$", -9), ("kill -TERM $$", -15), ("exit 147", 147)]
)
def test_a_signal_inside_a_sandbox_gives_a_negative_exit_code(
    keeper: Keeper, sandboxed: Sandboxed, script: str, code: int
) -> None:
    assert KeptProcess(sandboxed(script), keeper=keeper).stream(lambda _: None).code == code


def test_descriptors_for_bubblewrap_follow_the_standard_three(keeper: Keeper, sandboxed: Sandboxed) -> None:
    reader, writer = os.pipe()
    told, out = os.pipe()
    command = sandboxed("cat <&3", fds=(reader, out))
    os.write(writer, b"hello\n")
    os.close(writer)
    lines: list[bytes] = []
    KeptProcess(command, keeper=keeper).stream(lines.extend)
    assert lines == [b"hello"]
    assert os.read(told, 1) == b""  # closed here, and there together with the sandbox
    os.close(told)


def test_abstract_sockets_from_outside_cannot_be_reached(keeper: Keeper, sandboxed: Sandboxed) -> None:
    """Needs a kernel with Landlock scopes."""
    if tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (6, 12):
        pytest.skip("needs Linux 6.12: scopes of Landlock")
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind(f"\0ralph-test-{os.getpid()}")
        outside.listen()
        script = f"""
import socket
def reach(name):
    try:
        socket.socket(socket.AF_UNIX).connect(name)
        return "reached"
    except PermissionError:
        return "refused"
inside = socket.socket(socket.AF_UNIX)
inside.bind("\\0ralph-inside"); inside.listen()
print(reach("\\0ralph-test-{os.getpid()}"), reach("\\0ralph-inside"))
"""
        lines: list[bytes] = []
        KeptProcess(sandboxed(script, (sys.executable, "-I", "-S", "-c")), keeper=keeper).stream(lines.extend)
        assert lines == [b"refused reached"]


KEYS = """
import ctypes
call = ctypes.CDLL(None).syscall
if {is_outside}:
    call(250, 1, None)  # a session of its own, as a login has it
    call(248, b"user", b"ralph-test", b"secret", 6, -3)
print("found" if call(250, 10, -3, b"user", b"ralph-test", 0) > 0 else "nothing", flush=True)
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs the numbers of another machine's system calls")
def test_the_session_keyring_of_the_user_is_not_visible_inside(
    sandboxed: Sandboxed, capfd: pytest.CaptureFixture[str]
) -> None:
    exec(KEYS.format(is_outside=True))
    assert capfd.readouterr().out == "found\n"
    lines: list[bytes] = []
    with Keeper.start() as keeper:
        code = KEYS.format(is_outside=False)
        KeptProcess(sandboxed(code, (sys.executable, "-I", "-S", "-c")), keeper=keeper).stream(lines.extend)
    assert lines == [b"nothing"]
