"""What becomes of `/ralph-loop`, `/ulw-loop`, `/cancel-ralph`? Hosts hand over prompts before the agent reads them."""

import os
from pathlib import Path
from typing import Any

from ralph.errors import UserError
from ralph.hooks import loops, starting, stop
from ralph.hooks.notation import dumps
from ralph.hooks.spoken import Spoken, command_in, parse

Event = dict[str, Any]


def prompted(event: Event, host: str) -> str:
    """The answer to the host; empty if the prompt is no command of ours."""
    typed = event.get("submitted_prompt") or event.get("prompt")
    spoken = command_in(typed) if isinstance(typed, str) else None
    if spoken is None:
        return ""
    try:
        if spoken.name == "cancel-ralph":
            return _refused(_cancelled(event))
        return _begun(event, spoken, host)
    except UserError as error:
        return _refused(error.advice)


def _begun(event: Event, spoken: Spoken, host: str) -> str:
    task, values = parse(spoken.rest, starting.OPTIONS)
    if spoken.name == "ulw-loop":
        values["ultrawork"] = True
    session, path = stop.session_of(event), event.get("transcript_path")
    loop = starting.start(
        _workspace(event),
        session,
        task,
        starting.overrides(values),
        agent=host,
        transcript=path if isinstance(path, str) else starting.transcript_of(session, host, os.environ),
        force=bool(values.get("force")),
    )
    return _context(starting.contract(loop), event)


def _cancelled(event: Event) -> str:
    session = stop.session_of(event)
    root = loops.find(session, stop.places_of(event))
    if root is None:
        return "no loop is active in this session"
    with loops.locked(root):
        loop = loops.read(root, session)
        starting.cancel(loop)
    count = loop.facts["iteration"]
    return f"{starting.CANCELLED} after {count} continuation{'' if count == 1 else 's'}"


def _workspace(event: Event) -> Path:
    """The project of the session, not the folder that the agent happens to be in."""
    place = next((place for place in stop.places_of(event) if os.path.isdir(place)), "")
    if not place:
        raise UserError("the workspace of this session is unknown", "start the loop with `ralph hook start -C DIR`")
    return Path(place).resolve()


def _context(text: str, event: Event) -> str:
    """What the agent reads beside the prompt. Copilot, which does not name its events, wants it unwrapped."""
    name = event.get("hook_event_name")
    if not name:
        return dumps({"additionalContext": text})
    return dumps({"hookSpecificOutput": {"hookEventName": name, "additionalContext": text}})


def _refused(reason: str) -> str:
    """The prompt does not reach the agent; the person reads why."""
    return dumps({"decision": "block", "reason": f"ralph: {reason}"})
