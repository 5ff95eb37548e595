"""The message bus: an append-only file with a line of JSON for each message, which many processes may write to at once.

Writers take a lock. Readers need none: they skip a line that a killed writer left half written.
"""

import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime

from msgspec import Struct, field, json

from ralph.core.secrets import Redactor, secret_values
from ralph.errors import UNREADABLE, UserError
from ralph.files import StrPath, acquire_lock, cannot_use, open_file

LOCK_TIMEOUT = 10.0  # seconds


class Message(Struct, frozen=True, kw_only=True):
    """One message."""

    msg_id: str
    ts: str
    type: str
    body: str
    project: str = field(name="project_id", default="")
    task: str = field(name="task_id", default="")
    run: str = field(name="run_id", default="")


class MessageBus:
    """The bus in the file `path`, which the first message creates."""

    def __init__(self, path: StrPath) -> None:
        self.path = os.path.abspath(path)

    def post(
        self,
        type: str,  # noqa: A002 (its name in the file)
        body: str,
        *,
        project: str = "",
        task: str = "",
        run: str = "",
    ) -> str:
        """Append a message and return its id. Secrets in the body are redacted."""
        if not type.strip():
            raise UserError("a message needs a type", "for example --type INFO")
        ts = timestamp()
        fields = {"type": type, "body": body, "project": project, "task": task, "run": run}
        # JSON has no invalid Unicode: write `?` in its place.
        valid = {name: text.encode("utf-8", "replace").decode() for name, text in fields.items()}
        valid["body"] = Redactor(secret_values(os.environ)).text(valid["body"])
        message = Message(msg_id=f"MSG-{unique_name(ts, 5)}", ts=ts, **valid)
        fd = self._open_locked()
        try:
            self._append(fd, json.encode(message) + b"\n")
        finally:
            os.close(fd)
        return message.msg_id

    def read(self, types: Collection[str] = ()) -> Iterator[Message]:
        """Yield the messages, or those of these types; none if there is no file."""
        return BusReader(self.path, types).messages()

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
        """Write `record` on a line by itself: a killed writer may have left a line without an end."""
        size = os.fstat(fd).st_size
        try:
            if os.pread(fd, 1, max(0, size - 1)) not in (b"", b"\n"):
                record = b"\n" + record
            rest = memoryview(record)
            while rest:
                rest = rest[os.write(fd, rest) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(fd, size)  # nobody else has written since: this process has the lock
            raise cannot_use(f"the message bus {self.path}", error) from None


class BusReader:
    """Reads a bus from a position on. Lines that aren't messages are skipped."""

    def __init__(self, path: StrPath, types: Collection[str] = ()) -> None:
        self.path, self._offset = path, 0
        self._types = frozenset(name.lower() for name in types)

    def skip(self) -> None:
        """Move behind everything that is there."""
        self._offset += len(self._unread())

    def messages(self) -> Iterator[Message]:
        """Yield the messages that became complete since the last call."""
        for line in self._unread().split(b"\n")[:-1]:
            self._offset += len(line) + 1
            try:
                message = json.decode(line, type=Message)
            except UNREADABLE:
                continue
            if not self._types or message.type.lower() in self._types:
                yield message

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


def timestamp(seconds: float | None = None) -> str:
    """Return a time (default: now) as `2026-11-18T12:00:00.000000Z`."""
    moment = datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"


def unique_name(ts: str, random_bytes: int) -> str:
    """Return a unique name that sorts by time: `20261118-120000-000000-1a2b`."""
    digits = re.sub(r"\D", "", ts)
    return f"{digits[:8]}-{digits[8:14]}-{digits[14:]}-{os.urandom(random_bytes).hex()}"
