import json
import os
import random
import re
import stat
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ralph.core.secrets import Redactor
from ralph.process.streams import Lines, LogFile


def split(*chunks: bytes, limit: int = 1 << 20) -> list[bytes]:
    lines = Lines(limit)
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.close()


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([], []),
        ([b""], []),
        ([b"\n"], [b""]),
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a\nb"], [b"a", b"b"]),
        ([b"a", b"b", b"\n", b"c"], [b"ab", b"c"]),
        ([b"a\n", b"\n", b"b\n"], [b"a", b"", b"b"]),
        ([b"carriage\r\nreturn\r"], [b"carriage\r", b"return\r"]),
        ([b"form\x0cfeed\x1c\xc2\x85\xe2\x80\xa8line"], [b"form\x0cfeed\x1c\xc2\x85\xe2\x80\xa8line"]),
        ([b"nul\0\xff\n"], [b"nul\0\xff"]),
    ],
)
def test_only_a_newline_ends_a_line(chunks: list[bytes], expected: list[bytes]) -> None:
    assert split(*chunks) == expected


@given(st.lists(st.binary(max_size=300)), st.integers(1, 400))
def test_lines_do_not_depend_on_chunks(pieces: list[bytes], size: int) -> None:
    data = b"\n".join(pieces)
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert split(*chunks) == split(data)
    assert b"\n".join(split(data)) == data.removesuffix(b"\n")


def test_a_line_at_the_limit_is_whole() -> None:
    assert split(b"x" * 1000 + b"\n" + b"y" * 1000, limit=1000) == [b"x" * 1000, b"y" * 1000]


@pytest.mark.parametrize("size", [1, 7, 64, 999, 5000])
def test_a_long_line_keeps_both_ends_and_says_what_was_cut(size: int) -> None:
    data = b"begin " + b"x" * 3000 + b" end"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    (line,) = split(*chunks, limit=1000)
    assert line.startswith(b"begin xxx")
    assert line.endswith(b"xxx end")
    assert re.search(rb" \[cut 2\d\d\d bytes\] ", line)
    assert len(line) <= 1000


def test_lines_after_a_long_line_are_whole() -> None:
    assert split(b"x" * 3000, b"x\nnext\n", b"last", limit=1000)[1:] == [b"next", b"last"]


_STRINGS = {
    "plain": "abcdefgh" * 400,
    "umlauts": "äöüß€😀" * 200,
    "escapes": '"\\\n\t/' * 600,
    "backslashes": "\\\\\\a" * 1000,
    "mixed": "".join(random.Random(7).choice('ab\\"\n\u0001é😀\ud83d') for _ in range(3000)),
}


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("name", _STRINGS)
def test_a_json_string_cut_in_its_middle_is_still_json(name: str, ascii_only: bool) -> None:
    text = _STRINGS[name] if ascii_only else _STRINGS[name].replace("\ud83d", "")
    for shift in range(30):
        whole = {"type": "x" * shift, "result": text, "n": 1}
        line = json.dumps(whole, ensure_ascii=ascii_only).encode()
        (cut,) = split(line, limit=1000)
        kept = json.loads(cut)
        assert (kept["type"], kept["n"]) == (whole["type"], 1)
        head, _, rest = kept["result"].partition(" [cut ")
        tail = rest.partition("] ")[2]
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(cut) > 900


def test_memory_does_not_grow_with_a_line() -> None:
    lines = Lines()
    chunk = b"x" * (1 << 16)
    tracemalloc.start()
    for _ in range(1000):
        assert lines.feed(chunk) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20
    assert len(lines.close()[0]) <= 1 << 20


KEY = b"sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz0123456789"


def written(path: Path, *chunks: bytes, limit: int = 32 << 20) -> bytes:
    with LogFile(str(path), limit) as log:
        for chunk in chunks:
            log.write(chunk)
    assert log.trouble == ""
    return path.read_bytes()


def test_a_short_stream_is_written_byte_for_byte(tmp_path: Path) -> None:
    data = bytes(range(256)) * 3 + b"\nno newline at the end"
    assert written(tmp_path / "log", data[:100], data[100:]) == data


def test_only_the_owner_can_read_a_log(tmp_path: Path) -> None:
    written(tmp_path / "log", b"x")
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_whole_lines_are_on_disk_at_once(tmp_path: Path) -> None:
    with LogFile(str(tmp_path / "log")) as log:
        log.write(b"one\ntwo\nthr")
        assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_a_long_stream_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    lines = [b"line %d\n" % number for number in range(10_000)]
    data = written(tmp_path / "log", *lines, limit=4096)
    assert len(data) <= 4096
    head, _, tail = data.partition(b"\n[... ")
    count, _, tail = tail.partition(b" bytes left out ...]\n")
    assert b"".join(lines).startswith(head)
    assert b"".join(lines).endswith(tail)
    assert tail.startswith(b"line ")
    assert len(head) + int(count) + len(tail) == len(b"".join(lines))


@pytest.mark.parametrize("limit", [0, 1, 2, 100, 300])
def test_a_limit_too_small_for_any_text_still_says_what_was_left_out(tmp_path: Path, limit: int) -> None:
    assert b"bytes left out" in written(tmp_path / "log", b"x" * 1000, limit=limit)


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=700), max_size=12))
def test_a_stream_below_the_limit_is_written_completely(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    data = b"".join(chunks)
    assert written(path, *chunks, limit=len(data) + 128) == data
    assert len(written(path, *chunks, limit=1024)) <= 1024


@pytest.mark.parametrize("size", [1, 3, 20, 64, 1000])
@pytest.mark.parametrize("around", [b'{"key":"%s"}\n', b"export KEY=%s\n", b'"%s",' * 3, b"%s"])
def test_a_key_is_redacted_however_it_is_split(tmp_path: Path, around: bytes, size: int) -> None:
    data = around.replace(b"%s", KEY) * 40
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    text = written(tmp_path / "log", *chunks)
    assert b"AbCdEfGh" not in text
    assert b"z0123456789" not in text
    assert text.count(b"[redacted]") >= 1


@pytest.mark.parametrize("limit", range(600, 900, 7))
def test_a_key_at_the_edge_of_the_cut_is_redacted(tmp_path: Path, limit: int) -> None:
    text = written(tmp_path / "log", *[b"a line with a %s in it\n" % KEY] * 100, limit=limit)
    assert b"0123456789" not in text
    assert b"AbCdEf" not in text


def test_a_private_key_over_many_lines_and_chunks_is_redacted(tmp_path: Path) -> None:
    block = [b"-----BEGIN RSA PRIVATE KEY-----\n", *[b"MIIEowIBAAKCAQEA%d\n" % n for n in range(50)]]
    text = written(tmp_path / "log", b"before\n", *block, b"-----END RSA PRIVATE KEY-----\n", b"after\n")
    assert text == b"before\n[redacted]\nafter\n"


def test_known_secret_values_are_redacted(tmp_path: Path) -> None:
    with LogFile(str(tmp_path / "log"), redact=Redactor([b"correct horse battery"])) as log:
        log.write(b"the password is correct ho")
        log.write(b"rse battery, he said\n")
    assert (tmp_path / "log").read_bytes() == b"the password is [redacted], he said\n"


def test_a_full_disk_is_reported_and_ends_nothing() -> None:
    with LogFile("/dev/full") as log:
        log.write(b"one\n")
        log.write(b"two\n")
    assert log.trouble == "cannot write /dev/full: it is not a regular file"
    assert Path("/dev/full").is_char_device(), "what belongs to the system stays"


def test_a_removed_log_folder_is_created_again(tmp_path: Path) -> None:
    with LogFile(str(tmp_path / "none" / "001" / "log")) as log:
        log.write(b"one\n")
    assert not log.trouble
    assert (tmp_path / "none" / "001" / "log").read_bytes() == b"one\n"


def test_a_log_folder_that_cannot_be_created_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with LogFile(str(tmp_path / "file" / "log")) as log:
        log.write(b"one\n")
    assert "Not a directory" in log.trouble
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with LogFile("log") as log:
        log.write(b"one\n")
    assert "No such file or directory" in log.trouble


def test_a_log_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    os.symlink("precious", tmp_path / "log")
    with LogFile(str(tmp_path / "log")) as log:
        log.write(b"one\n")
    assert not log.trouble
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "log").is_symlink()
    assert (tmp_path / "log").read_bytes() == b"one\n"
