"""May the agent stop? The same judge as everywhere, asked from inside an agent's session by its stop hook.

A host starts this after every turn of every session, so it must cost next to nothing: the standard library alone, and
little of that. What a promise, a count and a cap decide is decided here; as soon as checks, protected files, budgets or
a look at the workspace come into it, the whole engine is asked (`ralph.hooks.judging`).
"""

import os
import sys

from ralph.core.promise import NO_WORK, marker_of, promise_continuation, promise_contract, wording_message
from ralph.hooks import loops
from ralph.hooks.notation import dumps, table
from ralph.hooks.telling import finished, iteration_of, tell
from ralph.hooks.transcript import HostTurn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ralph.hooks.telling import Told

    Event = dict[str, Any]


PROMISE_ACCEPTED, MAX_ITERATIONS_REACHED = "PROMISE_ACCEPTED", "MAX_ITERATIONS_REACHED"
COMMANDS = (b"ralph-loop", b"ulw-loop", b"cancel-ralph")
SESSION_VARIABLES = ("CLAUDE_CODE_SESSION_ID", "QWEN_CODE_SESSION_ID", "GEMINI_SESSION_ID")
PROJECT_VARIABLES = ("CLAUDE_PROJECT_DIR", "QWEN_PROJECT_DIR", "GEMINI_PROJECT_DIR", "COPILOT_PROJECT_DIR")


def main(words: list[str]) -> int:
    """`stop`, `prompt` or `remind`, and the host's name: its JSON on stdin, the answer on stdout."""
    event, host = words[0], words[1] if len(words) > 1 else ""
    if len(words) > 2 or host.startswith("-") or sys.stdin is None or sys.stdin.isatty():
        print(f"ralph: usage: ralph hook {event} [AGENT] < JSON\nhint: an agent's hook calls this", file=sys.stderr)
        return 2
    try:
        data = sys.stdin.buffer.read()
        answer = prompt(data, host) if event == "prompt" else remind(data) if event == "remind" else stop(data)
    except Exception as error:  # noqa: BLE001 - a host takes a traceback for an answer
        answer = _trouble(event, error)
    if answer:
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
    return 0


def prompt(data: bytes, host: str) -> str:
    """What a person has typed: only the three commands are any business of ours."""
    if not any(name in data for name in COMMANDS):
        return ""
    _wake_up()
    from ralph.hooks.prompted import prompted

    return prompted(table(data), host)


def remind(data: bytes) -> str:
    """The context was compacted: what an agent in a loop is told anew."""
    event = _event(data)
    session = session_of(event)
    root = loops.find(session, places_of(event))
    if root is None:
        return ""
    loop = _read(root, session)
    if isinstance(loop, str):
        return loop
    facts = loop.facts
    context = promise_contract(facts["task"], marker_of(facts["promise"]))
    name = event.get("hook_event_name", "SessionStart")
    return dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": context}})


def stop(data: bytes) -> str:
    """The answer to an agent that wants to stop; empty: it may, and nobody has anything to say about it."""
    event = _event(data)
    session = session_of(event)
    root = loops.find(session, places_of(event))
    if root is None:
        return ""
    loop = _read(root, session)
    if isinstance(loop, str):
        return loop
    turn = HostTurn(loop, event)
    if not loop.facts["gated"] and not turn.is_unclear:
        with loops.locked(root):
            return decide(loop, turn) if loop.goes_on() else ""
    _wake_up()
    from ralph.hooks.judging import judged

    return judged(loop, turn)


def decide(loop: loops.Loop, turn: HostTurn) -> str:
    """Promise, work, cap: in this order, as the rules have it."""
    facts = loop.facts
    marker = marker_of(facts["promise"])
    refused = turn.is_claim and turn.is_idle and facts["on_promise_no_work"] == "reject"
    told = list(iteration_of(loop, turn))
    if refused:
        facts["offset"], facts["tool_calls"], facts["transcript"] = turn.size, turn.tool_calls, turn.path
        told.append(("claim_rejected", {"claim": marker, "gate": "work", "reason": NO_WORK}))
    elif turn.doubt:
        reason = f'the agent wrote "{turn.words}": {turn.doubt}'
        told.append(("claim_rejected", {"claim": marker, "gate": "wording", "reason": reason}))
    elif turn.is_claim:
        return _accept(loop, turn, told)
    why, objections = (
        _refused(turn, facts["min_tool_calls"], marker) if refused or turn.doubt else ("promise missing", [])
    )
    if facts["iteration"] >= facts["max_iterations"]:
        cap = facts["max_iterations"] + 1
        told.append(("ralph_exhausted", {"iteration": cap, "cap": cap}))
        told.append(finished(loop, "exhausted", f"{cap} iterations without an accepted claim", cap, 1))
        return finish(loop, told, MAX_ITERATIONS_REACHED, f"{MAX_ITERATIONS_REACHED}, {why}")
    facts["iteration"] += 1
    tell(loop, told)
    loop.save()
    loop.log(f"blocked: {why}")
    reason = promise_continuation(facts["task"], marker, objections, facts["ultrawork"])
    return blocked(reason, f"continuation {facts['iteration']} of {facts['max_iterations']}: {why}")


def _refused(turn: HostTurn, needed: int, marker: str) -> tuple[str, list[str]]:
    """Why a promise that is there is not believed: for the log, and for the agent."""
    if turn.doubt:
        why = f'promise rejected by wording: the agent wrote "{turn.words}": {turn.doubt}'
        return why, [wording_message(marker, turn.words, turn.doubt)]
    return f"promise rejected: {turn.tool_calls} of {needed} tool calls", [NO_WORK]


def _accept(loop: loops.Loop, turn: HostTurn, told: "list[Told]") -> str:
    facts = loop.facts
    marker = marker_of(facts["promise"])
    told.append(("ralph_converged", {"iteration": facts["iteration"] + 1, "signal": facts["promise"]}))
    told.append(finished(loop, "done", f"the agent said {marker}", facts["iteration"] + 1, 0))
    idle = f", warning: {turn.tool_calls} tool calls" if turn.is_idle else ""
    return finish(loop, told, PROMISE_ACCEPTED, f"{PROMISE_ACCEPTED}: found {marker}{idle}")


def finish(loop: loops.Loop, told: "list[Told]", status: str, text: str) -> str:
    tell(loop, told)
    loop.log(f"allowed: {text}")
    loop.end(status)
    return allowed(text)


def blocked(reason: str, message: str = "") -> str:
    """The agent must go on; `reason` is what it is told, `message` what people see."""
    return dumps({"decision": "block", "reason": reason, **({"systemMessage": f"ralph: {message}"} if message else {})})


def allowed(message: str) -> str:
    return dumps({"systemMessage": f"ralph: {message}"})


def session_of(event: "Event") -> str:
    """The session that asks. Other sessions are none of our business, so nothing is ever guessed."""
    session = event.get("session_id") or event.get("sessionId")
    if isinstance(session, str) and session:
        return session
    return next((os.environ[name] for name in SESSION_VARIABLES if os.environ.get(name)), "")


def places_of(event: "Event") -> list[str]:
    """Where the workspace of a session may be: its project, and wherever the agent has gone since."""
    named = [os.environ.get(name, "") for name in PROJECT_VARIABLES]
    cwd = event.get("cwd")
    return [place for place in (*named, cwd if isinstance(cwd, str) else "", _here()) if place]


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""


def _event(data: bytes) -> "Event":
    try:
        return table(data)
    except ValueError as error:
        print(f"ralph: what the host says cannot be read: {error}", file=sys.stderr)
        return {}


def _read(root: str, session: str) -> "loops.Loop | str":
    """The loop, or the answer if there is none to speak of."""
    try:
        return loops.read(root, session)
    except loops.Unreadable as error:
        if not loops.exists(root, session):
            return ""  # it ended just now
        aside = loops.set_aside(root, session)
        loops.write_log(root, f"session={session} allowed: unreadable state moved to {aside}: {error}")
        message = f"the state of this session's loop cannot be read; it was moved to {aside}, and the loop is over"
        print(f"ralph: warning: {message}", file=sys.stderr)
        return allowed(f"warning: {message}")


def _wake_up() -> None:
    """The hook runs without `site`, which finds the installed packages; whoever needs them calls it now."""
    if "site" not in sys.modules:
        import site

        site.main()


def _trouble(event: str, error: Exception) -> str:
    """Something broke. People are told, and the agent may stop: nobody could count any more how often it did not."""
    verdict = "cannot judge this stop, so it is allowed" if event == "stop" else f"cannot answer ({event})"
    message = f"{verdict}: {type(error).__name__}: {error}"
    print(f"ralph: {message}", file=sys.stderr)
    return allowed(f"warning: {message}")
