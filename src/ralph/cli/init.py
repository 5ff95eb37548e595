"""`ralph init`: asks the questions that make a project's settings, and writes them."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, get_args

from ralph.cli.table import CliCommand, Values, no_words
from ralph.errors import UserError

TEST_FOLDERS = ("tests", "test", "spec", "__tests__", "e2e")
DEFAULTS: dict[str, Any] = {
    "maximumIterations": 10,
    "completionResponse": "DONE",
    "outputTruncateChars": 5000,
    "streamAgentOutput": True,
    "includeIterationCountInPrompt": False,
    "agent": {"command": "", "flags": []},
    "guardrails": [],
}


def init(values: Values, words: list[str]) -> int:
    """Asks on the terminal; 0 when the settings are written or are to stay, 130 when the person gives up."""
    no_words(words, "go to the project, and say `ralph init` there")
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError(
            "init asks questions and needs a terminal", "run it in one, or write .ralph/settings.json by hand"
        )
    with open(sys.stdin.fileno(), encoding="utf-8", errors="replace", closefd=False) as answers:
        dialog = Dialog(answers, sys.stdout)
        try:
            initialize(Path.cwd(), dialog)
        except (EOFError, KeyboardInterrupt):
            with suppress(OSError):
                dialog.say("\nAborted.")
            return 130
    return 0


class Dialog:
    """Questions on one stream, answers from another."""

    def __init__(self, answers: TextIO, questions: TextIO) -> None:
        self.answers, self.questions = answers, questions

    def say(self, text: str, end: str = "\n") -> None:
        print(text, file=self.questions, end=end, flush=True)

    def ask(self, question: str) -> str:
        self.say(question, end="")
        try:
            line = self.answers.readline()
        except OSError:  # the terminal is gone
            line = ""
        if not line.endswith("\n"):
            raise EOFError
        return line.strip()

    def insist(self, question: str, complaint: str) -> str:
        """Asks until there is an answer."""
        while not (answer := self.ask(question)):
            self.say(complaint)
        return answer

    def agrees(self, question: str) -> bool:
        return self.ask(question).lower() in ("y", "yes")

    def several(self, question: str) -> list[str]:
        """The parts of an answer between commas."""
        return [part.strip() for part in self.ask(question).split(",") if part.strip()]


def initialize(workspace: Path, dialog: Dialog) -> None:
    """The whole conversation: shows what is there, asks, and writes once every answer is in."""
    from ralph.records.folder import prepare

    settings = workspace / ".ralph" / "settings.json"
    if os.path.lexists(settings):
        _show(workspace, dialog)
        if not dialog.agrees("Overwrite? (y/N): "):
            return
    said = interview(workspace, dialog)
    prepare(workspace)
    _write(settings, said)
    dialog.say("\nSettings written to .ralph/settings.json")
    if advice := said["guardrails"] and _advice(workspace):
        dialog.say(advice)
    if _has_boxes(workspace):
        dialog.say('To keep the agent away from your home and keys, add "sandbox": {"enabled": true} to it.')


def interview(workspace: Path, dialog: Dialog) -> dict[str, Any]:
    """The settings that the answers make."""
    found = installed_agents()
    if found:
        dialog.say(f"Installed here: {', '.join(found)}")
    question = "Agent command (e.g., claude, codex, amp, or other LLM CLI): "
    agent = dialog.insist(question, f"An agent command is required, for example {(*found, 'claude')[0]}.")
    flags = dialog.several("Agent flags (comma-separated, optional): ")
    said = {
        **DEFAULTS,
        "maximumIterations": _ask_iterations(dialog),
        "completionResponse": dialog.ask("Completion response [DONE]: ") or "DONE",
        "agent": {"command": agent, "flags": flags},
        "guardrails": _ask_guardrails(dialog),
    }
    if dialog.agrees("Configure SCM? (y/N): "):
        said["scm"] = _ask_scm(dialog)
    return said


def installed_agents() -> list[str]:
    from shutil import which

    from ralph.agents import programs

    return [name for name in programs() if which(name)]


def _ask_iterations(dialog: Dialog) -> int:
    while True:
        answer = dialog.ask("Maximum iterations [10]: ") or "10"
        if answer.isascii() and answer.isdigit() and len(answer) < 10 and int(answer) > 0:
            return int(answer)
        dialog.say("Please give a whole number greater than 0.")


def _ask_guardrails(dialog: Dialog) -> list[dict[str, str]]:
    from ralph.core.model import FailAction

    guardrails = []
    while shell_command := dialog.ask("Add guardrail command (leave blank to finish): "):
        while (action := dialog.ask("  Fail action (APPEND|PREPEND|REPLACE): ").upper()) not in get_args(FailAction):
            dialog.say("  Please answer APPEND, PREPEND or REPLACE.")
        hint = dialog.ask("  Hint (optional, guidance for agent on failure): ")
        guardrails.append({"command": shell_command, "failAction": action, **({"hint": hint} if hint else {})})
    return guardrails


def _advice(workspace: Path) -> str:
    """Where there are tests, an agent can make guardrails pass by changing them: say so while it can be prevented."""
    tests = next((name for name in TEST_FOLDERS if (workspace / name).is_dir()), None)
    if tests is None:
        return ""
    return f'If the agent must not change your tests, add "protect": ["{tests}/**"] to it.'


def _has_boxes(workspace: Path) -> bool:
    from ralph.processes.bubblewrap import find_bubblewrap

    try:
        return bool(find_bubblewrap(os.environ, str(workspace)))
    except UserError:
        return False


def _ask_scm(dialog: Dialog) -> dict[str, Any]:
    scm = dialog.insist("  SCM command (e.g., git): ", "  An SCM command is required.")
    while not (tasks := dialog.several("  SCM tasks (comma-separated, e.g., commit,push): ")):
        dialog.say("  Please name at least one task.")
    return {"command": scm, "tasks": tasks}


def _show(workspace: Path, dialog: Dialog) -> None:
    """The settings that are there, as they work together; or what is wrong with them."""
    import msgspec

    from ralph.settings.layers import load, merged
    from ralph.settings.source import json_source

    try:
        sources = load(workspace, {}, env={}).sources
    except UserError as error:
        dialog.say(error.message)
        return
    effective = merged(DEFAULTS, *(json_source(path).said for path in sources))
    dialog.say(msgspec.json.format(msgspec.json.encode(effective), indent=2).decode())
    overlay = " (with local overlay from settings.local.json)" if len(sources) > 1 else ""
    dialog.say(f"Loaded from .ralph/settings.json{overlay}")


def _write(path: Path, said: dict[str, Any]) -> None:
    """All or nothing: the file is put in place once it is complete."""
    import msgspec

    from ralph.records.folder import cannot_write

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n")
        draft.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        draft.unlink(missing_ok=True)


COMMAND = CliCommand("init", "Write .ralph/settings.json by answering a few questions.", init)
