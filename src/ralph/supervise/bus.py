"""How do processes leave each other messages? In an append-only file (its format stands below) that many may
write at once, that a writer killed half-way does not spoil, and that is read from any place without a lock."""

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import BinaryIO, Protocol

from msgspec import Struct, convert, field, to_builtins

from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.files import StrPath, Supplanted, hold, is_hole, open_file
from ralph.processes.program import seconds_left

START = b"\n---\nmsg_id: "
HEADER_END = b"\n---\n"
END = b"\n\n"
LONGEST_HEADER = 1 << 16
LONGEST_BODY = 1 << 28


class Message(Struct, frozen=True, kw_only=True):
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
        raw = re.sub(rb"(?m)^(?=\\*msg_id: )", rb"\\", raw)
    return raw


def size_of(piece: bytes, is_last: bool = True) -> int:
    """How many bytes of `piece` (what follows a START) are a message: none, if it is torn; more than there are, if it
    may still be on its way. A message of conductor-loop's, whose header states no length, goes on to the next one."""
    end = piece.find(HEADER_END, 0, LONGEST_HEADER)
    if end < 0:
        return len(piece) + 1 if len(piece) < LONGEST_HEADER else 0
    if b"\nlength: " not in piece[:end]:
        return len(piece) + is_last if b"\ntype: " in piece[:end] else 0
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
    if types is not None and values.get("type", "").lower() not in types:
        return None
    if "length" not in values:
        return _foreign(msg_id, lines, rest)
    raw = rest[: int(values["length"])]
    if b"msg_id: " in raw:
        raw = re.sub(rb"(?m)^\\(?=\\*msg_id: )", b"", raw)
    return _message(msg_id, values, raw, values.get("parent", ""))


def _foreign(msg_id: str, lines: list[str], body: bytes) -> Message:
    """A message that conductor-loop wrote: its header is YAML, and a message may have several parents."""
    values = {key: _unquoted(value) for key, _, value in (line.partition(":") for line in lines) if key.isidentifier()}
    parents = [_unquoted(line.strip().lstrip("- ").removeprefix("msg_id:")) for line in lines if "- " in line[:8]]
    parent = parents[0] if parents and "parents" in values else ""
    return _message(_unquoted(msg_id), values, body.rstrip(b"\n"), parent)


def _message(msg_id: str, values: Mapping[str, str], body: bytes, parent: str) -> Message:
    told = {"ts": "", "type": "", **values, "msg_id": msg_id, "body": decoded(body), "parent": parent}
    return convert(told, Message)


def _unquoted(value: str) -> str:
    value = value.strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value


def _fields(message: Message) -> dict[str, str]:
    return {key: value for key, value in to_builtins(message).items() if key not in ("msg_id", "ts", "body")}


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


BLOCK = 1 << 18
LOCK_PATIENCE = 10.0


class Stopper(Protocol):
    """What `follow` needs of a threading.Event."""

    def wait(self, timeout: float) -> bool: ...


def post(
    path: StrPath,
    type: str,  # noqa: A002 (the header's own word)
    body: str,
    *,
    project: str = "",
    task: str = "",
    run: str = "",
    parent: str = "",
    now: Callable[[], float] = time.time,
) -> str:
    """Append one message and return its id. What looks like a key is struck out, and what is known here to be one."""
    body = Redactor(secret_values(os.environ)).text(body)
    message = Message(msg_id="", ts="", type=type, body=body, project=project, task=task, run=run, parent=parent)
    if problem := complaint(message):
        raise UserError(problem)
    header, raw = header_of(message), body_of(message)
    fd = _open_locked(path)
    try:
        msg_id, ts = _stamp(now())
        head = f"---\nmsg_id: {msg_id}\nts: {ts}\n".encode() + header + b"length: %d\n---\n" % len(raw)
        _append(fd, path, head + raw + END)
    finally:
        os.close(fd)
    return msg_id


class MessageBus:
    """The bus in the file `path`, as an object."""

    def __init__(self, path: StrPath) -> None:
        self.path = os.path.abspath(path)

    def post(self, type: str, body: str, *, project: str = "", task: str = "", run: str = "") -> str:  # noqa: A002
        """Append one message and return its id."""
        return post(self.path, type, body, project=project, task=task, run=run)

    def read(self, since: str | None = None, types: Collection[str] | None = None) -> Iterator[Message]:
        """The messages after the one with the id `since`."""
        return read(self.path, since, types)

    def follow(
        self, stop: Stopper, since: str | None = None, types: Collection[str] | None = None
    ) -> Iterator[Message]:
        """As `read`, and then every message as it arrives, until `stop` is set."""
        return follow(self.path, since, stop, types)


def prepare(path: StrPath) -> None:
    """Make the bus if need be; what cannot be one is refused before it is needed."""
    os.close(_open_locked(path))


def read(path: StrPath, since: str | None = None, types: Collection[str] | None = None) -> Iterator[Message]:
    """The messages after the one with the id `since`, in the order of the file. Where no file is, there are none."""
    return BusReader(path, since, types).messages()


def follow(
    path: StrPath, since: str | None, stop: Stopper, types: Collection[str] | None = None, interval: float = 0.25
) -> Iterator[Message]:
    """As `read`, and then every message as it arrives, until `stop` is set."""
    reader = BusReader(path, since, types)
    while True:
        yield from reader.messages()
        if stop.wait(interval):
            return


def last(path: StrPath) -> Message | None:
    """The latest message. Only the end of the file is read."""
    span = BLOCK
    while True:
        reader = BusReader(path)
        reader.skip(all_but=span)
        first, latest = reader.offset, None
        for message in reader.messages():
            latest = message
        if latest is not None or first == 0:
            return latest
        span *= 4


class BusReader:
    """A place in a bus: `messages` gives what has become whole since. `unread` are bytes that belong to no message."""

    def __init__(self, path: StrPath, since: str | None = None, types: Collection[str] | None = None) -> None:
        self.path = path
        self.offset = self.unread = 0
        self._since = since
        self._types = frozenset(name.lower() for name in types) if types else None

    def skip(self, all_but: int = 0) -> None:
        """Pass over what is there, save the last `all_but` bytes."""
        with _reading(self.path) as file:
            # The last newline stays: the next message's START begins with it.
            self.offset = max(0, file.seek(0, os.SEEK_END) - 1 - all_but)

    def messages(self) -> Iterator[Message]:
        with _reading(self.path) as file:
            if self._since:
                self.offset, self._since = _place_of(self._since, file, self.path), None
            if file.seek(0, os.SEEK_END) < self.offset:
                self.offset = 0  # another file stands here now
            file.seek(self.offset)
            for piece in self._pieces(file):
                message = parse(piece, self._types)
                if message is not None:
                    yield message

    def _pieces(self, file: BinaryIO) -> Iterator[bytes]:
        """Every whole message from here on, without its START. `offset` is kept behind what was given."""
        # The file's first message has no newline before it: pretend one.
        data, base = (b"", self.offset) if self.offset else (b"\n", -1)
        while block := file.read(max(BLOCK, len(data))):
            data += block
            at, start = 0, data.find(START)
            while start >= 0:
                self._pass_over(data[at:start])
                inside = start + len(START)
                following = data.find(START, inside)
                piece = data[inside:] if following < 0 else data[inside : following + 1]
                size = size_of(piece, is_last=following < 0)
                if size > len(piece) and following < 0:
                    at = start
                    break
                if 0 < size <= len(piece):
                    self.offset = base + inside
                    yield piece
                    at, start = inside + size - 1, following
                else:
                    at, start = start, following
            else:
                rest = max(at, len(data) - len(START) + 1, 0)
                self._pass_over(data[at:rest])
                at = rest
            data, base = data[at:], base + at
            self.offset = max(0, base)
        yield from self._last_piece(data, base)

    def _last_piece(self, data: bytes, base: int) -> Iterator[bytes]:
        """A message that nothing follows, and that does not say how long it is, ends with the file."""
        piece = data[len(START) :]
        if (
            data.startswith(START)
            and HEADER_END in piece
            and piece.endswith(b"\n")
            and size_of(piece, False) == len(piece)
        ):
            self.offset = base + len(data) - 1
            yield piece
        else:
            self._pass_over(data)

    def _pass_over(self, text: bytes) -> None:
        self.unread += len(text) - text.count(b"\n")


def _place_of(msg_id: str, file: BinaryIO, path: StrPath) -> int:
    """A place within the message `msg_id`. Looked for from the end: mostly it is a recent one."""
    needle = START + encoded(msg_id) + b"\n"
    end, overlap = file.seek(0, os.SEEK_END), b""
    while end > 0:
        begin = file.seek(max(0, end - BLOCK))
        data = b"\n" * (begin == 0) + file.read(end - begin) + overlap
        at = data.rfind(needle)
        if at >= 0:
            return begin + at + len(needle) - 1
        end, overlap = begin, data[: len(needle)]
    raise UserError(f"there is no message {msg_id} in {path}", "`ralph bus read` shows the ids")


def _append(fd: int, path: StrPath, record: bytes) -> None:
    """Write `record` below a blank line, so that what a killed writer left behind does not run into it."""
    size = os.fstat(fd).st_size
    ending = os.pread(fd, len(END), max(0, size - len(END)))
    if size and ending != END:
        record = (b"\n" if ending.endswith(b"\n") else END) + record
    left = memoryview(record)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError as error:
        os.ftruncate(fd, size)  # the lock is still held: these bytes are ours
        raise _refusal(path, error) from None


def _open_locked(path: StrPath) -> int:
    """The bus, made if need be, with a lock that dies with its holder."""
    while True:
        try:
            fd = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise _refusal(path, error) from None
        try:
            hold(fd, f"the message bus {path}", LOCK_PATIENCE, seconds_left)
            if os.fstat(fd).st_nlink:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # it was removed while we waited: take the one that is there now


def _reading(path: StrPath) -> BinaryIO:
    try:
        return open(_open(path, os.O_RDONLY), "rb", buffering=0)
    except FileNotFoundError:
        from io import BytesIO

        return BytesIO()
    except OSError as error:
        raise _refusal(path, error) from None


def _open(path: StrPath, flags: int) -> int:
    hint = "name a file, or move this out of its way"
    try:
        fd = open_file(path, flags, 0o600)
    except Supplanted as error:
        if error.errno == errno.ELOOP:
            raise
        raise UserError(f"the message bus {path} cannot be used: {error.strerror}", hint) from None
    try:
        why = "it is a hole without end" if is_hole(os.fstat(fd)) else ""
        os.pread(fd, 1, 0)
    except OSError:  # the memory of a process, for one
        why = "it is no file of text"
    if why:
        os.close(fd)
        raise UserError(f"the message bus {path} cannot be used: {why}", hint)
    return fd


def _refusal(path: StrPath, error: OSError) -> UserError:
    if error.errno == errno.ELOOP:
        return UserError(f"the message bus {path} is a symbolic link", "name the file itself")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return UserError(f"there is no folder for the message bus {path}", "make the folder first")
    return UserError(f"the message bus {path} cannot be used: {error.strerror}")


def _stamp(now: float) -> tuple[str, str]:
    """An id that sorts by time and that no other message has, and the time for people."""
    micros = round(now * 1_000_000)
    moment, fraction = time.gmtime(micros // 1_000_000), f"{micros % 1_000_000:06d}"
    msg_id = f"MSG-{time.strftime('%Y%m%d-%H%M%S', moment)}-{fraction}-{os.urandom(5).hex()}"
    return msg_id, f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{fraction}Z"
