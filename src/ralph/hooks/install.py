"""How do ralph's hooks and commands get into an agent's settings, and out again without a trace?

Settings are merged; a copy from before is kept beside each file that is changed. Whoever uninstalls gets that copy
back, byte for byte, unless the file was edited meanwhile: then only ralph's own entries are taken out.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from ralph.errors import UserError
from ralph.files import read_given
from ralph.hooks.hosts import HOSTS, LIMIT, REFUSED, TEXTS, Host, Scope, command_file

BACKUP = ".before-ralph"
Json = dict[str, Any]


class Change(Struct, frozen=True):
    """A file that is ours, wholly or in part. `merged` makes what it shall hold of what it holds, `cleared` takes our
    part out of it (None: nothing is left)."""

    path: Path
    merged: Callable[[bytes | None], bytes]
    cleared: Callable[[bytes], bytes | None]
    is_ours: Callable[[bytes], bool]


def find_host(name: str) -> Host:
    """The host called `name`, or the reason why it is none."""
    if name in HOSTS:
        return HOSTS[name]
    if name in REFUSED:
        raise UserError(
            f"{name} cannot be kept from stopping: {REFUSED[name]}",
            f'loop from outside instead: ralph run --preset promise --agent {name} "TASK"',
        )
    raise UserError(f"no agent {name!r} with a stop hook is known", f"one of {', '.join(HOSTS)}")


def install(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> list[Path]:
    """Puts the hooks in place; doing so again changes nothing more. The files that were written."""
    _refuse_twice(host, scope, workspace, env)
    written = []
    for change in changes(host, scope, workspace, env):
        before = _read(change.path)
        after = change.merged(before)
        if before == after:
            continue
        if before is not None and not change.is_ours(before):
            _write(_backup(change.path), before, like=change.path)
        _write(change.path, after, like=change.path)
        written.append(change.path)
    return written


def uninstall(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> list[tuple[Path, str]]:
    """Takes the hooks out; out of a project also those that it shares. Each file that was changed, and how."""
    done = []
    scopes = [one for one in host.scopes() if one == scope or (scope == "project" and one == "shared")]
    for change in (change for one in scopes for change in changes(host, one, workspace, env)):
        now, before = _read(change.path), _read(_backup(change.path))
        if now is None or not change.is_ours(now):
            continue
        if before is not None and now == change.merged(before):
            _write(change.path, before, like=change.path)
            _backup(change.path).unlink()
            done.append((change.path, "restored"))
            continue
        rest = change.cleared(now)
        if rest is None and before is None:
            change.path.unlink()
            _drop_empty(change.path.parent, host.folder(env) / host.below if scope == "user" else workspace)
            done.append((change.path, "removed"))
            continue
        _write(change.path, rest if rest is not None else before or b"", like=change.path)
        kept = f"; it was edited since: the copy from before is {_backup(change.path).name}" if before else ""
        done.append((change.path, f"ralph's entries removed{kept}"))
    return done


def silenced(host: Host, workspace: Path, env: Mapping[str, str]) -> str:
    """Why the hooks in a host's settings are not called; empty where they are. What is said nearest to the work holds,
    and what cannot be read is for the host to complain of."""
    own = workspace / host.project
    layers = (own / host.local, own / host.settings, host.folder(env) / host.below / host.settings)
    for path in layers if host.mute else ():
        with suppress(UserError):
            said = _decoded(path, _read(path)).get(host.mute)
            if said is not None:
                return f"{host.name} calls no hooks here: {path} sets {host.mute}" if said else ""
    return ""


def installed(workspace: Path, env: Mapping[str, str]) -> Iterator[Host]:
    """The hosts whose settings, for this project or for all of a person's, hold ralph's hooks."""
    for host in HOSTS.values():
        with suppress(UserError):
            if any(_with_hooks(host, scope, workspace, env) for scope in host.scopes()):
                yield host


def _with_hooks(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> Path | None:
    """The settings that hold ralph's hooks."""
    change = next(changes(host, scope, workspace, env))
    data = _read(change.path)
    return change.path if data is not None and change.is_ours(data) else None


def _refuse_twice(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> None:
    """Hooks of a project and of a person are all called: every stop would be judged twice."""
    for other in host.scopes():
        if other != scope and (found := _with_hooks(host, other, workspace, env)):
            raise UserError(
                f"{host.name} has ralph's hooks already: {found}",
                f"they hold here too; to move them, first run `ralph hook uninstall {host.name} --{other}`",
            )


def changes(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> Iterator[Change]:
    folder = host.folder(env) / host.below if scope == "user" else workspace / host.project
    settings = _real(folder / host.settings_file(scope))

    def merged(data: bytes | None) -> bytes:
        return _encoded(with_hooks(without_hooks(_decoded(settings, data), host), host), data)

    def cleared(data: bytes) -> bytes | None:
        rest = without_hooks(_decoded(settings, data), host)
        return _encoded(rest, data) if rest and rest != {"version": 1} else None

    yield Change(settings, merged, cleared, lambda data: any(mark.encode() in data for mark in MARKS))
    for name in TEXTS if host.commands else ():
        yield _command(_real(folder / "commands" / f"{name}.{host.commands}"), command_file(name, host))


def _command(path: Path, text: str) -> Change:
    is_ours: Callable[[bytes], bool] = lambda data: b"ralph hook" in data  # noqa: E731
    return Change(path, lambda data: text.encode(), lambda data: None, is_ours)


def _real(path: Path) -> Path:
    """Where a link leads: what is changed is the file that a person keeps there, not the link."""
    return Path(os.path.realpath(path))


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP)


def _read(path: Path) -> bytes | None:
    try:
        return read_given(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "check its permissions") from None


def _write(path: Path, data: bytes, like: Path) -> None:
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(data)
        if like.exists():
            fresh.chmod(like.stat().st_mode & 0o777)
        os.replace(fresh, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}", "check its permissions") from None


def _decoded(path: Path, data: bytes | None) -> Json:
    if data is None or not data.strip():
        return {}
    try:
        found = json.loads(data)
    except ValueError as error:
        raise UserError(
            f"{path} is no plain JSON: {error}", "mend it, or take its comments out; it was not touched"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("hooks") or {}, dict):
        raise UserError(f"{path} does not look like settings", "mend it; it was not touched")
    return found


def _encoded(settings: Json, like: bytes | None) -> bytes:
    """In the manner of the file that was there: its indentation, and its last line's end."""
    indent: str | int = 2
    for line in (like or b"").split(b"\n"):
        inner = line[: len(line) - len(line.lstrip(b" \t"))]
        if inner:
            indent = inner.decode()
            break
    end = "" if like and not like.endswith(b"\n") else "\n"
    return (json.dumps(settings, indent=indent, ensure_ascii=False) + end).encode()


def _drop_empty(folder: Path, top: Path) -> None:
    """Folders that were made for our files alone."""
    while folder != top and top in folder.parents and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


MARK = "ralph.hooks.stop import main"  # in every command line of ours, and in nobody else's
MARKS = (MARK, "ralph.hook import main")  # as an earlier version wrote it


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
    return any(mark in json.dumps(value) for mark in MARKS)


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
