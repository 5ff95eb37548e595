"""The ACP client: `python -m ralph.acp [OPTIONS] -- COMMAND…` takes one turn; the prompt comes on stdin.

It speaks JSON-RPC over the agent's pipes, protocol version 1, and offers no file system, terminal or elicitation,
because no agent needs them. It prints a line of JSON for each thing that happens, for `ralph.agents.acp`. The keeper
that starts it ends the agent as well if a turn is cut short.
"""

import argparse
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Literal

import msgspec

from ralph import __version__
from ralph.agents import wire
from ralph.agents.wire import Table

PermissionPolicy = Literal["default", "yolo", "read-only"]

VERSION = 1
START_TIMEOUT = 60.0  # seconds for each answer until the prompt is sent
DRAIN_SECONDS = 0.3  # some agents send updates after the response
EXIT_GRACE = 3.0  # seconds that the agent has to exit after its stdin was closed
AUTH_REQUIRED = -32000
METHOD_NOT_FOUND = -32601
# Updates that are not about the turn. In sessions of Qwen one of them is half a megabyte long.
SILENT_UPDATES = frozenset({
    *("available_commands_update", "config_option_update", "current_mode_update", "user_message_chunk"),
})  # fmt: skip

READING = frozenset({"read", "search", "think"})
EDITING = frozenset({"edit", "delete", "move"})
TODO_TOOLS = ("write_todos", "todowrite", "todo_write")

# Names of modes, in order of preference.
YOLO_MODES = ("bypassPermissions", "agent-full-access", "yolo", "auto-approve")
READ_ONLY_MODES = ("plan", "read-only")


class TurnFailed(Exception):
    """The turn cannot continue. `error` is the line of output that says why."""

    def __init__(self, message: str, code: object = None, data: object = None) -> None:
        super().__init__(message)
        self.error: Table = {"type": "error", "code": code, "message": message, "data": data}


def report(line: Table) -> None:
    """Print a line for ralph."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


class Connection:
    """JSON-RPC with the agent's process. A thread reads its output, so that a full pipe never blocks both sides."""

    def __init__(self, argv: Sequence[str], policy: PermissionPolicy, folders: Sequence[str]) -> None:
        self._argv, self.policy, self._folders = argv, policy, folders
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._calls: dict[str, Table] = {}  # each tool call, merged from all its updates
        self._next_id = 0
        self._prose = ""  # the last line that was not JSON
        self.is_replaying = False  # whether updates are from an earlier turn

    def start(self) -> None:
        try:
            self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise TurnFailed(f"cannot start {self._argv[0]}: {error.strerror}") from None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def request(self, method: str, params: Table, timeout: float | None = START_TIMEOUT) -> Table:
        """Send a request and return its result; handle what the agent sends in between."""
        number, self._next_id = self._next_id, self._next_id + 1
        self._send({"id": number, "method": method, "params": params})
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._receive(method, deadline)
            if "method" in message:
                self._handle(message)
            elif message.get("id") == number:
                if error := wire.table(message, "error"):
                    text = wire.text(error, "message") or "the agent gave no reason"
                    raise TurnFailed(text, error.get("code"), error.get("data"))
                return wire.table(message, "result")

    def drain(self) -> None:
        """Handle updates that arrive shortly after the response."""
        deadline = time.monotonic() + DRAIN_SECONDS
        with suppress(TurnFailed):
            while time.monotonic() < deadline:
                message = self._receive("", deadline)
                if "method" in message:
                    self._handle(message)

    def _receive(self, method: str, deadline: float | None) -> Table:
        while True:
            try:
                line = self._lines.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0))
            except queue.Empty:
                raise TurnFailed(f"no answer to {method} in {START_TIMEOUT:g} s: does it speak ACP?") from None
            if line is None:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(EXIT_GRACE)
                ended = f"the agent ended with exit code {self._process.poll()} before it answered"
                raise TurnFailed(f"{ended}: {self._prose}" if self._prose else ended)
            if (message := wire.read(line)) is not None:
                return message
            self._prose = line.decode(errors="replace").strip() or self._prose
            report({"type": "prose", "text": self._prose[:2000]})

    def _handle(self, message: Table) -> None:
        params = wire.table(message, "params")
        if message["method"] == "session/update":
            update = wire.table(params, "update")
            if "toolCallId" in update:
                self._learn(update)
            if update.get("sessionUpdate") not in SILENT_UPDATES and not self.is_replaying:
                report({"type": "update", "update": update})
        elif message["method"] == "session/request_permission":
            self._on_permission(message.get("id"), params)
        elif "id" in message:
            unknown = {"code": METHOD_NOT_FOUND, "message": f"method not found: {message['method']}"}
            self._send({"id": message["id"], "error": unknown})
        elif not str(message["method"]).startswith(("_", "$/")):
            report({"type": "unknown", "method": message["method"]})

    def _learn(self, call: Table) -> Table:
        details = self._calls.setdefault(str(call.get("toolCallId")), {})
        details.update({name: value for name, value in call.items() if value not in (None, [], {}, "")})
        return details

    def _on_permission(self, number: object, params: Table) -> None:
        call = self._learn(wire.table(params, "toolCall"))
        allowed = is_allowed(call, self.policy, self._folders)
        option = choose_option(wire.rows(params, "options"), allowed)
        report({"type": "permission", "toolCall": call, "allowed": allowed and option is not None})
        outcome = {"outcome": "selected", "optionId": option} if option else {"outcome": "cancelled"}
        self._send({"id": number, "result": {"outcome": outcome}})

    def _send(self, message: Table) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")
            self._process.stdin.flush()
        except OSError:  # the agent has exited; `_receive` reports it
            pass

    def close(self) -> None:
        """Close the agent's stdin, which ends it; kill it if it does not exit."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_GRACE)
        self._process.kill()
        self._process.wait()


def take_turn(agent: Connection, prompt: str, model: str, session: str) -> None:
    """Take one turn: initialize, open the session, choose mode and model, send the prompt, and report the response."""
    capabilities = _initialize(agent)
    opened = _open_session(agent, capabilities, session)
    identity = {"sessionId": opened["sessionId"]}
    if mode := choose_mode(opened, agent.policy):
        agent.request(mode[0], {**identity, **mode[1]})
    if model:
        method, params = choose_model(opened, model)
        answer = agent.request(method, {**identity, **params})
        if (value := current_value(answer, "model")) not in (None, model):
            raise TurnFailed(f"model {model} is not offered: it stays at {value}")
    report({"type": "session", "id": opened["sessionId"]})
    content = [{"type": "text", "text": prompt}]
    response = agent.request("session/prompt", {**identity, "prompt": content}, timeout=None)
    agent.drain()
    report({"type": "response", **response})


def _initialize(agent: Connection) -> Table:
    params = {
        "protocolVersion": VERSION,
        "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
        "clientInfo": {"name": "ralph", "title": "ralph", "version": __version__},
    }
    answer = agent.request("initialize", params)
    if answer.get("protocolVersion") != VERSION:
        raise TurnFailed(f"it speaks ACP version {answer.get('protocolVersion')}; ralph speaks version {VERSION}")
    report({"type": "agent", "info": answer.get("agentInfo"), "auth": answer.get("authMethods")})
    return wire.table(answer, "agentCapabilities")


def _open_session(agent: Connection, capabilities: Table, session: str) -> Table:
    """Resume the session. If that fails, report it and open a new one."""
    place = {"cwd": os.getcwd(), "mcpServers": []}
    if session:
        resumes = "resume" in (capabilities.get("sessionCapabilities") or {})
        agent.is_replaying = True  # `session/load` repeats the whole history
        try:
            opened = agent.request("session/resume" if resumes else "session/load", {"sessionId": session, **place})
            return {**opened, "sessionId": session}
        except TurnFailed as error:
            if error.error["code"] == AUTH_REQUIRED:
                raise
            report({"type": "session_lost", "reason": str(error)})
        finally:
            agent.is_replaying = False
    return agent.request("session/new", place)


def is_allowed(call: Table, policy: PermissionPolicy, folders: Sequence[str]) -> bool:
    """Decide about a tool call: `folders` are the absolute paths that it may change."""
    kind = call.get("kind")
    if policy == "yolo" or kind in READING or is_todo_list(call):
        return True
    if policy == "read-only":
        return False
    if kind in EDITING:
        paths = changed_paths(call)
        return bool(paths) and all(is_inside(path, folders) for path in paths)
    return kind == "execute"


def is_todo_list(call: Table) -> bool:
    """Whether the call only updates the agent's own todo list, for which Gemini asks permission."""
    names = (str(call.get("name") or ""), str(call.get("toolCallId") or ""))
    return any(name.lower().startswith(TODO_TOOLS) for name in names)


def changed_paths(call: Table) -> list[str]:
    """Return every path that the call names as a location or as a diff."""
    diffs = [part for part in wire.rows(call, "content") if part.get("type") == "diff"]
    return [part["path"] for part in (*wire.rows(call, "locations"), *diffs) if isinstance(part.get("path"), str)]


def is_inside(path: str, folders: Sequence[str]) -> bool:
    """Return whether a path is in one of the folders, links resolved; relative paths start from the first."""
    real = os.path.realpath(os.path.join(folders[0], path))
    return any(real == folder or real.startswith(f"{folder}/") for folder in map(os.path.realpath, folders))


def choose_option(options: Sequence[Table], is_allowed: bool) -> str | None:
    """Return the id of the first option that allows (or rejects) the call once; None if there is none.

    Never choose "always": agents store that in the user's settings.
    """
    wanted = "allow_once" if is_allowed else "reject_once"
    return next(
        (str(option["optionId"]) for option in options if option.get("kind") == wanted and "optionId" in option), None
    )


def choose_mode(session: Table, policy: PermissionPolicy) -> tuple[str, Table] | None:
    """Return the request that puts a new session into the mode for `policy`, as method and parameters."""
    if policy == "default":
        return None
    if policy == "yolo" and "on" in config_values(session, "allow_all"):
        return "session/set_config_option", {"configId": "allow_all", "value": "on"}
    wanted = YOLO_MODES if policy == "yolo" else READ_ONLY_MODES
    for value in config_values(session, "mode"):
        if value.rpartition("#")[2] in wanted:
            return "session/set_config_option", {"configId": "mode", "value": value}
    for mode in wire.rows(wire.table(session, "modes"), "availableModes"):
        if mode.get("id") in wanted:
            return "session/set_mode", {"modeId": mode["id"]}
    return None


def choose_model(session: Table, model: str) -> tuple[str, Table]:
    """Return the request that chooses the model, as method and parameters."""
    if config_values(session, "model"):
        return "session/set_config_option", {"configId": "model", "value": model}
    return "session/set_model", {"modelId": model}


def config_values(session: Table, name: str) -> list[str]:
    """Return the values that a configuration option of the session may have."""
    options = [option for option in wire.rows(session, "configOptions") if option.get("id") == name]
    values = [value for option in options for value in wire.rows(option, "options")]
    return [str(value["value"]) for value in values if "value" in value]


def current_value(answer: Table, name: str) -> str | None:
    """Return the value of an option in the answer to `set_config_option`; None if the answer doesn't say."""
    current = (option.get("currentValue") for option in wire.rows(answer, "configOptions") if option.get("id") == name)
    return next(map(str, current), None)


def main() -> int:
    options = _parser().parse_args()
    folders = [os.getcwd(), *options.add_dir]
    agent = Connection(options.command, options.policy, folders)
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        agent.start()
        with closing(agent):
            take_turn(agent, prompt, options.model, options.session)
    except TurnFailed as failed:
        report(failed.error)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m ralph.acp", description="Take one turn with an ACP agent.")
    parser.add_argument("--policy", default="default", choices=["default", "yolo", "read-only"])
    parser.add_argument("--model", default="", help="the model to choose")
    parser.add_argument("--session", default="", help="the session to resume")
    parser.add_argument("--add-dir", default=[], action="append", help="another folder that may be changed")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="the agent, after --")
    return parser


if __name__ == "__main__":
    sys.exit(main())
