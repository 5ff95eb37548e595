"""`ralph init`: asks the questions that make a project's settings, and writes them."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO, get_args

from ralph.cli.table import CliCommand, Values, no_words
from ralph.core.model import FailAction
from ralph.errors import UserError
from ralph.run.options import Option

ACTIONS = get_args(FailAction)
NONE = "-"  # no guardrail, though one was found
TEST_FOLDERS = ("tests", "test", "spec", "__tests__", "e2e")
SCHEMA_FILE = "settings.schema.json"
DEFAULTS: dict[str, Any] = {
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
    if values.get("yes"):
        initialize(Path.cwd(), Silence())
        return 0
    if sys.stdin is None or not sys.stdin.isatty():
        raise UserError("init asks questions and needs a terminal", "run it in one, or take what is found: --yes")
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

    def explain(self, text: str) -> None:
        """What the next question is about."""
        self.say(f"\n{text}")

    def ask(self, question: str, found: str = "") -> str:
        """The answer, or what was `found` where there is none."""
        self.say(question.removesuffix(": ") + f" [{found}]: " if found else question, end="")
        try:
            line = self.answers.readline()
        except OSError:  # the terminal is gone
            line = ""
        if not line.endswith("\n"):
            raise EOFError
        return line.strip() or found

    def ask_about(self, question: str, found: str = "", is_odd: Callable[[str], bool] = lambda answer: False) -> str:
        """An answer that looks as if it were meant for another question is asked for again."""
        answer = self.ask(question, found)
        if answer and is_odd(answer):
            self.say(f'"{answer}" looks like the answer to another question. If you mean it, say it again.')
            answer = self.ask(question, found)
        return answer

    def agrees(self, question: str, unless_said: bool = False) -> bool:
        answer = self.ask_about(question, is_odd=lambda said: said.lower() not in ("y", "yes", "n", "no"))
        return answer.lower() in ("y", "yes") or (unless_said and not answer)


class Silence(Dialog):
    """Nobody is asked: what was found is taken."""

    def __init__(self) -> None:
        super().__init__(sys.stdin, sys.stdout)

    def explain(self, text: str) -> None:
        pass

    def ask(self, question: str, found: str = "") -> str:
        return found


def initialize(workspace: Path, dialog: Dialog) -> None:
    """The whole conversation: shows what is there, asks, and writes once every answer is in."""
    from ralph.records.folder import prepare

    settings = workspace / ".ralph" / "settings.json"
    if os.path.lexists(settings):
        _show(workspace, dialog)
        if not dialog.agrees("Overwrite? (y/N): "):
            return
    said = interview(workspace, dialog)
    dialog.say("\n" + _written(said).decode(), end="")
    folder = prepare(workspace)
    _write(settings, _written(said))
    _write(folder / SCHEMA_FILE, schema_text("settings").encode())
    dialog.say("\nSettings written to .ralph/settings.json")
    dialog.say(f'Next: ralph {"loop" if said["guardrails"] else "run"} "what shall be true in the end"')
    if _has_boxes(workspace):
        dialog.say("To keep the agent away from your home and keys, add --sandbox.")


def interview(workspace: Path, dialog: Dialog) -> dict[str, Any]:
    """The settings that the answers make."""
    said: dict[str, Any] = {"$schema": f"./{SCHEMA_FILE}", **DEFAULTS, "agent": _ask_agent(dialog)}
    if (turns := _ask_iterations(dialog)) is not None:  # unless it is said, every way to loop has a number of its own
        said["maximumIterations"] = turns
    dialog.explain("What the agent writes between <response> and </response> when it is done.")
    said["completionResponse"] = dialog.ask_about("Completion response [DONE]: ", is_odd=_is_no_word) or "DONE"
    said["guardrails"] = _ask_guardrails(workspace, dialog)
    dialog.explain("After green checks the work can be committed, with a message by the agent.")
    if dialog.agrees("Configure SCM? (y/N): "):
        said["scm"] = _ask_scm(dialog)
    if said["guardrails"] and (tests := _tests_in(workspace)):
        dialog.explain("An agent can make checks pass by changing the tests; what is protected is\nput back.")
        if dialog.agrees(f"Protect {tests}/** from the agent? (Y/n): ", unless_said=True):
            said["protect"] = [f"{tests}/**"]
    return said


def _ask_agent(dialog: Dialog) -> dict[str, Any]:
    agents = installed_agents()
    dialog.explain("Who does the work: a coding agent that is installed here, or any command line.")
    if agents:
        dialog.say(f"Installed here: {', '.join(agents)}")
    question = "Agent command (e.g., claude, codex, amp, or other LLM CLI): "
    while not (agent := dialog.ask_about(question, next(iter(agents), ""), _is_choice)):
        if isinstance(dialog, Silence):
            raise UserError(
                "no coding agent is installed", "install one, or name yours: run `ralph init` in a terminal"
            )
        dialog.say(f"An agent command is required, for example {(*agents, 'claude')[0]}.")
    dialog.explain("Words that it is always started with.")
    flags = dialog.ask_about("Agent flags (comma-separated, optional): ", is_odd=lambda said: not said.startswith("-"))
    return {"command": agent, "flags": _parts(flags)}


def _is_choice(answer: str) -> bool:
    """Whether it answers a question of another kind: how many, yes or no, what to do."""
    return answer.isdigit() or answer.upper() in ("Y", "N", "YES", "NO", *get_args(FailAction))


def _is_no_word(answer: str) -> bool:
    return _is_choice(answer) or " " in answer or answer.startswith("-")


def _parts(answer: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in answer.split(",") if part.strip()]


def installed_agents() -> list[str]:
    from shutil import which

    from ralph.agents import programs

    return [name for name in programs() if which(name)]


def _ask_iterations(dialog: Dialog) -> int | None:
    dialog.explain("How many turns it gets before ralph gives up (without an answer `ralph loop`\ngives it 25).")
    while answer := dialog.ask("Maximum iterations [10]: "):
        if answer.isascii() and answer.isdigit() and len(answer) < 10 and int(answer) > 0:
            return int(answer)
        dialog.say("Please give a whole number greater than 0.")
    return None


def _ask_guardrails(workspace: Path, dialog: Dialog) -> list[dict[str, str]]:
    dialog.explain("What must pass before the work is believed to be done: your tests, a linter.")
    found = _found_checks(workspace, dialog)
    guardrails = []
    question = "Add guardrail command (leave blank to finish): "
    while command := dialog.ask_about(question, next(iter(found), ""), _is_choice):
        if command == NONE:
            break
        found = [other for other in found if other != command]
        while (action := dialog.ask("  Fail action (APPEND|PREPEND|REPLACE): ", "APPEND").upper()) not in ACTIONS:
            dialog.say("  Please answer APPEND, PREPEND or REPLACE.")
        hint = dialog.ask("  Hint (optional, guidance for agent on failure): ")
        guardrails.append({"command": command, "failAction": action, **({"hint": hint} if hint else {})})
    return guardrails


def _found_checks(workspace: Path, dialog: Dialog) -> list[str]:
    """The checks that the project has already and that can be run here, each tried once."""
    from ralph.settings.proposed import proposed_checks

    proposals = proposed_checks(workspace)
    if not proposals:
        return []
    from ralph.planning.plan import Trials
    from ralph.processes.interrupt import Interrupt
    from ralph.processes.keeper import Keeper
    from ralph.settings.layers import settled

    usable = []
    with Keeper.start() as keeper, Interrupt() as interrupt:
        trials = Trials(workspace, settled([]), keeper)
        for proposal in proposals:
            dialog.say(f"Found in {proposal.source}, and tried: {proposal.command}", end=" ")
            (trial,) = trials.of([proposal.command], interrupt)
            dialog.say(f"({trial.state}{f': {trial.ending}' if trial.ending else ''})")
            usable += [] if trial.state == "not runnable" else [proposal.command]
    if usable:
        dialog.explain(f"Enter takes what stands in brackets; {NONE} finishes without it.")
    return usable


def _tests_in(workspace: Path) -> str:
    """The folder of the tests, if there is one."""
    return next((name for name in TEST_FOLDERS if (workspace / name).is_dir()), "")


def _has_boxes(workspace: Path) -> bool:
    from ralph.processes.box import find_bubblewrap

    try:
        return bool(find_bubblewrap(os.environ, str(workspace)))
    except UserError:
        return False


def _ask_scm(dialog: Dialog) -> dict[str, Any]:
    while not (scm := dialog.ask("  SCM command (e.g., git): ")):
        dialog.say("  An SCM command is required.")
    while not (tasks := _parts(dialog.ask("  SCM tasks (comma-separated, e.g., commit,push): "))):
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


def _written(said: dict[str, Any]) -> bytes:
    import msgspec

    return msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n"


def _write(path: Path, data: bytes) -> None:
    """All or nothing: the file is put in place once it is complete."""
    from ralph.records.folder import cannot_write

    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        draft.unlink(missing_ok=True)


YES = Option("-y --yes", "Ask nothing: take what is found.")
INIT = CliCommand("init", "Write .ralph/settings.json by answering a few questions.", init, (YES,))


KINDS = ("settings", "events")


def print_schema(values: Values, words: list[str]) -> int:
    if len(words) != 1:
        raise UserError("the schema of what?", f"say {' or '.join(KINDS)}")
    print(schema_text(words[0]), end="")
    return 0


def schema_text(kind: str) -> str:
    """The JSON Schema of `settings` or `events`, indented for people, with a newline at its end."""
    import msgspec

    from ralph.settings.shape import events_schema, settings_schema

    if kind not in KINDS:
        raise UserError(f'there is no schema of "{kind}"', f"known are {' and '.join(KINDS)}")
    schema = settings_schema() if kind == "settings" else events_schema()
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


SCHEMA = CliCommand(
    "schema", "Print the JSON Schema of the settings file or of the events.", print_schema, words="settings|events"
)
