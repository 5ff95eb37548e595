r"""The message bus: an append-only file that many processes may write to at once. A message looks like this:

    ---
    msg_id: MSG-20261118-120000-000000-1a2b3c4d5e
    ts: 2026-11-18T12:00:00.000000Z
    type: INFO
    project_id: shop
    length: 5
    ---
    hello

Writers take a lock. Readers need none, because `length` tells them whether a message is complete: they skip a message
that a killed writer left half written. A body line that starts with `msg_id: ` is stored with a backslash in front, so
that no body looks like the start of a message.
"""

import os
import re
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from threading import Event

from msgspec import Struct, convert, field, to_builtins

from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UserError
from ralph.files import StrPath, acquire_lock, cannot_use, open_file

HEADER = re.compile(rb"^---\n(msg_id: [^\n]*\n(?:[a-z_]+: [^\n]*\n)*)length: ([0-9]{1,9})\n---\n", re.MULTILINE)
END = b"\n\n"
LOCK_TIMEOUT = 10.0  # seconds


class Message(Struct, frozen=True, kw_only=True):
    """One message. `parent` is the id of the message that it answers."""

    msg_id: str
    ts: str
    type: str
    body: str
    project: str = field(name="project_id", default="")
    task: str = field(name="task_id", default="")
    run: str = field(name="run_id", default="")
    parent: str = ""

    def encode(self) -> bytes:
        """Return the message as it is stored. Anything that is not valid text becomes `?`."""
        body = re.sub(rb"(?m)^(?=\\*msg_id: )", rb"\\", self.body.encode("utf-8", "replace"))
        fields = {name: value for name, value in to_builtins(self).items() if value and name != "body"}
        header = "".join(f"{name}: {value}\n" for name, value in fields.items()).encode("utf-8", "replace")
        return b"---\n" + header + b"length: %d\n---\n" % len(body) + body + END


class MessageBus:
    """The bus in the file `path`, which the first message creates."""

    def __init__(self, path: StrPath) -> None:
        self.path = os.path.abspath(path)

    def post(
        self,
        type: str,  # noqa: A002 (the name in the header)
        body: str,
        *,
        project: str = "",
        task: str = "",
        run: str = "",
        parent: str = "",
    ) -> str:
        """Append a message and return its id. Secrets in the body are redacted."""
        ts = timestamp()
        msg_id = f"MSG-{unique_name(ts, 5)}"
        body = Redactor(secret_values(os.environ)).text(body)
        message = Message(
            msg_id=msg_id, ts=ts, type=type, body=body, project=project, task=task, run=run, parent=parent
        )
        _validate(message)
        fd = self._open_locked()
        try:
            self._append(fd, message.encode())
        finally:
            os.close(fd)
        return msg_id

    def read(self, since: str | None = None, types: Collection[str] | None = None) -> Iterator[Message]:
        """Yield the messages after the one with the id `since`; none if there is no file."""
        return BusReader(self.path, since, types).messages()

    def follow(
        self, stop: Event, since: str | None = None, types: Collection[str] | None = None, interval: float = 0.25
    ) -> Iterator[Message]:
        """Like `read`, then yield every message as it arrives, until `stop` is set."""
        reader = BusReader(self.path, since, types)
        while True:
            yield from reader.messages()
            if stop.wait(interval):
                return

    def last(self) -> Message | None:
        """Return the latest message."""
        latest = deque(self.read(), maxlen=1)
        return latest[0] if latest else None

    def create(self) -> None:
        """Create the file if needed. Raise UserError if it can't be used."""
        os.close(self._open_locked())

    def _open_locked(self) -> int:
        try:
            fd = open_file(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise cannot_use(f"the message bus {self.path}", error) from None
        try:
            acquire_lock(fd, f"the message bus {self.path}", LOCK_TIMEOUT)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _append(self, fd: int, record: bytes) -> None:
        """Write `record` below an empty line, so that a torn message before it doesn't run into it."""
        size = os.fstat(fd).st_size
        try:
            ending = os.pread(fd, len(END), max(0, size - len(END)))
            if size and ending != END:
                record = (b"\n" if ending.endswith(b"\n") else END) + record
            left = memoryview(record)
            while left:
                left = left[os.write(fd, left) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(fd, size)  # nobody else has written since: this process has the lock
            raise cannot_use(f"the message bus {self.path}", error) from None


class BusReader:
    """Reads a bus from a position on. `skipped`: how many bytes belonged to no message when `messages` last ran."""

    def __init__(self, path: StrPath, since: str | None = None, types: Collection[str] | None = None) -> None:
        self.path = path
        self.skipped = 0
        self._offset = 0
        self._since = since
        self._types = frozenset(name.lower() for name in types or ())

    def skip(self) -> None:
        """Move behind everything that is there."""
        self._offset += len(self._unread())

    def messages(self) -> Iterator[Message]:
        """Yield the messages that became complete since the last call."""
        data, base = self._unread(), self._offset
        skipped = after = 0
        for message, start, end in parse_messages(data):
            skipped += _count(data[after:start])
            after = end
            self._offset = base + end
            if self._is_wanted(message):
                yield message
        if self._since:
            raise UserError(f"no message {self._since} in {self.path}", "`ralph bus read` lists the ids")
        self.skipped = skipped + _count(data[after:])

    def _is_wanted(self, message: Message) -> bool:
        if self._since:
            self._since = None if message.msg_id == self._since else self._since
            return False
        return not self._types or message.type.lower() in self._types

    def _unread(self) -> bytes:
        try:
            with open(open_file(self.path), "rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0  # the file was replaced
                file.seek(self._offset)
                return file.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise cannot_use(f"the message bus {self.path}", error) from None


def parse_messages(data: bytes) -> Iterator[tuple[Message, int, int]]:
    """Yield the complete messages in `data`, each with its start and end."""
    for header in HEADER.finditer(data):
        lines = header[1].decode("utf-8", "replace").split("\n")[:-1]
        values = dict(line.split(": ", 1) for line in lines)
        start, end = header.end(), header.end() + int(header[2])
        # A message that a killed writer left half written may be followed by another one.
        is_complete = data[end : end + len(END)] == END and not HEADER.search(data, start, end)
        if is_complete and "type" in values:
            body = re.sub(rb"(?m)^\\(?=\\*msg_id: )", b"", data[start:end]).decode("utf-8", "replace")
            yield convert({"ts": "", **values, "body": body}, Message), header.start(), end + len(END)


def thread(messages: Iterable[Message], root: str) -> Iterator[Message]:
    """Yield the message `root`, its answers, and the answers to those."""
    known = {root}
    for message in messages:
        if message.msg_id in known or message.parent in known:
            known.add(message.msg_id)
            yield message


def _validate(message: Message) -> None:
    if not message.type:
        raise UserError("a message needs a type", "for example --type INFO")
    for name, value in to_builtins(message).items():
        if name != "body" and (not value.isprintable() or value != value.strip() or len(value) > 1000):
            raise UserError(f"the {name} of a message must be one line of printable text, got {value[:100]!r}")


def _count(data: bytes) -> int:
    return len(data) - data.count(b"\n")


def timestamp(seconds: float | None = None) -> str:
    """Return a time (default: now) as `2026-11-18T12:00:00.000000Z`."""
    micros = time.time_ns() // 1000 if seconds is None else round(seconds * 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(micros // 1_000_000))}.{micros % 1_000_000:06d}Z"


def unique_name(ts: str, random_bytes: int) -> str:
    """Return a unique name that sorts by time: `20261118-120000-000000-1a2b`."""
    return f"{re.sub('[-:Z]', '', ts).translate({ord('T'): '-', ord('.'): '-'})}-{os.urandom(random_bytes).hex()}"
