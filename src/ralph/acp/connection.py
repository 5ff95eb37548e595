"""One turn with an ACP agent: JSON-RPC over its pipes, protocol version 1.

The client offers no file system, terminal or elicitation, because no agent needs them. It prints a line of JSON for
each thing that happens, for `ralph.agents.acp`.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from ralph import __version__
from ralph.acp.permissions import PermissionPolicy, choose_mode, choose_model, choose_option, current_value, is_allowed
from ralph.agents import wire
from ralph.agents.wire import Table

VERSION = 1
START_TIMEOUT = 60.0  # seconds for each answer until the prompt is sent
DRAIN_SECONDS = 0.3  # some agents send updates after the response
EXIT_GRACE = 3.0  # seconds after closing stdin, and again after SIGTERM
AUTH_REQUIRED = -32000
METHOD_NOT_FOUND = -32601
# Updates that are not about the turn. In sessions of Qwen one of them is half a megabyte long.
SILENT_UPDATES = frozenset({
    *("available_commands_update", "config_option_update", "current_mode_update", "user_message_chunk"),
})  # fmt: skip


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
        self._argv, self._policy, self._folders = argv, policy, folders
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._calls: dict[str, Table] = {}  # each tool call, merged from all its updates
        self._next_id = 0
        self._prose = ""  # the last line that was not JSON
        self.is_replaying = False  # whether updates are from an earlier turn

    def start(self) -> None:
        try:
            self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        except OSError as error:
            raise TurnFailed(f"cannot start {self._argv[0]}: {error.strerror}") from None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

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
                raise self._exit_failure()
            message = wire.read(line)
            if message is None:
                self._prose = line.decode(errors="replace").strip() or self._prose
                report({"type": "prose", "text": self._prose[:2000]})
                continue
            return message

    def _exit_failure(self) -> TurnFailed:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(EXIT_GRACE)
        code = self._process.poll()
        reason = f": {self._prose}" if self._prose else ""
        return TurnFailed(f"the agent ended with exit code {code} before it answered{reason}")

    def _handle(self, message: Table) -> None:
        params = wire.table(message, "params")
        if message["method"] == "session/update":
            self._on_update(wire.table(params, "update"))
        elif message["method"] == "session/request_permission":
            self._on_permission(message.get("id"), params)
        elif "id" in message:
            unknown = {"code": METHOD_NOT_FOUND, "message": f"method not found: {message['method']}"}
            self._send({"id": message["id"], "error": unknown})
        elif not str(message["method"]).startswith(("_", "$/")):
            report({"type": "unknown", "method": message["method"]})

    def _on_update(self, update: Table) -> None:
        if "toolCallId" in update:
            self._learn(update)
        if update.get("sessionUpdate") not in SILENT_UPDATES and not self.is_replaying:
            report({"type": "update", "update": update})

    def _learn(self, call: Table) -> Table:
        known = self._calls.setdefault(str(call.get("toolCallId")), {})
        known.update({name: value for name, value in call.items() if value not in (None, [], {}, "")})
        return known

    def _on_permission(self, number: object, params: Table) -> None:
        call = self._learn(wire.table(params, "toolCall"))
        allowed = is_allowed(call, self._policy, self._folders)
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

    def kill(self) -> None:
        """Kill the agent's process group at once."""
        with suppress(ProcessLookupError, AttributeError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the agent: close its stdin, then SIGTERM, then SIGKILL to its process group."""
        if not hasattr(self, "_process"):
            return
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_GRACE)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        self._process.wait()


def take_turn(agent: Connection, prompt: str, *, policy: PermissionPolicy, model: str = "", session: str = "") -> None:
    """Take one turn: initialize, open the session, choose mode and model, send the prompt, and report the response."""
    capabilities = _initialize(agent)
    opened = _open_session(agent, capabilities, session)
    identity = {"sessionId": opened["sessionId"]}
    if mode := choose_mode(opened, policy):
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
