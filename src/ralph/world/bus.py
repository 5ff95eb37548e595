r"""How do processes leave each other messages? In an append-only file that survives a writer killed half-way.

    ---
    msg_id: MSG-20261115-120102-123456-1f2e3d4c5b
    ts: 2026-11-15T12:01:02.123456Z
    type: INFO
    length: 11
    ---
    hello world

The lines `---` and `msg_id: ` start a message and stand together nowhere else: a body line that begins with `msg_id: ` is
written with a backslash in front (one more, if it has some). So a reader finds the next message from any place in
the file, whatever bodies and torn messages contain; and a message counts once its `length` bytes and a blank line are there.
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import BinaryIO, Protocol

from msgspec import Struct, field

from ralph.errors import UserError

START = b"\n---\nmsg_id: "
HEADER_END = b"\n---\n"
MESSAGE_END = b"\n\n"
BLOCK = 1 << 18
LONGEST_HEADER = 1 << 16
LONGEST_BODY = 1 << 28
LOCK_PATIENCE = 10.0


class Message(Struct, frozen=True, omit_defaults=True):
    """One message. `parent` is the message it answers; a body that is not UTF-8 holds surrogate escapes."""

    msg_id: str
    ts: str
    type: str
    body: str
    project: str = field(name="project_id", default="")
    task: str = field(name="task_id", default="")
    run: str = field(name="run_id", default="")
    parent: str = ""


class Event(Protocol):
    """What `follow` needs of a threading.Event."""

    def wait(self, timeout: float) -> bool: ...


def post(
    path: str,
    type: str,  # noqa: A002 (the header's own word)
    body: str,
    *,
    project: str = "",
    task: str = "",
    run: str = "",
    parent: str = "",
    now: Callable[[], float] = time.time,
) -> str:
    """Append one message and return its id. All characters survive, save lone surrogates, which become `?`."""
    if not type.strip():
        raise UserError("a message needs a type", "for example: --type INFO")
    header = {"type": type, "project_id": project, "task_id": task, "run_id": run, "parent": parent}
    lines = "".join(f"{key}: {_one_line(key, value)}\n" for key, value in header.items() if value)
    raw = _escaped(_encoded(body))
    if len(raw) > LONGEST_BODY:
        raise UserError(f"the message is too long: {len(raw)} bytes", f"the limit is {LONGEST_BODY}: put it in a file")
    fd = _open_locked(path)
    try:
        msg_id, ts = _stamp(now())
        head = f"---\nmsg_id: {msg_id}\nts: {ts}\n{lines}length: {len(raw)}\n---\n"
        _append(fd, path, b"".join((_encoded(head), raw, MESSAGE_END)))
    finally:
        os.close(fd)
    return msg_id


def read(path: str, since: str | None = None, types: Collection[str] | None = None) -> Iterator[Message]:
    """The messages after the one with the id `since`, in the order of the file; a bus without a file is empty."""
    return Reader(path, since, types).messages()


def follow(
    path: str, since: str | None, stop: Event, types: Collection[str] | None = None, interval: float = 0.25
) -> Iterator[Message]:
    """As `read`, and then every message as it arrives, until `stop` is set."""
    reader = Reader(path, since, types)
    while True:
        yield from reader.messages()
        if stop.wait(interval):
            return


def thread(messages: Iterable[Message], root: str) -> Iterator[Message]:
    """The message `root` and all that answer it, or an answer to it."""
    known = {root}
    for message in messages:
        if message.msg_id in known or message.parent in known:
            known.add(message.msg_id)
            yield message


def last(path: str) -> Message | None:
    """The latest message; only the end of the file is read."""
    span = BLOCK
    while True:
        reader = Reader(path)
        reader.skip(all_but=span)
        first, latest = reader.offset, None
        for latest in reader.messages():  # noqa: B007
            pass
        if latest is not None or first == 0:
            return latest
        span *= 4


class Reader:
    """A place in a bus: `messages` gives what has become whole since it was last asked."""

    def __init__(self, path: str, since: str | None = None, types: Collection[str] | None = None) -> None:
        self.path = path
        self.offset = 0
        self._since = since
        self._types = {name.casefold() for name in types} if types else None

    def skip(self, all_but: int = 0) -> None:
        """Pass over what is there, save the last `all_but` bytes."""
        with _reading(self.path) as file:
            self.offset = max(0, file.seek(0, os.SEEK_END) - all_but)

    def messages(self) -> Iterator[Message]:
        with _reading(self.path) as file:
            if self._since:
                self.offset, self._since = _place_of(self._since, file, self.path), None
            if file.seek(0, os.SEEK_END) < self.offset:
                self.offset = 0  # another file stands here now
            file.seek(self.offset)
            for piece in self._pieces(file):
                message = _message(piece, self._types)
                if message is not None:
                    yield message

    def _pieces(self, file: BinaryIO) -> Iterator[bytes]:
        """Each whole message from here on, without its START; torn ones are passed over."""
        # The file's first message has no newline before it: pretend one.
        data, base = (b"", self.offset) if self.offset else (b"\n", -1)
        while block := file.read(max(BLOCK, len(data))):
            data += block
            at = max(0, len(data) - len(START) + 1)
            start = data.find(START)
            while start >= 0:
                inside = start + len(START)
                following = data.find(START, inside)
                piece = data[inside : following + 1] if following >= 0 else data[inside:]
                size = _size(piece)
                if size > len(piece) and following < 0:
                    at = start  # it may still be on its way
                    break
                at = max(at, inside) if following < 0 else following
                if 0 < size <= len(piece):
                    self.offset = base + at
                    yield piece
                start = following
            data, base = data[at:], base + at
            self.offset = max(0, base)


def _size(piece: bytes) -> int:
    """How many bytes of `piece` are a message: none, if it is torn; more than there are, if it is cut off."""
    end = piece.find(HEADER_END, 0, LONGEST_HEADER)
    if end < 0:
        return len(piece) + 1 if len(piece) < LONGEST_HEADER else 0
    length = piece[piece.rfind(b"\n", 0, end) + 1 : end].removeprefix(b"length: ")
    if not length.isdigit() or len(length) > len(str(LONGEST_BODY)):
        return 0
    size = end + len(HEADER_END) + int(length) + len(MESSAGE_END)
    return size if size > len(piece) or piece[size - len(MESSAGE_END) : size] == MESSAGE_END else 0


def _message(piece: bytes, types: Collection[str] | None) -> Message | None:
    """The message in `piece`, unless its type is none of `types`."""
    header, _, rest = piece.partition(HEADER_END)
    msg_id, *lines = _decoded(header).split("\n")
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    kind = values.get("type", "")
    if types is not None and kind.casefold() not in types:
        return None
    return Message(
        msg_id,
        values.get("ts", ""),
        kind,
        _decoded(_unescaped(rest[: int(values["length"])])),
        values.get("project_id", ""),
        values.get("task_id", ""),
        values.get("run_id", ""),
        values.get("parent", ""),
    )


def _place_of(msg_id: str, file: BinaryIO, path: str) -> int:
    """A place within the message `msg_id`. Looked for from the end: it is mostly a recent one."""
    needle = START + _encoded(msg_id) + b"\n"
    end, overlap = file.seek(0, os.SEEK_END), b""
    while end > 0:
        begin = file.seek(max(0, end - BLOCK))
        data = b"\n" * (begin == 0) + file.read(end - begin) + overlap
        at = data.rfind(needle)
        if at >= 0:
            return begin + at + len(needle) - 1
        end, overlap = begin, data[: len(needle)]
    raise UserError(f"there is no message {msg_id} in {path}", "ralph bus read prints the ids")


def _append(fd: int, path: str, record: bytes) -> None:
    """Write `record` after a blank line: what a killed writer left behind must not run into it."""
    size = os.fstat(fd).st_size
    ending = os.pread(fd, 2, max(0, size - 2))
    if size and ending != MESSAGE_END:
        record = (b"\n" if ending.endswith(b"\n") else MESSAGE_END) + record
    left = memoryview(record)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError as error:
        os.ftruncate(fd, size)  # the lock is held: these bytes are ours
        raise _refusal(path, error) from None


def _open_locked(path: str) -> int:
    """The bus, created if need be, with a lock that dies with its holder."""
    while True:
        fd = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            _lock(fd, path)
            if os.fstat(fd).st_nlink:
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # somebody removed it while we waited: use the one that is there now


def _lock(fd: int, path: str) -> None:
    """Polled, because a holder that is stopped rather than killed must not stop everybody else for ever."""
    import fcntl

    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                hint = "a process that holds its lock is stopped: continue or end it"
                raise UserError(f"the message bus {path} is locked", hint) from None
            time.sleep(0.0005)


def _reading(path: str) -> BinaryIO:
    try:
        os.lstat(path)
    except FileNotFoundError:
        from io import BytesIO

        return BytesIO()
    except OSError as error:
        raise _refusal(path, error) from None
    return open(_open(path, os.O_RDONLY), "rb", buffering=0)


def _open(path: str, flags: int) -> int:
    try:
        # Not blocking: a pipe in the bus's place must be refused, not waited for.
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise _refusal(path, error) from None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise UserError(f"the message bus {path} is not a regular file", "name a file, or move this away")


def _refusal(path: str, error: OSError) -> UserError:
    if error.errno == errno.ELOOP:
        return UserError(f"the message bus {path} is a symbolic link", "name the file itself")
    if error.errno == errno.EISDIR:
        return UserError(f"the message bus {path} is a directory", "name a file in it")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return UserError(f"there is no folder for the message bus {path}", "create the folder first")
    return UserError(f"the message bus {path} cannot be used: {error.strerror}")


def _one_line(key: str, value: str) -> str:
    if not value.isprintable() or value != value.strip() or len(value) > 1000:
        raise UserError(f"not a {key} for a message: {value[:100]!r}", "one line of printable text is")
    return value


def _stamp(now: float) -> tuple[str, str]:
    """An id that sorts by time and no other writer has, and the time for people."""
    micros = round(now * 1_000_000)
    moment, fraction = time.gmtime(micros // 1_000_000), f"{micros % 1_000_000:06d}"
    msg_id = f"MSG-{time.strftime('%Y%m%d-%H%M%S', moment)}-{fraction}-{os.urandom(5).hex()}"
    return msg_id, f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{fraction}Z"


def _encoded(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _escaped(raw: bytes) -> bytes:
    if b"msg_id: " not in raw:
        return raw
    import re

    return re.sub(rb"(?m)^(?=\\*msg_id: )", rb"\\", raw)


def _unescaped(raw: bytes) -> bytes:
    if b"msg_id: " not in raw:
        return raw
    import re

    return re.sub(rb"(?m)^\\(?=\\*msg_id: )", b"", raw)
