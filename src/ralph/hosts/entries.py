"""What stands in an agent's settings so that it asks ralph? Entries that can be told from everybody else's."""

import json
import sys
from pathlib import Path
from typing import Any

from ralph.hosts.registry import LIMIT, Host

MARK = "ralph.hook import main"  # in every command line of ours, and in nobody else's
Json = dict[str, Any]


def with_hooks(settings: Json, host: Host) -> Json:
    """The settings with ralph's hooks behind those that are there."""
    hooks = dict(settings.get("hooks") or {})
    wanted = ((host.stop, "stop", ""), (host.prompt, "prompt", ""), (host.remind, "remind", "compact"))
    for event, word, matcher in wanted:
        if event:
            hooks[event] = [*hooks.get(event, ()), _entry(host, word, matcher)]
    merged = {**settings, "hooks": hooks}
    if host.flat:
        merged = {"version": 1, **merged}
    if host.env:
        merged["env"] = {**host.env, **(settings.get("env") or {})}
    return merged


def without_hooks(settings: Json, host: Host) -> Json:
    """The settings less every entry of ralph's."""
    if not _is_ours(settings):
        return settings
    hooks = {event: left for event, entries in (settings.get("hooks") or {}).items() if (left := _others(entries))}
    env = {name: value for name, value in (settings.get("env") or {}).items() if host.env.get(name) != value}
    rest = {**settings, "hooks": hooks, "env": env}
    return {name: value for name, value in rest.items() if value or name not in ("hooks", "env")}


def _others(entries: Any) -> Any:
    """What is not ours, also where somebody has put it into one entry with ours."""
    if not isinstance(entries, list):
        return entries
    left = []
    for entry in entries:
        if not _is_ours(entry):
            left.append(entry)
        elif isinstance(entry, dict) and (inner := _others(entry.get("hooks", []))):
            left.append({**entry, "hooks": inner})
    return left


def _is_ours(value: Any) -> bool:
    return MARK in json.dumps(value)


def _entry(host: Host, word: str, matcher: str) -> Json:
    command = command_line(host, word)
    if host.flat:
        return {"type": "command", "bash": command, "timeoutSec": int(LIMIT)}
    hook: Json = {"type": "command", "command": command, "timeout": int(LIMIT) * host.per_second}
    if host.named:
        hook = {"name": "ralph", **hook}
    return {**({"matcher": matcher} if matcher else {}), "hooks": [hook]}


# Is there any loop in the project, or above it? Most often there is none, and a shell sees that in a millisecond.
ANY_LOOP = (
    'for d in "$CLAUDE_PROJECT_DIR" "$PWD"; do while [ "$d" ]; do '
    'for f in "$d"/.ralph/hook/*.json; do [ -e "$f" ] && break 3; done; '
    'u=${d%/*}; [ "$u" = "$d" ] && break; d=$u; done; done; [ -e "$f" ] || exit 0; '
)


def command_line(host: Host, word: str) -> str:
    """What a host runs for an event. It starts this very Python, without all that it does not need; on another machine
    that shares the settings, it asks whatever `ralph` there is."""
    import shlex

    source = json.dumps(str(Path(__file__).resolve().parents[2]))
    code = f'import sys; sys.path.insert(0, {source}); from {MARK}; sys.exit(main(["{word}", "{host.name}"]))'
    here = f'p={shlex.quote(sys.executable)}; [ -x "$p" ] && exec "$p" -I -S -c {shlex.quote(code)}; '
    elsewhere = f"command -v ralph >/dev/null && exec ralph hook {word} {host.name}; exit 0"
    return ("" if word == "prompt" else ANY_LOOP) + here + elsewhere
