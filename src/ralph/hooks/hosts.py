"""The agents that have a stop hook, and how ralph's hooks and slash commands are added to their settings and removed.

Settings are JSON: `install` merges ralph's entries into what is there, `uninstall` removes exactly those entries.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from ralph.agents import module
from ralph.errors import UNREADABLE, UserError
from ralph.files import read_given, replace_file
from ralph.hooks.loops import HOOK_TIMEOUT
from ralph.settings import PRESET_OF

Scope = Literal["project", "shared", "user"]
"""Whose settings: one user's in one project, those of everyone in the project (in git), one user's in all projects."""
Json = dict[str, Any]


class Host(Struct, frozen=True, kw_only=True):
    """An agent with a stop hook, and the format of its settings."""

    name: str
    project: str  # the folder of its settings in a workspace
    transcripts: str  # glob of a session's transcript, in the user's folder of this agent
    settings: str = "settings.json"  # the file with the hooks
    local: str = ""  # the file in `project` that isn't shared by git, if there is one
    stop: str = "Stop"  # the event before the end of a turn
    prompt: str = "UserPromptSubmit"  # the event when the user sends a prompt
    remind: str = "SessionStart"  # the event after the context was compacted
    named: bool = False  # a hook has a name, which the user sees instead of its command
    per_second: int = 1  # its unit of time limits: 1 for seconds, 1000 for milliseconds
    env: dict[str, str] = {}  # variables that raise its own limit on refusals in a row
    commands: Literal["", "md", "toml"] = ""  # the type of file that defines a slash command
    notes: tuple[str, ...] = ()  # printed after the installation

    def scopes(self) -> tuple[Scope, ...]:
        return ("project", "shared", "user") if self.local else ("project", "user")

    def user_folder(self, env: Mapping[str, str]) -> Path:
        """Return the folder in the user's home where this agent keeps its settings and sessions."""
        own = module(self.name).SANDBOX
        assert own is not None
        named, home = env.get(own.variable), env.get("HOME") or os.path.expanduser("~")
        return Path(named, own.within) if named else Path(own.state.replace("~", home, 1))

    def folder(self, scope: Scope, workspace: Path, env: Mapping[str, str]) -> Path:
        return self.user_folder(env) if scope == "user" else workspace / self.project

    def settings_file(self, scope: Scope, workspace: Path, env: Mapping[str, str]) -> Path:
        """Return the file with the hooks; if it is a link, the file that the link points to."""
        name = self.local if self.local and scope == "project" else self.settings
        return Path(os.path.realpath(self.folder(scope, workspace, env) / name))

    def command_files(self, scope: Scope, workspace: Path, env: Mapping[str, str]) -> dict[Path, str]:
        """Return the files that define slash commands, with their contents."""
        folder, files = self.folder(scope, workspace, env) / "commands", {}
        for name, (summary, hint, text) in COMMANDS.items() if self.commands else ():
            argument = f"argument-hint: '{hint}'\n" if hint else ""
            data = f"---\ndescription: {summary}\n{argument}---\n{text}\n"
            if self.commands == "toml":
                data = f'description = "{summary}"\nprompt = """\n{text}\n"""\n'
            files[Path(os.path.realpath(folder / f"{name}.{self.commands}"))] = data
        return files


HOSTS: dict[str, Host] = {
    host.name: host
    for host in (
        Host(
            name="claude",
            project=".claude",
            transcripts="projects/*/{session}.jsonl",
            env={"CLAUDE_CODE_STOP_HOOK_BLOCK_CAP": "0"},
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
    )
}

# Agents whose hooks can't keep them from stopping as often as needed, and why, as tests with the real programs showed.
REFUSED = {
    "copilot": "it lets a turn end after 8 refusals",
    "qwen": "it lets a turn end after 100 refusals",
    "opencode": "its plugins learn that a session is idle only when `opencode run` has already ended",
    "pi": "its extensions can't make it continue: the answer to a message sent at the end of a turn is lost",
    "cline": "its hooks are not called in headless runs",
    "amp": "it has no known hook that could keep it from stopping",
}

OPTIONS = (
    "[--max-iterations N] [--completion-promise TEXT] [--min-tool-calls N] [--on-promise-no-work reject|warn|accept]"
)
LOOP_TEXT = (
    "This is a loop of `ralph hook`. The task is the quoted text after the command below; "
    "the options after it are meant for the loop, not for you.\n"
    "Only when the task is fully done, output exactly <promise>TEXT</promise> alone on the last line, where TEXT is "
    "the completion promise: the value of --completion-promise, or DONE if there is none. If it is not fully done, "
    "do not."
)
MARK = "-I -m ralph hook "  # a part of each command line that ralph installs, and of no other
OUR_TEXT = b"`ralph hook`"  # a part of each slash command that ralph installs, and of no other
# Slash commands: name → (summary, arguments, text for the agent).
COMMANDS: dict[str, tuple[str, str, str]] = {
    "ralph-loop": ("Work on a task until its promise is kept", f'"TASK" {OPTIONS}', LOOP_TEXT),
    "ulw-loop": ("The same in ultrawork mode", f'"TASK" {OPTIONS}', LOOP_TEXT),
    "cancel-ralph": ("End the loop of this session", "", "The loop of this session was cancelled by `ralph hook`."),
}


def find_host(name: str) -> Host:
    if name in HOSTS:
        return HOSTS[name]
    if name in REFUSED:
        raise UserError(
            f"no hooks for {name}: {REFUSED[name]}",
            f'loop from outside instead: ralph run --preset {PRESET_OF["start"]} --agent {name} "TASK"',
        )
    raise UserError(f"unknown agent {name!r}", f"agents with a stop hook: {', '.join(HOSTS)}")


def install(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> list[Path]:
    """Add the hooks and slash commands; return the files that were written. Installing again changes nothing."""
    for other in host.scopes():
        # A host calls the hooks of every scope: each stop would be judged twice.
        if other != scope and has_hooks(host, other, workspace, env):
            raise UserError(
                f"{host.name} has ralph's hooks already: {host.settings_file(other, workspace, env)}",
                f"they apply here too; to move them, first run `ralph hook uninstall {host.name} --{other}`",
            )
    path = host.settings_file(scope, workspace, env)
    before = _read(path)
    settings = with_hooks(without_hooks(_decode(path, before), host), host)
    files = {path: _encode(settings, before)}
    for command, text in host.command_files(scope, workspace, env).items():
        there = _read(command)
        if there is not None and OUR_TEXT not in there:
            raise UserError(f"{command} already exists and isn't ralph's", "rename it, then install again")
        files[command] = text.encode()
    changed = [file for file, data in files.items() if _read(file) != data]
    for file in changed:
        _write(file, files[file])
    return changed


def uninstall(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> list[tuple[Path, str]]:
    """Remove ralph's entries and commands, with those that a project shares; return each file and what was done."""
    changes = []
    for place in (scope, "shared") if scope == "project" and host.local else (scope,):
        path, commands = host.settings_file(place, workspace, env), host.command_files(place, workspace, env)
        if (data := _read(path)) is not None and MARK.encode() in data:
            if rest := without_hooks(_decode(path, data), host):
                _write(path, _encode(rest, data))
                changes.append((path, "ralph's entries removed"))
            else:
                path.unlink()
                changes.append((path, "removed"))
        for command in commands:
            if OUR_TEXT in (_read(command) or b""):
                command.unlink()
                changes.append((command, "removed"))
        top = host.folder(place, workspace, env) if place == "user" else workspace
        for path, _ in changes:
            _remove_empty_folders(path.parent, top)
    return changes


def has_hooks(host: Host, scope: Scope, workspace: Path, env: Mapping[str, str]) -> bool:
    return MARK.encode() in (_read(host.settings_file(scope, workspace, env)) or b"")


def _read(path: Path) -> bytes | None:
    try:
        return read_given(path)
    except FileNotFoundError:
        return None


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    replace_file(path, data)
    if mode is not None:
        path.chmod(mode)


def _remove_empty_folders(folder: Path, top: Path) -> None:
    while folder != top and top in folder.parents and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _decode(path: Path, data: bytes | None) -> Json:
    if data is None or not data.strip():
        return {}
    try:
        document = json.loads(data)
    except UNREADABLE as error:
        hint = "fix it, or remove its comments; it was not changed"
        raise UserError(f"{path} is not plain JSON: {error}", hint) from None
    if not isinstance(document, dict) or not isinstance(document.get("hooks") or {}, dict):
        raise UserError(f"{path} does not look like settings", "fix it; it was not changed")
    return document


def _encode(settings: Json, like: bytes | None) -> bytes:
    """Return the settings as JSON, indented like the file `like`."""
    lines = (like or b"").split(b"\n")
    indents = (line[: len(line) - len(line.lstrip(b" \t"))].decode() for line in lines)
    indent = next((indent for indent in indents if indent), "  ")
    return (json.dumps(settings, indent=indent, ensure_ascii=False) + "\n").encode()


def with_hooks(settings: Json, host: Host) -> Json:
    """Return the settings with ralph's hooks after the other hooks."""
    hooks = dict(settings.get("hooks") or {})
    for event, word in ((host.stop, "stop"), (host.prompt, "prompt"), (host.remind, "remind")):
        if event:
            timeout = int(HOOK_TIMEOUT) * host.per_second
            hook: Json = {"type": "command", "command": command_line(host, word), "timeout": timeout}
            entry: Json = {"hooks": [{"name": "ralph", **hook} if host.named else hook]}
            hooks[event] = [*hooks.get(event, ()), {"matcher": "compact", **entry} if word == "remind" else entry]
    merged = {**settings, "hooks": hooks}
    if host.env:
        merged["env"] = {**host.env, **(settings.get("env") or {})}
    return merged


def without_hooks(settings: Json, host: Host) -> Json:
    """Return the settings without ralph's entries."""
    if not _is_ours(settings):
        return settings
    hooks = {event: others for event, entries in (settings.get("hooks") or {}).items() if (others := _others(entries))}
    env = {name: value for name, value in (settings.get("env") or {}).items() if host.env.get(name) != value}
    rest = {**settings, "hooks": hooks, "env": env}
    return {name: value for name, value in rest.items() if value or name not in ("hooks", "env")}


def _others(entries: Any) -> Any:
    """Return the entries without ralph's hooks; an entry that also has other hooks keeps those."""
    if not isinstance(entries, list):
        return entries
    others = []
    for entry in entries:
        if not _is_ours(entry):
            others.append(entry)
        elif isinstance(entry, dict) and (inner := _others(entry.get("hooks", []))):
            others.append({**entry, "hooks": inner})
    return others


def _is_ours(value: Any) -> bool:
    return MARK in json.dumps(value)


# Exits unless the project, or a folder above it, has a loop: a shell finds that out in a millisecond.
ANY_LOOP = (
    'for d in "$CLAUDE_PROJECT_DIR" "$PWD"; do while [ "$d" ]; do '
    'for f in "$d"/.ralph/hook/*.json; do [ -e "$f" ] && break 3; done; '
    'u=${d%/*}; [ "$u" = "$d" ] && break; d=$u; done; done; [ -e "$f" ] || exit 0; '
)


def command_line(host: Host, word: str) -> str:
    """Return the shell command for an event. It starts this Python, or, on another machine that shares the settings by
    git, the `ralph` on PATH."""
    here = f'p={shlex.quote(sys.executable)}; [ -x "$p" ] && exec "$p" {MARK}{word} {host.name}; '
    elsewhere = f"command -v ralph >/dev/null && exec ralph hook {word} {host.name}; exit 0"
    return ("" if word == "prompt" else ANY_LOOP) + here + elsewhere
