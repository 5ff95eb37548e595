"""The message bus: any text is read back, writers don't disturb each other, and torn messages are skipped."""

import fcntl
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.errors import UserError
from ralph.supervise import bus
from ralph.supervise.bus import END, BusReader, Message, MessageBus, parse_messages, thread


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "TASK-MESSAGE-BUS.md"


def post(path: Path, kind: str, body: str, **fields: str) -> str:
    return MessageBus(path).post(kind, body, **fields)


def bodies(path: Path) -> list[str]:
    return [message.body for message in MessageBus(path).read()]


def test_a_message_is_a_header_and_a_body_that_people_can_read(path: Path) -> None:
    msg_id = post(path, "INFO", "hello world", project="p", task="t", run="r", parent="MSG-0")
    digits = re.sub(r"\D", "", msg_id.rpartition("-")[0])
    ts = "{}-{}-{}T{}:{}:{}.{}Z".format(*re.fullmatch(r"(....)(..)(..)(..)(..)(..)(......)", digits).groups())  # type: ignore[union-attr]
    assert path.read_text() == (
        f"---\nmsg_id: {msg_id}\nts: {ts}\ntype: INFO\nproject_id: p\ntask_id: t\nrun_id: r\n"
        "parent: MSG-0\nlength: 11\n---\nhello world\n\n"
    )


@pytest.mark.parametrize(
    "body",
    [
        "",
        "\n",
        "\n\n",
        "---",
        "---\n---\n",
        "a\r\nb\rc",
        "no newline at the end\n---",
        "nul \0 and escape \x1b[31m",
        "žluťoučký 🐎 \u2028",
        "---\nmsg_id: MSG-1\ntype: INFO\nlength: 2\n---\nhi\n\n",
        "\\msg_id: x\n\\\\msg_id: y\nmsg_id: z",
    ],
)
def test_any_text_is_read_back_unchanged(path: Path, body: str) -> None:
    post(path, "INFO", "before")
    post(path, "INFO", body)
    post(path, "INFO", "after")
    assert bodies(path) == ["before", body, "after"]


def test_a_body_of_ten_megabytes_is_read_back(path: Path) -> None:
    body = "é\n---\nmsg_id: \n" * 700_000
    post(path, "INFO", body)
    post(path, "INFO", "after")
    assert bodies(path) == [body, "after"]


def test_invalid_text_becomes_question_marks(path: Path) -> None:
    post(path, "INFO", "cut emoji: \ud83d, not UTF-8: \udcff")
    assert bodies(path) == ["cut emoji: ?, not UTF-8: ?"]


def test_since_returns_the_later_messages(path: Path) -> None:
    ids = [post(path, "INFO", f"body {n}\nmsg_id: decoy") for n in range(20)]
    for n, msg_id in enumerate(ids):
        assert [message.msg_id for message in MessageBus(path).read(since=msg_id)] == ids[n + 1 :]


LINES = st.sampled_from(
    ["---", "msg_id: MSG-1", "\\msg_id: x", "\\\\msg_id: ", "length: 3", "", "\r", "type: INFO", "é"]
)
BODIES = st.one_of(st.text(), st.lists(LINES).map("\n".join), st.lists(LINES).map("\r\n".join))


@given(BODIES)
def test_no_body_contains_the_start_of_a_message(body: str) -> None:
    message = Message(msg_id="MSG-1", ts="now", type="INFO", body=body, project="p", parent="MSG-0")
    record = message.encode()
    assert list(parse_messages(record)) == [(message, 0, len(record))]
    assert list(parse_messages(record + b"more\n")) == [(message, 0, len(record))]


def test_a_message_is_complete_only_with_its_last_byte() -> None:
    record = Message(msg_id="MSG-1", ts="now", type="INFO", body="some\n---\ntext\n\n").encode()
    assert [list(parse_messages(record[:cut])) for cut in range(len(record))] == [[]] * len(record)


def test_a_message_with_a_wrong_length_is_skipped() -> None:
    record = Message(msg_id="MSG-1", ts="now", type="INFO", body="0123456789").encode()
    for wrong in (b"9", b"0", b"-1", b"x", b"", b"99999999999999", "٣".encode()):
        assert not list(parse_messages(record.replace(b"length: 10", b"length: " + wrong)))


def test_a_torn_message_does_not_swallow_the_next_one() -> None:
    second = Message(msg_id="MSG-2", ts="now", type="INFO", body="second").encode()
    torn = b"---\nmsg_id: MSG-1\ntype: INFO\nlength: %d\n---\n" % (len(second) - len(END))
    assert [message.body for message, _, _ in parse_messages(torn + second)] == ["second"]


def test_since_an_unknown_message_is_an_error(path: Path) -> None:
    post(path, "INFO", "MSG-1")
    with pytest.raises(UserError, match="no message MSG-1"):
        list(MessageBus(path).read(since="MSG-1"))


def test_messages_can_be_filtered_by_type(path: Path) -> None:
    for kind in ("INFO", "FACT", "wait_without_restart"):
        post(path, kind, kind)
    assert [message.body for message in MessageBus(path).read(types=["fact", "WAIT_WITHOUT_RESTART"])] == [
        "FACT",
        "wait_without_restart",
    ]


def test_a_bus_without_a_file_is_empty(path: Path) -> None:
    assert bodies(path) == []
    assert MessageBus(path).last() is None


def test_the_last_message_is_the_latest(path: Path) -> None:
    post(path, "INFO", "first")
    post(path, "INFO", "second")
    latest = MessageBus(path).last()
    assert latest is not None
    assert latest.body == "second"


@pytest.mark.parametrize("body", ["", "torn", "torn\n\n---\nmsg_id: decoy\n\n---\n", "torn\n---\nmsg_id: decoy\n---"])
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
        # If only the blank line after it is missing, the message may count: its body is complete.
        assert after[1:-2] in ([[body]] if cut == len(torn) else [[], [body]] if cut >= len(torn) - 2 else [[]])


def test_foreign_lines_in_the_file_are_skipped(path: Path) -> None:
    path.write_bytes(b"# Notes\n\xff\xfe\n---\n")
    post(path, "INFO", "one")
    with path.open("ab") as file:
        file.write(b"echoed by an agent\n---\nmsg_id: made up\n---\nmsg_id: \n\n---\nno length\n---")
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


def test_follow_returns_existing_and_new_messages_until_it_is_stopped(path: Path) -> None:
    first = post(path, "INFO", "seen before")
    post(path, "INFO", "there")
    stop = threading.Event()
    following = MessageBus(path).follow(stop, first, interval=0.001)
    assert next(following).body == "there"
    writer = threading.Thread(target=post, args=(path, "INFO", "arrived"))
    writer.start()
    assert next(following).body == "arrived"
    writer.join()
    stop.set()
    assert list(following) == []


WRITER = """
import sys
from ralph.supervise.bus import MessageBus
path, name, count = sys.argv[1:]
print(*(MessageBus(path).post("INFO", f"{name} {n}\\n---\\n") for n in range(int(count))), sep="\\n")
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
        assert mine == [f"{name} {n}\n---\n" for n in range(250)]


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
resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))
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


def test_a_message_with_a_bad_header_is_refused(path: Path) -> None:
    for kind in ("", "TWO\nLINES", " padded ", "esc\x1b"):
        with pytest.raises(UserError):
            post(path, kind, "x")
    assert not path.exists()


def test_bytes_that_belong_to_no_message_are_counted(path: Path) -> None:
    path.write_text("[2026-02-05 12:51:53] FACT: an old line\n")
    post(path, "INFO", "one")
    with path.open("ab") as file:
        file.write(b"---\nmsg_id: torn\nty")
    post(path, "INFO", "two")
    reader = BusReader(path)
    assert [message.body for message in reader.messages()] == ["one", "two"]
    assert reader.skipped == len("[2026-02-05 12:51:53] FACT: an old line") + len("---msg_id: tornty")


def test_a_key_in_a_message_is_redacted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "correct horse battery")
    post(path, "INFO", "the key is ghp_" + "a1B2" * 9 + " and the password 'correct horse battery'\n---\n")
    assert bodies(path) == ["the key is [redacted] and the password '[redacted]'\n---\n"]
    assert b"horse" not in path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0


def test_a_thread_is_a_message_and_its_answers() -> None:
    parents = {"a": "", "b": "a", "c": "", "d": "b", "e": "c", "f": "a"}
    messages = [
        Message(msg_id=msg_id, ts="", type="INFO", body="", parent=parent) for msg_id, parent in parents.items()
    ]
    assert [message.msg_id for message in thread(messages, "a")] == ["a", "b", "d", "f"]
