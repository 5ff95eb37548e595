"""Which agents can be kept from stopping, what does each one want to be told, and how do ralph's hooks and commands get
into its settings, and out again without a trace?

Settings are merged; a copy from before is kept beside each file that is changed. Whoever uninstalls gets that copy
back, byte for byte, unless the file was edited meanwhile: then only ralph's own entries are taken out."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from ralph.agents import module
from ralph.errors import UNREADABLE, UserError
from ralph.files import read_given
from ralph.hooks.loops import LIMIT

# Whose hooks they are: a person's own in this project, the project's, which git shares, or a person's own everywhere.
Scope = Literal["project", "shared", "user"]


class Host(Struct, frozen=True, kw_only=True):
    """An agent whose stop hook can be answered.

    `project` is its folder in a workspace. A person's own is `below` the one with its login, and `transcripts` says
    where in that one a session's is. `settings` is the file that holds the hooks; `flat`: without
    the level of matchers that others have; `named`: it shows people a hook's name, or else its whole command. `stop`,
    `prompt` and `remind` are its names for: a turn ends, a person speaks, the context was compacted. `per_second`: its
    unit of time. `env` lifts its own cap on how often a stop may be refused in a row. `mute` is the setting that keeps
    it from calling any hook, and `local` the file in `project` that goes before `settings`. `commands`: the kind of
    file that makes a slash command. `notes` are told at installation.
    """

    name: str
    project: str
    transcripts: str
    settings: str = "settings.json"
    stop: str = "Stop"
    prompt: str = "UserPromptSubmit"
    remind: str = "SessionStart"
    below: str = ""
    flat: bool = False
    named: bool = False
    per_second: int = 1
    env: dict[str, str] = {}
    mute: str = ""
    local: str = ""
    commands: Literal["", "md", "toml"] = ""
    notes: tuple[str, ...] = ()

    def scopes(self) -> tuple[Scope, ...]:
        """Where its hooks may be. Without a local file, a project has but one."""
        return ("project", "shared", "user") if self.local else ("project", "user")

    def folder(self, env: Mapping[str, str]) -> Path:
        """The person's own folder of this agent."""
        own = module(self.name).BOX
        assert own is not None
        named, home = env.get(own.variable), env.get("HOME") or os.path.expanduser("~")
        return Path(named, own.within) if named else Path(own.state.replace("~", home, 1))


HOSTS: dict[str, Host] = {
    host.name: host
    for host in (
        Host(
            name="claude",
            project=".claude",
            transcripts="projects/*/{session}.jsonl",
            env={"CLAUDE_CODE_STOP_HOOK_BLOCK_CAP": "0"},
            mute="disableAllHooks",
            local="settings.local.json",
            commands="md",
            notes=('type /ralph-loop "TASK" in a session, or run: claude -p \'/ralph-loop "TASK"\'',),
        ),
        Host(
            name="codex",
            project=".codex",
            transcripts="sessions/*/*/*/rollout-*-{session}.jsonl",
            settings="hooks.json",
            notes=(
                "Codex runs a hook once you trust it: look for /hooks in a session; "
                "headless, give `codex exec` the option --dangerously-bypass-hook-trust",
                'type ralph-loop "TASK" (without a slash) in a session, or run: codex exec \'/ralph-loop "TASK"\'',
            ),
        ),
        Host(
            name="gemini",
            project=".gemini",
            transcripts="tmp/*/chats/session-*-{session:.8}.jsonl",
            stop="AfterAgent",
            prompt="BeforeAgent",
            remind="",
            named=True,
            per_second=1000,
            commands="toml",
            notes=(
                "Gemini ends a loop whose answers repeat themselves, whatever a hook says",
                'type /ralph-loop "TASK" in a session, or run: gemini -y -p \'/ralph-loop "TASK"\'',
            ),
        ),
        Host(
            name="qwen",
            project=".qwen",
            transcripts="projects/*/chats/{session}.jsonl",
            per_second=1000,
            env={"QWEN_CODE_STOP_HOOK_BLOCK_CAP": "100"},
            commands="md",
            notes=(
                "Qwen Code lets a turn end after 100 refusals in a row at the latest; your next prompt resumes it",
                'type /ralph-loop "TASK" in a session, or run: qwen -y \'/ralph-loop "TASK"\'',
            ),
        ),
        Host(
            name="copilot",
            project=".github/hooks",
            transcripts="session-state/{session}/events.jsonl",
            below="hooks",
            settings="ralph.json",
            stop="agentStop",
            prompt="userPromptSubmitted",
            remind="",
            flat=True,
            notes=(
                "Copilot lets a turn end after 8 refusals in a row, whatever a hook says; your next prompt resumes the "
                "loop. For longer ones: ralph run --preset promise --agent copilot",
                "Copilot reads a project's hooks only in a folder that it trusts (--trust-folder); with --user, always",
                'type ralph-loop "TASK" in a session, or run: copilot -p \'/ralph-loop "TASK"\'',
            ),
        ),
    )
}

# Agents without a hook that could keep them: why, as it was found with the real programs.
REFUSED = {
    "opencode": "its plugins hear that a session is idle only when `opencode run` has already ended",
    "pi": "its extensions cannot make it go on: the answer to a message sent at the end of a turn is lost",
    "cline": "its hooks are not called in headless runs",
    "amp": "no hook of its own is known that could keep it from stopping",
}


OPTIONS = (
    "[--max-iterations N] [--completion-promise TEXT] [--min-tool-calls N] [--on-promise-no-work reject|warn|accept]"
)

# name: (what it does, what may follow it, what the agent reads)
LOOP = (
    "This is a loop of `ralph hook`. The task is the quoted text after the command below; "
    "the options after it are meant for the loop, not for you.\n"
    "Only when the task is fully done, output exactly <promise>TEXT</promise> alone on the last line, where TEXT is "
    "the completion promise: the value of --completion-promise, or DONE if there is none. If it is not fully done, "
    "do not."
)
TEXTS: dict[str, tuple[str, str, str]] = {
    "ralph-loop": ("Work on a task until its promise is kept", f'"TASK" {OPTIONS}', LOOP),
    "ulw-loop": ("The same in ultrawork mode", f'"TASK" {OPTIONS}', LOOP),
    "cancel-ralph": ("End the loop of this session", "", "The loop of this session was cancelled by `ralph hook`."),
}


def command_file(name: str, host: Host) -> str:
    """The file that makes `/name` known to a host."""
    summary, hint, text = TEXTS[name]
    if host.commands == "toml":
        return f'description = "{summary}"\nprompt = """\n{text}\n"""\n'
    argument = f"argument-hint: '{hint}'\n" if hint else ""
    return f"---\ndescription: {summary}\n{argument}---\n{text}\n"


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
    for other in host.scopes():
        # Hooks of a project and of a person are all called: every stop would be judged twice.
        if other != scope and (found := _with_hooks(host, other, workspace, env)):
            raise UserError(
                f"{host.name} has ralph's hooks already: {found}",
                f"they hold here too; to move them, first run `ralph hook uninstall {host.name} --{other}`",
            )
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


def changes(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> Iterator[Change]:
    folder = host.folder(env) / host.below if scope == "user" else workspace / host.project
    settings = _real(folder / (host.local if host.local and scope == "project" else host.settings))

    def merged(data: bytes | None) -> bytes:
        return _encoded(with_hooks(without_hooks(_decoded(settings, data), host), host), data)

    def cleared(data: bytes) -> bytes | None:
        rest = without_hooks(_decoded(settings, data), host)
        return _encoded(rest, data) if rest and rest != {"version": 1} else None

    yield Change(settings, merged, cleared, lambda data: any(mark.encode() in data for mark in MARKS))
    for name in TEXTS if host.commands else ():
        yield _command(_real(folder / "commands" / f"{name}.{host.commands}"), command_file(name, host).encode())


def _command(path: Path, text: bytes) -> Change:
    return Change(path, lambda _: text, lambda _: None, lambda data: b"ralph hook" in data)


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
    except UNREADABLE as error:
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
