import json
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ralph.processes.streams import Lines


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
def test_chunks_do_not_matter(pieces: list[bytes], size: int) -> None:
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
    assert b" [cut 2 KB] " in line
    assert len(line) <= 1000


def test_what_follows_a_long_line_is_whole() -> None:
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
