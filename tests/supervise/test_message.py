from hypothesis import given
from hypothesis import strategies as st

from ralph.supervise.bus import END, START, Message, body_of, complaint, header_of, parse, size_of, thread

LINES = st.sampled_from(
    ["---", "msg_id: MSG-1", "\\msg_id: x", "\\\\msg_id: ", "length: 3", "", "\r", "type: INFO", "é"]
)
BODIES = st.one_of(st.text(), st.lists(LINES).map("\n".join), st.lists(LINES).map("\r\n".join))


def written(message: Message) -> bytes:
    raw = body_of(message)
    return b"MSG-1\nts: now\n" + header_of(message) + b"length: %d\n---\n" % len(raw) + raw + END


@given(BODIES)
def test_any_body_comes_back(body: str) -> None:
    message = Message(msg_id="MSG-1", ts="now", type="INFO", body=body, project="p", task="t", run="r", parent="MSG-0")
    piece = written(message)
    assert size_of(piece) == len(piece)
    assert parse(piece) == message


@given(BODIES)
def test_no_body_contains_the_start_of_a_message(body: str) -> None:
    assert START not in b"\n" + written(Message(msg_id="MSG-1", ts="now", type="INFO", body=body))
    assert START not in b"\n---\n" + body_of(Message(msg_id="MSG-1", ts="now", type="INFO", body=body))


def test_a_piece_is_whole_only_with_its_last_byte() -> None:
    piece = written(Message(msg_id="MSG-1", ts="now", type="INFO", body="some\n---\ntext\n\n"))
    assert all(size_of(piece[:cut]) > cut for cut in range(len(piece)))
    assert size_of(piece + b"more") == len(piece)


def test_a_piece_with_another_length_than_it_says_is_torn() -> None:
    piece = written(Message(msg_id="MSG-1", ts="now", type="INFO", body="0123456789"))
    for wrong in (b"9", b"0", b"-1", b"x", b"", b"99999999999999", "٣".encode()):
        assert size_of(piece.replace(b"length: 10", b"length: " + wrong)) == 0


def test_a_header_that_does_not_end_is_not_waited_for_endlessly() -> None:
    assert size_of(b"MSG-1\n" + b"x" * 100_000) == 0


def test_types_are_chosen_in_any_case() -> None:
    piece = written(Message(msg_id="MSG-1", ts="now", type="Fact", body="x"))
    assert parse(piece, frozenset({"fact"})) is not None
    assert parse(piece, frozenset({"info"})) is None


def test_a_header_holds_single_lines_only() -> None:
    assert complaint(Message(msg_id="", ts="", type="INFO", body="x")) == ""
    for bad in (
        Message(msg_id="", ts="", type="", body="x"),
        Message(msg_id="", ts="", type="A\nlength: 0", body="x"),
        Message(msg_id="", ts="", type="INFO", body="x", project="a\rb"),
    ):
        assert complaint(bad)


def test_a_thread_is_a_message_and_all_that_answers_it() -> None:
    parents = {"a": "", "b": "a", "c": "", "d": "b", "e": "c", "f": "a"}
    messages = [
        Message(msg_id=msg_id, ts="", type="INFO", body="", parent=parent) for msg_id, parent in parents.items()
    ]
    assert [message.msg_id for message in thread(messages, "a")] == ["a", "b", "d", "f"]
