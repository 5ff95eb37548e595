"""Which agents can be kept from stopping, and what does each one want to be told? A literal table, a row per host."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

LIMIT = 6 * 3600.0  # seconds that a host gives the hook: checks may be slow, and each has a limit of its own

# Whose hooks they are: a person's own in this project, the project's, which git shares, or a person's own everywhere.
Scope = Literal["project", "shared", "user"]


class Host(Struct, frozen=True, kw_only=True):
    """An agent whose stop hook can be answered.

    `project` is its folder in a workspace. A person's own is `below` the one that `variable` names, by default `home`;
    `transcripts` says where in that one a session's is. `settings` is the file that holds the hooks; `flat`: without
    the level of matchers that others have; `named`: it shows people a hook's name, or else its whole command. `stop`,
    `prompt` and `remind` are its names for: a turn ends, a person speaks, the context was compacted. `per_second`: its
    unit of time. `env` lifts its own cap on how often a stop may be refused in a row. `mute` is the setting that keeps
    it from calling any hook, and `local` the file in `project` that goes before `settings`. `commands`: the kind of
    file that makes a slash command. `notes` are told at installation.
    """

    name: str
    project: str
    variable: str
    home: str
    transcripts: str
    settings: str
    stop: str
    prompt: str
    remind: str = ""
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

    def settings_file(self, scope: Scope) -> str:
        return self.local if self.local and scope == "project" else self.settings

    def folder(self, env: Mapping[str, str]) -> Path:
        """The person's own folder of this agent."""
        return Path(env.get(self.variable) or self.home.replace("~", env.get("HOME") or os.path.expanduser("~"), 1))


HOSTS: dict[str, Host] = {
    host.name: host
    for host in (
        Host(
            name="claude",
            project=".claude",
            variable="CLAUDE_CONFIG_DIR",
            home="~/.claude",
            transcripts="projects/*/{session}.jsonl",
            settings="settings.json",
            stop="Stop",
            prompt="UserPromptSubmit",
            remind="SessionStart",
            env={"CLAUDE_CODE_STOP_HOOK_BLOCK_CAP": "0"},
            mute="disableAllHooks",
            local="settings.local.json",
            commands="md",
            notes=('type /ralph-loop "TASK" in a session, or run: claude -p \'/ralph-loop "TASK"\'',),
        ),
        Host(
            name="codex",
            project=".codex",
            variable="CODEX_HOME",
            home="~/.codex",
            transcripts="sessions/*/*/*/rollout-*-{session}.jsonl",
            settings="hooks.json",
            stop="Stop",
            prompt="UserPromptSubmit",
            remind="SessionStart",
            notes=(
                "Codex runs a hook once you trust it: look for /hooks in a session; "
                "headless, give `codex exec` the option --dangerously-bypass-hook-trust",
                'type ralph-loop "TASK" (without a slash) in a session, or run: codex exec \'/ralph-loop "TASK"\'',
            ),
        ),
        Host(
            name="gemini",
            project=".gemini",
            variable="GEMINI_CLI_HOME",
            home="~",
            transcripts=".gemini/tmp/*/chats/session-*-{session:.8}.jsonl",
            below=".gemini",
            settings="settings.json",
            stop="AfterAgent",
            prompt="BeforeAgent",
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
            variable="QWEN_HOME",
            home="~/.qwen",
            transcripts="projects/*/chats/{session}.jsonl",
            settings="settings.json",
            stop="Stop",
            prompt="UserPromptSubmit",
            remind="SessionStart",
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
            variable="COPILOT_HOME",
            home="~/.copilot",
            transcripts="session-state/{session}/events.jsonl",
            below="hooks",
            settings="ralph.json",
            stop="agentStop",
            prompt="userPromptSubmitted",
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
