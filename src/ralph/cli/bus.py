"""`ralph bus`: how do agents, children and people post to a message bus, read it and follow it?"""

import os
import sys
from collections.abc import Iterable, Sequence

import msgspec

from ralph.cli.table import JSON, CliCommand, Values, no_words
from ralph.core.text import clean, escaped
from ralph.errors import UserError
from ralph.run.options import Option
from ralph.supervise import bus
from ralph.supervise.bus import BusReader, Message, decoded, encoded, thread


def post(path: str | None, kind: str, body: str | None, parent: str = "") -> int:
    """Append a message and print its id. Without `body`, it is read from stdin, to the last byte."""
    target = bus_path(path)
    if body is None:
        if sys.stdin.isatty():
            raise UserError("the message has no body", "give --body TEXT, or pipe the text in")
        body = decoded(sys.stdin.buffer.read())
    project, task, run = (_from_environment(f"JRUN_{name}") for name in ("PROJECT_ID", "TASK_ID", "ID"))
    print(bus.post(target, kind, body, project=project, task=task, run=run, parent=parent))
    return 0


def read(
    path: str | None, since: str | None = None, types: Sequence[str] = (), root: str | None = None, json: bool = False
) -> int:
    """Print the messages, or those that come after `since`, have one of `types`, belong to the thread of `root`."""
    reader = BusReader(_existing(bus_path(path)), since, types)
    messages = reader.messages()
    code = _show(thread(messages, root) if root else messages, json)
    if reader.unread and not since:
        print(
            f"ralph: {reader.unread} bytes of {reader.path} belong to no message: they were passed over",
            file=sys.stderr,
        )
    return code


def follow(path: str | None, since: str | None = None, types: Sequence[str] = (), json: bool = False) -> int:
    """As `read`, and go on with what arrives, until interrupted. The bus need not exist yet."""
    import threading

    return _show(bus.follow(bus_path(path), since, threading.Event(), types), json, at_once=True)


def bus_path(path: str | None) -> str:
    """The bus that is meant: the one named, else that of the task around us."""
    named = path or _from_environment("MESSAGE_BUS") or _from_environment("JRUN_MESSAGE_BUS")
    if not named:
        raise UserError("no message bus is named", "give --bus FILE, or set MESSAGE_BUS")
    return named


def _existing(path: str) -> str:
    if not os.path.lexists(path):
        raise UserError(f"there is no message bus {path}", "it appears with its first message: `ralph bus post`")
    return path


def _show(messages: Iterable[Message], json: bool, at_once: bool = False) -> int:
    out = sys.stdout.buffer
    line = _json_line if json else _paragraph
    for message in messages:
        out.write(line(message))
        if at_once:
            out.flush()
    out.flush()
    return 0


def _json_line(message: Message) -> bytes:
    body = encoded(message.body).decode("utf-8", "replace")
    return escaped(msgspec.json.encode(msgspec.structs.replace(message, body=body))) + b"\n"


def _paragraph(message: Message) -> bytes:
    """The message for people, who must not meet its control characters."""
    where = "".join(f" {name}={value}" for name, value in (("run", message.run), ("re", message.parent)) if value)
    body = encoded(message.body).decode("utf-8", "replace")
    return clean(f"[{message.ts}] {message.type} {message.msg_id}{where}\n{body}\n\n").encode()


def _from_environment(name: str) -> str:
    return os.environ.get(name, "")


def _posted(values: Values, words: list[str]) -> int:
    no_words(words, "the text is given with --body, or on stdin")
    return post(values.get("bus"), values.get("type", "INFO"), values.get("body"), values.get("parent", ""))


def _read(values: Values, words: list[str]) -> int:
    no_words(words, "name the bus with --bus")
    types = values.get("type", ())
    return read(values.get("bus"), values.get("since"), types, values.get("thread"), json=bool(values.get("json")))


def _followed(values: Values, words: list[str]) -> int:
    no_words(words, "name the bus with --bus")
    return follow(values.get("bus"), values.get("since"), values.get("type", ()), json=bool(values.get("json")))


_BUS = Option("--bus FILE", "The bus; by default $MESSAGE_BUS.")
_SINCE = Option("--since ID", "Only what comes after this message.")
_TYPES = Option("--type TYPE ...", "Only this type; may be repeated.")
_POST = (
    _BUS,
    Option("--type TYPE", "INFO (default), FACT, QUESTION, ..."),
    Option("--body TEXT", "The text; without it, stdin is read."),
    Option("--parent ID", "The message that this one answers."),
)
_THREAD = Option("--thread ID", "Only this message and its answers.")

BUS = CliCommand(
    "bus",
    "The message bus of a task or project.",
    commands=(
        CliCommand("post", "Append a message and print its id.", _posted, _POST),
        CliCommand("read", "Print the messages.", _read, (_BUS, _SINCE, _TYPES, _THREAD, JSON)),
        CliCommand("follow", "Print the messages as they arrive.", _followed, (_BUS, _SINCE, _TYPES, JSON)),
    ),
)
