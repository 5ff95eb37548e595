"""The message bus: any text is read back, writers don't disturb each other, and torn messages are skipped."""

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.supervise import bus
from ralph.supervise.bus import BusReader, MessageBus


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "TASK-MESSAGE-BUS.md"


def post(path: Path, kind: str, body: str, **fields: str) -> str:
    return MessageBus(path).post(kind, body, **fields)


def bodies(path: Path) -> list[str]:
    return [message.body for message in MessageBus(path).read()]


def test_a_message_is_a_line_of_json(path: Path) -> None:
    msg_id = post(path, "INFO", "hello\nworld", project="p", task="t", run="r")
    digits = re.sub(r"\D", "", msg_id.rpartition("-")[0])
    ts = "{}-{}-{}T{}:{}:{}.{}Z".format(*re.fullmatch(r"(....)(..)(..)(..)(..)(..)(......)", digits).groups())  # type: ignore[union-attr]
    assert json.loads(path.read_text()) == {
        "msg_id": msg_id,
        "ts": ts,
        "type": "INFO",
        "body": "hello\nworld",
        "project_id": "p",
        "task_id": "t",
        "run_id": "r",
    }
    assert path.read_text().count("\n") == 1


def test_a_message_needs_a_type(path: Path) -> None:
    for kind in ("", " "):
        with pytest.raises(UserError, match="needs a type"):
            post(path, kind, "x")
    assert not path.exists()


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\n",
        "\n\n",
        "a\r\nb\rc",
        '{"msg_id": "MSG-1"}\n',
        "nul \0 and escape \x1b[31m",
        "žluťoučký 🐎 \u2028",
    ],
)
def test_any_text_is_read_back_unchanged(path: Path, body: str) -> None:
    post(path, "INFO", "before")
    post(path, "INFO", body)
    post(path, "INFO", "after")
    assert bodies(path) == ["before", body, "after"]


def test_a_body_of_ten_megabytes_is_read_back(path: Path) -> None:
    body = "é\n\n" * 2_500_000
    post(path, "INFO", body)
    post(path, "INFO", "after")
    assert bodies(path) == [body, "after"]


def test_invalid_text_becomes_question_marks(path: Path) -> None:
    post(path, "INFO", "cut emoji: \ud83d, not UTF-8: \udcff")
    assert bodies(path) == ["cut emoji: ?, not UTF-8: ?"]


def test_messages_can_be_filtered_by_type(path: Path) -> None:
    for kind in ("INFO", "FACT", "wait_without_restart"):
        post(path, kind, kind)
    assert [message.body for message in MessageBus(path).read(types=["fact", "WAIT_WITHOUT_RESTART"])] == [
        "FACT",
        "wait_without_restart",
    ]


def test_a_bus_without_a_file_is_empty(path: Path) -> None:
    assert bodies(path) == []


@pytest.mark.parametrize("body", ["", "torn", "torn\n\n---\n"])
def test_a_message_cut_at_any_byte_is_skipped_and_others_are_read(path: Path, body: str) -> None:
    post(path, "INFO", "first")
    whole = path.stat().st_size
    post(path, "INFO", body)
    torn = path.read_bytes()
    for cut in range(whole, len(torn) + 1):
        path.write_bytes(torn[:cut])
        before = bodies(path)
        post(path, "INFO", "third")
        post(path, "INFO", "fourth")
        after = bodies(path)
        assert before[0] == "first"
        assert after[:1] + after[-2:] == ["first", "third", "fourth"]
        assert len(before) == (2 if cut == len(torn) else 1)
        assert after[1:-2] == ([body] if cut >= len(torn) - 1 else []), "without its last newline it is complete"


def test_foreign_lines_in_the_file_are_skipped(path: Path) -> None:
    path.write_bytes(b"# Notes\n\xff\xfe\n---\n")
    post(path, "INFO", "one")
    with path.open("ab") as file:
        file.write(b'echoed by an agent\n{"msg_id": "made up"}\n' + b"[" * 99_999 + b'\n{"msg_id')
    post(path, "INFO", "two")
    assert bodies(path) == ["one", "two"]


def test_a_reader_continues_where_it_was(path: Path) -> None:
    reader = BusReader(path)
    assert list(reader.messages()) == []
    for n in range(3):
        post(path, "INFO", f"{n}")
        post(path, "INFO", f"{n}'")
        assert [message.body for message in reader.messages()] == [f"{n}", f"{n}'"]
        assert list(reader.messages()) == []


def test_a_reader_that_is_left_early_returns_each_message_once(path: Path) -> None:
    for n in range(5):
        post(path, "INFO", f"{n}")
    reader = BusReader(path)
    assert [next(reader.messages()).body for _ in range(5)] == ["0", "1", "2", "3", "4"]
    assert list(reader.messages()) == []


def test_a_reader_waits_for_a_message_that_is_being_written(path: Path) -> None:
    post(path, "INFO", "a message")
    record = path.read_bytes()
    path.write_bytes(b"")
    reader = BusReader(path)
    with path.open("ab", buffering=0) as file:
        for byte in record[:-1]:
            file.write(bytes([byte]))
            assert list(reader.messages()) == []
        file.write(record[-1:])
    assert [message.body for message in reader.messages()] == ["a message"]


def test_a_reader_can_skip_existing_messages(path: Path) -> None:
    post(path, "INFO", "old")
    reader = BusReader(path)
    reader.skip()
    post(path, "INFO", "new")
    assert [message.body for message in reader.messages()] == ["new"]


def test_a_reader_starts_over_when_the_file_was_replaced(path: Path) -> None:
    post(path, "INFO", "a long body " * 10)
    reader = BusReader(path)
    assert len(list(reader.messages())) == 1
    path.unlink()
    post(path, "INFO", "new")
    assert [message.body for message in reader.messages()] == ["new"]


WRITER = """
import sys
from ralph.supervise.bus import MessageBus
path, name, count = sys.argv[1:]
print(*(MessageBus(path).post("INFO", f"{name} {n}\\n") for n in range(int(count))), sep="\\n")
"""


def test_eight_concurrent_writers_lose_no_message_and_have_unique_ids(path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(n), "250"], stdout=subprocess.PIPE) for n in range(8)
    ]
    told = [line for writer in writers for line in writer.communicate()[0].decode().split()]
    assert [writer.returncode for writer in writers] == [0] * 8
    messages = list(MessageBus(path).read())
    assert len(set(told)) == 2000
    assert {message.msg_id for message in messages} == set(told)
    for name in range(8):
        mine = [message.body for message in messages if message.body.startswith(f"{name} ")]
        assert mine == [f"{name} {n}\n" for n in range(250)]


def test_ids_sort_by_time(path: Path) -> None:
    ids = [post(path, "INFO", "x") for _ in range(20)]
    assert ids == sorted(ids)


def test_a_lock_that_is_never_released_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    post(path, "INFO", "one")
    monkeypatch.setattr(bus, "LOCK_TIMEOUT", 0.01)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is locked"):
            post(path, "INFO", "two")
        assert bodies(path) == ["one"]
    post(path, "INFO", "three")
    assert bodies(path) == ["one", "three"]


FULL_DISK = """
import resource, sys
from ralph.errors import UserError
from ralph.supervise.bus import MessageBus
MessageBus(sys.argv[1]).post("INFO", "fits")
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
    MessageBus(sys.argv[1]).post("INFO", "x" * 1000)
except UserError as error:
    print(error.message)
MessageBus(sys.argv[1]).post("INFO", "fits")
"""


def test_a_message_that_does_not_fit_on_the_disk_is_removed(path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-B", "-c", FULL_DISK, path], capture_output=True, text=True, check=True
    ).stdout
    assert told == f"cannot use the message bus {path}: File too large\n"
    assert bodies(path) == ["fits", "fits"]
    assert b"xx" not in path.read_bytes()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_bus_must_be_a_regular_file(path: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "precious"
    target.write_text("untouched")
    {"link": lambda: path.symlink_to(target), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[kind]()
    for use in (lambda: post(path, "INFO", "x"), lambda: bodies(path), MessageBus(path).create):
        with pytest.raises(UserError, match=f"cannot use the message bus {path}: "):
            use()
    assert target.read_text() == "untouched"


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file or directory"):
        post(tmp_path / "missing" / "bus.md", "INFO", "x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anything")
def test_a_read_only_bus_can_be_read(path: Path) -> None:
    post(path, "INFO", "one")
    path.chmod(0o444)
    with pytest.raises(UserError, match="Permission denied"):
        post(path, "INFO", "two")
    assert bodies(path) == ["one"]


def test_bytes_that_belong_to_no_message_are_skipped(path: Path) -> None:
    path.write_text("[2026-02-05 12:51:53] FACT: an old line\n")
    post(path, "INFO", "one")
    with path.open("ab") as file:
        file.write(b'{"msg_id": "torn", "ty')
    post(path, "INFO", "two")
    assert bodies(path) == ["one", "two"]


def test_a_key_in_a_message_is_redacted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "correct horse battery")
    post(path, "INFO", "the key is ghp_" + "a1B2" * 9 + " and the password 'correct horse battery'\n---\n")
    assert bodies(path) == ["the key is [redacted] and the password '[redacted]'\n---\n"]
    assert b"horse" not in path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0
