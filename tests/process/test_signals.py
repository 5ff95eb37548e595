import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ralph.process.signals import Interrupt


def is_readable(interrupt: Interrupt) -> bool:
    return bool(select.select([interrupt], [], [], 0)[0])


@pytest.mark.parametrize(
    ("signals", "level"),
    [
        ([], 0),
        ([signal.SIGINT], 1),
        ([signal.SIGTERM], 1),
        ([signal.SIGHUP], 2),
        ([signal.SIGINT, signal.SIGTERM], 2),
        ([signal.SIGTERM, signal.SIGHUP], 2),
        ([signal.SIGINT] * 3, 3),
        ([signal.SIGHUP, signal.SIGINT], 3),
        ([signal.SIGINT] * 5, 3),
    ],
)
def test_each_signal_raises_the_level(signals: list[signal.Signals], level: int) -> None:
    announced: list[str] = []
    with Interrupt(announce=lambda: announced.append("once")) as interrupt:
        for number in signals:
            signal.raise_signal(number)
        assert interrupt.level == level
        assert interrupt.reason == (signals[-1].name if signals else "")
        assert is_readable(interrupt) == bool(signals)
        interrupt.acknowledge()
        assert not is_readable(interrupt)
    assert announced == ["once"] * bool(signals)


def test_a_request_after_its_end_is_not_written_to_a_file_that_was_opened_since() -> None:
    with Interrupt() as interrupt:
        pass
    reader, writer = os.pipe()  # has the numbers of the interrupt's own pipe
    interrupt.raise_to(2, "a request")
    os.close(writer)
    assert os.read(reader, 10) == b""
    os.close(reader)
    assert interrupt.level == 2


def test_a_signal_during_the_handler_of_another_is_counted() -> None:
    """A backlog passes two Ctrl-C on to its loops at once; one of them used to be lost."""
    instants = 0

    def play(instant: int) -> bool:
        """Send a signal at one instruction of the handler; return False if it has fewer instructions."""
        passed, announced = 0, []

        def look(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            nonlocal passed
            frame.f_trace_opcodes = is_hearing = frame.f_code is Interrupt._receive.__code__
            if is_hearing and event == "opcode":
                passed += 1
                if passed == instant:
                    signal.raise_signal(signal.SIGTERM)
            return look if is_hearing else None

        with Interrupt(announce=lambda: announced.append("once")) as interrupt:
            sys.settrace(look)
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                sys.settrace(before)
            if passed < instant:
                return False
            assert (interrupt.level, interrupt.is_repeated, announced) == (2, True, ["once"]), f"instant {instant}"
        return True

    before = sys.gettrace()
    while play(instants + 1):
        instants += 1
    assert instants > 20


def test_earlier_handlers_are_restored() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with Interrupt():
        assert signal.getsignal(signal.SIGTERM) != before[1]
        with Interrupt() as inner:
            signal.raise_signal(signal.SIGHUP)
            assert inner.level == 2
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert interrupt.level == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_outside_the_main_thread_does_nothing() -> None:
    seen: list[object] = []

    def work() -> None:
        with Interrupt() as interrupt:
            seen.extend((interrupt.level, is_readable(interrupt), interrupt.wait(0.001)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, False, False]


def test_a_wait_ends_after_its_time() -> None:
    with Interrupt() as interrupt:
        began = time.monotonic()
        assert interrupt.wait(0.05) is False
        assert time.monotonic() - began >= 0.05
        assert interrupt.wait(0) is False
        assert interrupt.wait(-1) is False


def test_a_signal_before_or_during_a_wait_ends_it() -> None:
    with Interrupt(announce=lambda: None) as interrupt:
        pid = os.getpid()
        assert interrupt.wait(3600, tick=lambda _: bool(os.kill(pid, signal.SIGTERM))) is True
        assert interrupt.wait(3600) is True


def test_a_wait_passes_the_remaining_seconds_to_tick() -> None:
    remaining: list[float] = []

    def tick(seconds: float) -> bool:
        remaining.append(seconds)
        interrupt.raise_to(1, "test")
        return True

    with Interrupt() as interrupt:
        interrupt.wait(600, tick)
    assert [0 < seconds <= 600 for seconds in remaining] == [True]


def test_setting_the_clock_never_makes_a_wait_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Interrupt() as interrupt:
        clock = iter([0.0, 3600.0])
        monkeypatch.setattr(time, "time", lambda: next(clock))
        assert interrupt.wait(3000) is False
        clock = iter([0.0, *[-3600.0] * 100])
        assert interrupt.wait(0.02) is False


def test_the_first_signal_is_announced_on_stderr() -> None:
    script = """
        from ralph.process.signals import Interrupt
        with Interrupt() as interrupt:
            print("ready", flush=True)
            interrupt.wait(60)
            print(interrupt.level, interrupt.reason)
        """
    process = subprocess.Popen(
        [sys.executable, "-c", f"if True:{script}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate() == ("1 SIGTERM\n", "Received signal, shutting down...\n")


def test_a_signal_that_another_thread_receives_ends_a_wait() -> None:
    """As does one that arrives just before the wait begins to sleep."""

    def receive() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with Interrupt(announce=lambda: None) as interrupt:
        thread = threading.Timer(0.1, receive)
        thread.start()
        began = time.monotonic()
        assert interrupt.wait(20) is True
        assert time.monotonic() - began < 10
        thread.join()
