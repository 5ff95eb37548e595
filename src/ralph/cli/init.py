"""`ralph init` writes the project's settings; `ralph schema` prints the JSON Schemas."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Any, TextIO, get_args

import msgspec

from ralph.agents import acp, programs
from ralph.cli.init_copy import MAX_UNASKED, find_setup, has_commit
from ralph.cli.table import Values, command, is_terminal
from ralph.core import backlog_events, events
from ralph.core.model import FailAction
from ralph.core.receipt import Receipt
from ralph.core.text import clean, escaped
from ralph.errors import UserError
from ralph.files import replace_file
from ralph.options.option import Option
from ralph.sandbox.sandbox import find_bubblewrap
from ralph.settings.detect_checks import installed_checks
from ralph.settings.load import load, merge, normalize
from ralph.settings.read import read_file
from ralph.settings.schema import Settings
from ralph.store.folder import prepare, report_write_errors

ACTIONS = get_args(FailAction)
NONE = "-"  # no check, although one was found
SCHEMA_FILE = "settings.schema.json"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string", "pattern": r"\S"}
DEFAULTS: dict[str, Any] = {
    "completionResponse": "DONE",
    "outputTruncateChars": 5000,
    "streamAgentOutput": True,
    "includeIterationCountInPrompt": False,
    "agent": {"command": "", "flags": []},
    "checks": [],
}


@command(Option("-y --yes", "Ask nothing; use the defaults and what is detected."))
def init(values: Values, words: list[str]) -> int:
    """Create .ralph/settings.json from your answers to a few questions."""
    if values.get("yes"):
        initialize(Path.cwd(), Dialog(None, sys.stdout))
        return 0
    if not is_terminal(sys.stdin):
        raise UserError("ralph init asks questions and needs a terminal", "use the defaults: ralph init --yes")
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
    """Questions on one stream, answers from another; without `answers` each question is answered with its default."""

    def __init__(self, answers: TextIO | None, questions: TextIO) -> None:
        self.answers, self.questions = answers, questions

    def say(self, text: str, end: str = "\n") -> None:
        print(text, file=self.questions, end=end, flush=True)

    def explain(self, text: str) -> None:
        """Introduce the next question."""
        if self.answers:
            self.say(f"\n{text}")

    def ask(self, question: str, default: str = "") -> str:
        """Return the answer, or the default for an empty one."""
        if self.answers is None:
            return default
        self.say(question.removesuffix(": ") + f" [{default}]: " if default else question, end="")
        try:
            line = self.answers.readline()
        except OSError:  # the terminal is gone
            line = ""
        if not line.endswith("\n"):
            raise EOFError
        return line.strip() or default

    def confirm(self, question: str) -> bool:
        return self.ask(question).lower() in ("y", "yes")


def initialize(workspace: Path, dialog: Dialog) -> None:
    """Show the settings that exist, ask, show what will be written, and write it."""
    settings = workspace / ".ralph" / "settings.json"
    if os.path.lexists(settings):
        _show_existing(workspace, dialog)
        if not dialog.confirm("Overwrite? (y/N): "):
            return
    answers = interview(workspace, dialog)
    data = msgspec.json.format(msgspec.json.encode(answers), indent=2) + b"\n"
    dialog.say("\n" + data.decode(), end="")
    folder = prepare(workspace)
    for path, content in {settings: data, folder / SCHEMA_FILE: schema_text("settings").encode()}.items():
        with report_write_errors(path):
            replace_file(path, content)
    dialog.say("\nSettings written to .ralph/settings.json")
    dialog.say(f'Next: ralph {"loop" if answers["checks"] else "run"} "your goal"')
    with suppress(UserError):  # no bubblewrap
        if find_bubblewrap(os.environ, str(workspace)):
            dialog.say("To keep the agent away from your home and keys, add --sandbox.")


def interview(workspace: Path, dialog: Dialog) -> dict[str, Any]:
    """Ask every question and return the settings."""
    settings: dict[str, Any] = {"$schema": f"./{SCHEMA_FILE}", **DEFAULTS}
    settings["agent"] = _ask_agent(dialog)
    dialog.explain(
        "How many iterations a run gets. Blank: 10 for `ralph run`, 25 for `ralph loop`;\na number counts for both."
    )
    while answer := dialog.ask("Maximum iterations [10]: "):
        if answer.isascii() and answer.isdigit() and len(answer) < 10 and int(answer) > 0:
            settings["maximumIterations"] = int(answer)
            break
        dialog.say("Please give a whole number greater than 0.")
    dialog.explain(
        "For `ralph run`: what the agent writes between <response> and </response> when\nit is done "
        "(`ralph loop` expects COMPLETE)."
    )
    settings["completionResponse"] = dialog.ask("Completion response [DONE]: ") or "DONE"
    settings["checks"] = _ask_checks(workspace, dialog)
    dialog.explain("ralph can commit the work after green checks; the agent writes the message.")
    if dialog.confirm("Configure SCM? (y/N): "):
        settings["scm"] = _ask_scm(dialog)
    if settings["checks"] and has_commit(workspace) and (setup := _ask_setup(workspace, settings["checks"], dialog)):
        settings["setup"] = setup
    return settings


def _ask_agent(dialog: Dialog) -> dict[str, Any]:
    agents = [name for name in programs() if which(name)]
    agents += [name for name in acp.find_installed() if name.removeprefix(acp.PREFIX) not in programs()]
    if agents:
        dialog.say(f"Installed here: {', '.join(agents)}")
    question = "Agent command (e.g., claude, codex, amp, or other LLM CLI): "
    while not (agent := dialog.ask(question, next(iter(agents), ""))):
        if dialog.answers is None:
            raise UserError(
                "no coding agent is installed", "install one, or name yours: run `ralph init` in a terminal"
            )
        dialog.say(f"An agent command is required, for example {(*agents, 'claude')[0]}.")
    flags = dialog.ask("Agent flags (comma-separated, optional): ")
    return {"command": agent, "flags": _split_at_commas(flags)}


def _ask_scm(dialog: Dialog) -> dict[str, Any]:
    while not (scm := dialog.ask("  SCM command (e.g., git): ")):
        dialog.say("  An SCM command is required.")
    while not (tasks := _split_at_commas(dialog.ask("  SCM tasks (comma-separated, e.g., commit,push): "))):
        dialog.say("  Please name at least one task.")
    return {"command": scm, "tasks": tasks}


def _split_at_commas(answer: str) -> list[str]:
    return [part.strip() for part in answer.split(",") if part.strip()]


def _ask_checks(workspace: Path, dialog: Dialog) -> list[dict[str, str]]:
    dialog.explain("Commands that must pass before the work counts as done: your tests, a linter.")
    commands = installed_checks(workspace)
    if commands:
        dialog.explain(f"Press Enter to use the command in brackets, or type {NONE} to finish.")
    checks = []
    question = "Add guardrail command (leave blank to finish): "
    while command := dialog.ask(question, next(iter(commands), "")):
        if command == NONE:
            break
        commands = [other for other in commands if other != command]
        while (action := dialog.ask("  Fail action (APPEND|PREPEND|REPLACE): ", "APPEND").upper()) not in ACTIONS:
            dialog.say("  Please answer APPEND, PREPEND or REPLACE.")
        hint = dialog.ask("  Hint (optional, guidance for agent on failure): ")
        checks.append({"command": command, "failAction": action, **({"hint": hint} if hint else {})})
    return checks


def _ask_setup(workspace: Path, checks: list[dict[str, str]], dialog: Dialog) -> str:
    """Offer to try the checks in a copy; return the setup that they need there."""
    dialog.explain("Worktrees, `ralph accept` and exams run the checks in a copy of a commit.")
    question = "Try them in a copy (takes as long as the checks, twice or more)? (Y/n): "
    if dialog.ask(question).lower() in ("n", "no"):
        return ""
    limit = MAX_UNASKED if dialog.answers is None else None
    return find_setup(workspace, [check["command"] for check in checks], limit, dialog.say)


def _show_existing(workspace: Path, dialog: Dialog) -> None:
    """Show the project's settings, merged; or what is wrong with them."""
    try:
        sources = load(workspace, {}, env={}).sources
    except UserError as error:
        dialog.say(clean(error.message))
        return
    effective = merge(DEFAULTS, *(normalize(read_file(path)).document for path in sources))
    dialog.say(escaped(msgspec.json.format(msgspec.json.encode(effective), indent=2)).decode())
    overlay = " (with local overlay from settings.local.json)" if len(sources) > 1 else ""
    dialog.say(f"Loaded from .ralph/settings.json{overlay}")


@command(words="settings|events|judgement")
def schema(values: Values, words: list[str]) -> int:
    """Print the JSON Schema of the settings file, of the events, or of what `ralph judge --json` prints."""
    if len(words) != 1 or words[0] not in SCHEMAS:
        raise UserError("no schema named", "ralph schema settings, ralph schema events, or ralph schema judgement")
    print(schema_text(words[0]), end="")
    return 0


def schema_text(kind: str) -> str:
    """Return the JSON Schema of `settings`, `events` or a `judgement`, indented."""
    return msgspec.json.format(msgspec.json.encode(SCHEMAS[kind]()), indent=2).decode() + "\n"


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file."""
    definitions = msgspec.json.schema(Settings)["$defs"]
    for definition in definitions.values():
        optional = set(definition["properties"]) - set(definition["required"])
        definition["properties"] |= {name: _or_null(definition["properties"][name]) for name in optional}
    top = definitions.pop("Settings")
    properties = top["properties"]
    properties["agent"]["anyOf"].insert(0, TEXT)  # `"agent": "claude"`
    commands = properties["checks"]["anyOf"][0]
    commands["items"] = {"anyOf": [TEXT, commands["items"]]}  # `"checks": ["make test"]`
    properties["guardrails"] = {**properties["checks"], "description": "Another name for `checks`."}
    inside = definitions["WorkChoice"]["properties"]
    inside["setup"] = {**properties["setup"], "description": "Another name for `setup` at the top level."}
    top["properties"] = {"$schema": {"type": "string", "description": "Where this schema is."}, **properties}
    return {"$schema": DIALECT, **top, "title": "Settings of ralph", "$defs": definitions}


def events_schema() -> dict[str, Any]:
    """Return the JSON Schema of one line of `--json` and of the journal."""
    names = {**events.NAMES, **backlog_events.NAMES}
    references, definitions = msgspec.json.schema_components(tuple(names))
    envelope = {
        "timestamp": {"type": "string", "format": "date-time"},
        "run": {"type": "string", "description": "The id of the run."},
        "seq": {"type": "integer", "minimum": 0, "description": "The number of the event in its run."},
    }
    return {
        "$schema": DIALECT,
        "title": "An event of ralph",
        "type": "object",
        "properties": {"type": {"enum": list(names.values())}, **envelope, "data": {"type": "object"}},
        "required": ["type", *envelope, "data"],
        "oneOf": [
            {"properties": {"type": {"const": name}, "data": reference}}
            for name, reference in zip(names.values(), references, strict=True)
        ],
        "$defs": definitions,
    }


def judgement_schema() -> dict[str, Any]:
    """Return the JSON Schema of a receipt."""
    return {"$schema": DIALECT, **msgspec.json.schema(Receipt), "title": "A judgement of ralph"}


SCHEMAS = {"settings": settings_schema, "events": events_schema, "judgement": judgement_schema}


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """Allow null for a field, which removes the value of a lower layer."""
    about: dict[str, Any] = {key: field.pop(key) for key in ("description", "examples", "default") if key in field}
    if about.get("default", 0) in (None, "", (), [], {}):
        del about["default"]
    options = [*map(_or_text, field.pop("anyOf", None) or [field])]
    if {"type": "null"} not in options:
        options.append({"type": "null"})
    return {**about, "anyOf": options}


def _or_text(option: dict[str, Any]) -> dict[str, Any]:
    """Allow text for a number that has a pattern."""
    is_number = "pattern" in option and option["type"] != "string"
    return {**option, "type": [option["type"], "string"]} if is_number else option
