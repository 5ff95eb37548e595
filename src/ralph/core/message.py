r"""How is a message of the bus written down, so that it can be found again whatever stands around it?

    ---
    msg_id: MSG-20261115-120102-123456-1f2e3d4c5b
    ts: 2026-11-15T12:01:02.123456Z
    type: INFO
    length: 11
    ---
    hello world

The lines `---` and `msg_id: ` begin a message and stand together nowhere else: a body line that begins with `msg_id: `
is written with a backslash in front (one more, if it has some). So the next message is found from any place in the
file, whatever bodies and torn messages contain. A message counts once its `length` bytes and a blank line are there.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

START = b"\n---\nmsg_id: "
HEADER_END = b"\n---\n"
END = b"\n\n"
LONGEST_HEADER = 1 << 16
LONGEST_BODY = 1 << 28


class Message(Struct, frozen=True):
    """One message. `parent` is the message it answers. Bytes that are not UTF-8 are surrogate escapes in `body`."""

    msg_id: str
    ts: str
    type: str
    body: str
    project: str = field(name="project_id", default="")
    task: str = field(name="task_id", default="")
    run: str = field(name="run_id", default="")
    parent: str = ""


def complaint(message: Message) -> str:
    """Why this cannot be a message, or nothing."""
    if not message.type:
        return "a message needs a type"
    for key, value in _fields(message).items():
        if not value.isprintable() or value != value.strip() or len(value) > 1000:
            return f"the {key} of a message must be one line of printable text, not {value[:100]!r}"
    if len(message.body) > LONGEST_BODY // 4 and len(encoded(message.body)) > LONGEST_BODY:
        return f"a message may have {LONGEST_BODY} bytes at most"
    return ""


def header_of(message: Message) -> bytes:
    """The header's lines below `msg_id` and `ts`."""
    return encoded("".join(f"{key}: {value}\n" for key, value in _fields(message).items() if value))


def body_of(message: Message) -> bytes:
    """The body as it stands in the file. Every character survives, save lone surrogates, which become `?`."""
    raw = encoded(message.body)
    if b"msg_id: " in raw:
        import re

        raw = re.sub(rb"(?m)^(?=\\*msg_id: )", rb"\\", raw)
    return raw


def size_of(piece: bytes) -> int:
    """How many bytes of `piece` (what follows a START) are a message: none, if it is torn; more than there are, if it
    may still be on its way."""
    end = piece.find(HEADER_END, 0, LONGEST_HEADER)
    if end < 0:
        return len(piece) + 1 if len(piece) < LONGEST_HEADER else 0
    length = piece[piece.rfind(b"\n", 0, end) + 1 : end].removeprefix(b"length: ")
    if not length.isdigit() or len(length) > len(str(LONGEST_BODY)):
        return 0
    size = end + len(HEADER_END) + int(length) + len(END)
    return size if size > len(piece) or piece[size - len(END) : size] == END else 0


def parse(piece: bytes, types: frozenset[str] | None = None) -> Message | None:
    """The message in a whole `piece`, unless its type (in lower case) is none of `types`."""
    header, _, rest = piece.partition(HEADER_END)
    msg_id, *lines = header.decode("utf-8", "replace").split("\n")
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    kind = values.get("type", "")
    if types is not None and kind.lower() not in types:
        return None
    raw = rest[: int(values["length"])]
    if b"msg_id: " in raw:
        import re

        raw = re.sub(rb"(?m)^\\(?=\\*msg_id: )", b"", raw)
    return Message(
        msg_id,
        values.get("ts", ""),
        kind,
        decoded(raw),
        values.get("project_id", ""),
        values.get("task_id", ""),
        values.get("run_id", ""),
        values.get("parent", ""),
    )


def _fields(message: Message) -> dict[str, str]:
    return {
        "type": message.type,
        "project_id": message.project,
        "task_id": message.task,
        "run_id": message.run,
        "parent": message.parent,
    }


def thread(messages: Iterable[Message], root: str) -> Iterator[Message]:
    """The message `root` and all that answer it, or answer an answer."""
    known = {root}
    for message in messages:
        if message.msg_id in known or message.parent in known:
            known.add(message.msg_id)
            yield message


def encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
