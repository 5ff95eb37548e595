"""Answers to an ACP agent's permission requests, and the session mode that fits. Pure functions."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ralph.agents.wire import Table

PermissionPolicy = Literal["default", "yolo", "read-only"]

READING = frozenset({"read", "search", "think"})
EDITING = frozenset({"edit", "delete", "move"})
TODO_TOOLS = ("write_todos", "todowrite", "todo_write")

# Names of modes, in order of preference.
YOLO_MODES = ("bypassPermissions", "agent-full-access", "yolo", "auto-approve")
READ_ONLY_MODES = ("plan", "read-only")


def is_allowed(call: Mapping[str, Any], policy: PermissionPolicy, folders: Sequence[str]) -> bool:
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


def is_todo_list(call: Mapping[str, Any]) -> bool:
    """Whether the call only updates the agent's own todo list, for which Gemini asks permission."""
    names = (str(call.get("name") or ""), str(call.get("toolCallId") or ""))
    return any(name.lower().startswith(TODO_TOOLS) for name in names)


def changed_paths(call: Mapping[str, Any]) -> list[str]:
    """Return every path that the call names as a location or as a diff."""
    parts = [*(call.get("locations") or ()), *(part for part in call.get("content") or () if _is_diff(part))]
    return [part["path"] for part in parts if isinstance(part, dict) and isinstance(part.get("path"), str)]


def _is_diff(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "diff"


def is_inside(path: str, folders: Sequence[str]) -> bool:
    """Return whether a path is in one of the folders, links resolved; relative paths start from the first."""
    real = os.path.realpath(os.path.join(folders[0], path))
    return any(real == folder or real.startswith(f"{folder}/") for folder in map(os.path.realpath, folders))


def choose_option(options: Sequence[Mapping[str, Any]], is_allowed: bool) -> str | None:
    """Return the id of the first option that allows (or rejects) the call once; None if there is none.

    Never choose "always": agents store that in the user's settings.
    """
    wanted = "allow_once" if is_allowed else "reject_once"
    return next((str(one["optionId"]) for one in options if one.get("kind") == wanted and "optionId" in one), None)


def choose_mode(session: Mapping[str, Any], policy: PermissionPolicy) -> tuple[str, Table] | None:
    """Return the request that puts a new session into the mode for `policy`, as method and parameters."""
    if policy == "default":
        return None
    if policy == "yolo" and "on" in config_values(session, "allow_all"):
        return "session/set_config_option", {"configId": "allow_all", "value": "on"}
    wanted = YOLO_MODES if policy == "yolo" else READ_ONLY_MODES
    for value in config_values(session, "mode"):
        if value.rpartition("#")[2] in wanted:
            return "session/set_config_option", {"configId": "mode", "value": value}
    for mode in (session.get("modes") or {}).get("availableModes") or ():
        if mode.get("id") in wanted:
            return "session/set_mode", {"modeId": mode["id"]}
    return None


def choose_model(session: Mapping[str, Any], model: str) -> tuple[str, Table]:
    """Return the request that chooses the model, as method and parameters."""
    if config_values(session, "model"):
        return "session/set_config_option", {"configId": "model", "value": model}
    return "session/set_model", {"modelId": model}


def config_values(session: Mapping[str, Any], name: str) -> list[str]:
    """Return the values that a configuration option of the session may have."""
    options = [one for one in session.get("configOptions") or () if isinstance(one, dict) and one.get("id") == name]
    values = (value for option in options for value in option.get("options") or ())
    return [str(value["value"]) for value in values if isinstance(value, dict) and "value" in value]


def current_value(answer: Mapping[str, Any], name: str) -> str | None:
    """Return the value of an option in the answer to `set_config_option`; None if the answer doesn't say."""
    for option in answer.get("configOptions") or ():
        if isinstance(option, dict) and option.get("id") == name:
            return str(option.get("currentValue"))
    return None
