import fcntl
import io
import os
import pty
import select
import sys
import threading
import tty
from collections.abc import Iterator
from typing import TextIO

import pytest

from ralph.show.outlet import ASCII, GLYPHS, TEXT, Ndjson, Outlet, Style, choose


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """A reader's descriptor, and a writer that holds one page, so that it fills quickly."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with open(writer, "w", encoding="utf-8") as stream:
        yield reader, stream
    os.close(reader)


def drain(reader: int) -> str:
    data = b""
    while select.select([reader], [], [], 0)[0]:
        data += os.read(reader, 65536)
    return data.decode()


def test_text_is_written_at_once(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    assert Outlet(stream).write("one\ntwo ✓\n")
    assert drain(reader) == "one\ntwo ✓\n"


def test_a_pipe_without_a_reader_does_not_block_the_run(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    outlet = Outlet(stream)
    written = [outlet.write("x" * 1000 + "\n", timeout=0.01) for _ in range(100)]
    assert written[0] is True
    assert written[-1] is False
    assert not outlet.gone
    drain(reader)
    assert outlet.write("back\n")
    assert drain(reader) == "back\n"


def test_a_slow_reader_of_events_gets_all_of_them(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    events = b"".join(b'{"seq":%d}\n' % number for number in range(5000))
    writing = threading.Thread(target=Ndjson(fd=stream.fileno()), args=(events,))
    writing.start()
    read = b""
    while len(read) < len(events):
        read += os.read(reader, 1000)
    writing.join(60)
    assert read == events


def test_ending_at_once_does_not_wait_for_a_reader_of_events(pipe: tuple[int, TextIO]) -> None:
    asked: list[int] = []
    sink = Ndjson(lambda: len(asked) > 1 or bool(asked.append(1)), pipe[1].fileno())
    sink(b"x" * 9000)
    assert asked == [1, 1]
    sink(b"silent by now")
    assert drain(pipe[0]) == "x" * 4096
    assert os.get_blocking(pipe[1].fileno()), "whoever shares the pipe is not concerned"


def test_a_torn_line_is_ended_before_the_next(pipe: tuple[int, TextIO]) -> None:
    reader, stream = pipe
    outlet = Outlet(stream)
    assert not outlet.write("x" * 5000 + "\n", timeout=0.01)
    assert drain(reader) == "x" * 4096
    assert outlet.write("whole\n")
    assert drain(reader) == "\nwhole\n"


def test_a_reader_who_left_silences_the_outlet() -> None:
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as stream:
        outlet = Outlet(stream)
        os.close(reader)
        assert outlet.write("nobody\n")
        assert outlet.gone
        assert outlet.write("again\n")


def test_a_full_disk_does_not_close_the_outlet() -> None:
    with open("/dev/full", "w", encoding="utf-8") as stream:
        outlet = Outlet(stream)
        assert not outlet.write("lost\n")
        assert not outlet.gone


def test_an_outlet_that_waits_raises_if_the_disk_is_full() -> None:
    with open("/dev/full", "w", encoding="utf-8") as stream, pytest.raises(OSError, match="No space"):
        Outlet(stream, waits=True).write("lost\n")


def test_a_non_blocking_descriptor_works(pipe: tuple[int, TextIO]) -> None:
    _, stream = pipe
    os.set_blocking(stream.fileno(), False)
    outlet = Outlet(stream)
    assert [outlet.write("y" * 3000, timeout=0) for _ in range(3)] == [True, False, False]


def test_a_terminal_without_a_reader_does_not_block_the_run() -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        outlet = Outlet(stream)
        written = [outlet.write("z" * 999 + "\n", timeout=0.01) for _ in range(200)]
        assert written[-1] is False
        assert os.get_blocking(slave), "the shell shares this open file: it stays as it was"
        outlet.close()
    os.close(master)


def test_a_terminal_gets_the_text() -> None:
    master, slave = pty.openpty()
    tty.setraw(slave)
    with open(slave, "w", encoding="utf-8") as stream:
        outlet = Outlet(stream)
        assert outlet.write("hello\n")
        assert os.read(master, 100) == b"hello\n"
        outlet.close()
    os.close(master)


def test_a_hung_up_terminal_silences_the_outlet() -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        outlet = Outlet(stream)
        os.close(master)
        assert outlet.write("nobody\n")
        assert outlet.gone
        outlet.close()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_characters_that_the_stream_cannot_encode_are_escaped(encoding: str) -> None:
    raw = io.BytesIO()
    outlet = Outlet(io.TextIOWrapper(raw, encoding))
    assert outlet.write("a✓\ud83d\n")
    check = "✓" if encoding == "utf-8" else "\\u2713"
    assert raw.getvalue().decode(encoding) == f"a{check}\\ud83d\n"


def test_without_a_stream_writing_does_nothing() -> None:
    assert Outlet(None).write("nothing\n")


def test_writing_to_a_closed_stream_does_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    assert Outlet(stream).write("nothing\n")


def test_a_captured_stream_is_written_through_its_own_methods(capsys: pytest.CaptureFixture[str]) -> None:
    Outlet(sys.stderr).write("seen\n")
    assert capsys.readouterr().err == "seen\n"


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding)


@pytest.mark.parametrize(
    ("env", "is_terminal", "color"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_colour_is_for_terminals_that_have_it(env: dict[str, str], is_terminal: bool, color: bool) -> None:
    assert choose(stream("utf-8"), env, is_terminal, None, None).color is color


def test_an_explicit_choice_of_colour_wins() -> None:
    assert choose(stream("utf-8"), {"NO_COLOR": "1"}, False, True, None).color
    assert not choose(stream("utf-8"), {"TERM": "xterm"}, True, False, None).color


@pytest.mark.parametrize(
    ("encoding", "terminal", "emoji", "marks"),
    [
        ("utf-8", "xterm", None, GLYPHS),
        ("UTF8", None, None, GLYPHS),
        ("utf-8", "xterm", False, TEXT),
        ("utf-8", "dumb", None, TEXT),
        ("utf-8", "dumb", True, GLYPHS),
        ("utf-8", "linux", None, ASCII),
        ("ascii", "xterm", None, ASCII),
        ("latin-1", None, True, ASCII),
    ],
)
def test_marks_depend_on_what_the_terminal_can_display(
    encoding: str, terminal: str | None, emoji: bool | None, marks: object
) -> None:
    style = choose(stream(encoding), {"TERM": terminal or "dumb"}, terminal is not None, None, emoji)
    assert style.marks is marks


def test_ascii_marks_are_ascii() -> None:
    assert all(getattr(ASCII, name).isascii() for name in ASCII.__struct_fields__)


def test_paint_without_colour_is_the_text_itself() -> None:
    assert Style(GLYPHS, False).paint("red", "x") == "x"
    assert Style(GLYPHS, True).paint("red", "x") == "\x1b[31mx\x1b[0m"
