"""`ralph demo`, `init`, `schema`: how does one begin? Shows what ralph is for, on a small repository with a failing
test and an agent that first gets it wrong; asks the questions that make a project's settings, and writes them."""

import os
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Any, TextIO, get_args

import msgspec

from ralph.agents import acp, programs
from ralph.cli.run import run_command
from ralph.cli.table import Values, command, no_words
from ralph.core.model import FailAction
from ralph.core.text import clean, escaped, one_line
from ralph.errors import UserError
from ralph.files import DEMO, replace_file
from ralph.git.client import GitPolicy
from ralph.planning.plan import Trials
from ralph.process.keeper import Keeper
from ralph.process.process import Process
from ralph.process.program import Command
from ralph.process.signals import Interrupt
from ralph.run.options import Option
from ralph.sandbox.bubblewrap import find_bubblewrap
from ralph.settings.detect_checks import detect_checks
from ralph.settings.json_schema import events_schema, settings_schema
from ralph.settings.load import load, merge, normalize, resolve
from ralph.settings.read import read_json
from ralph.show.outlet import terminal_size
from ralph.store.folder import cannot_write, prepare

ACTIONS = get_args(FailAction)
NONE = "-"  # no check, even though one was found
TEST_FOLDERS = ("tests", "test", "spec", "__tests__", "e2e")
SCHEMA_FILE = "settings.schema.json"
DEFAULTS: dict[str, Any] = {
    "completionResponse": "DONE",
    "outputTruncateChars": 5000,
    "streamAgentOutput": True,
    "includeIterationCountInPrompt": False,
    "agent": {"command": "", "flags": []},
    "checks": [],
}


@command(Option("-y --yes", "Ask nothing: use what is detected."))
def init(values: Values, words: list[str]) -> int:
    """Write .ralph/settings.json by answering a few questions."""
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

    settings = workspace / ".ralph" / "settings.json"
    if os.path.lexists(settings):
        _show(workspace, dialog)
        if not dialog.agrees("Overwrite? (y/N): "):
            return
    said = interview(workspace, dialog)
    dialog.say("\n" + _written(said).decode(), end="")
    folder = prepare(workspace)
    files = {settings: _written(said), folder / SCHEMA_FILE: schema_text("settings").encode()}
    for path, data in files.items():
        try:
            replace_file(path, data)
        except OSError as error:
            raise cannot_write(path, error) from None
    dialog.say("\nSettings written to .ralph/settings.json")
    dialog.say(f'Next: ralph {"loop" if said["checks"] else "run"} "what shall be true in the end"')
    with suppress(UserError):  # without bubblewrap, --sandbox is not offered
        if find_bubblewrap(os.environ, str(workspace)):
            dialog.say("To keep the agent away from your home and keys, add --sandbox.")


def interview(workspace: Path, dialog: Dialog) -> dict[str, Any]:
    """The settings that the answers make."""

    said: dict[str, Any] = {"$schema": f"./{SCHEMA_FILE}", **DEFAULTS}
    agents = [name for name in programs() if which(name)]
    agents += [name for name in acp.find_installed() if name.removeprefix(acp.PREFIX) not in programs()]
    dialog.explain("Who does the work: a coding agent that is installed here, or any command line.")
    if agents:
        dialog.say(f"Installed here: {', '.join(agents)}")
    question = "Agent command (e.g., claude, codex, amp, or other LLM CLI): "
    while not (agent := dialog.ask_about(question, next(iter(agents), ""), _is_choice)):
        if isinstance(dialog, Silence):
            hint = "install one, or name yours: run `ralph init` in a terminal"
            raise UserError("no coding agent is installed", hint)
        dialog.say(f"An agent command is required, for example {(*agents, 'claude')[0]}.")
    dialog.explain("Words that it is always started with.")
    flags = dialog.ask_about("Agent flags (comma-separated, optional): ", is_odd=lambda said: not said.startswith("-"))
    said["agent"] = {"command": agent, "flags": _parts(flags)}
    dialog.explain("How many turns it gets before ralph gives up (without an answer `ralph loop`\ngives it 25).")
    while answer := dialog.ask("Maximum iterations [10]: "):  # else every way to loop has a number of its own
        if answer.isascii() and answer.isdigit() and len(answer) < 10 and int(answer) > 0:
            said["maximumIterations"] = int(answer)
            break
        dialog.say("Please give a whole number greater than 0.")
    dialog.explain("What the agent writes between <response> and </response> when it is done.")
    answer = dialog.ask_about(
        "Completion response [DONE]: ", is_odd=lambda said: _is_choice(said) or " " in said or said.startswith("-")
    )
    said["completionResponse"] = answer or "DONE"
    said["checks"] = _ask_checks(workspace, dialog)
    dialog.explain("After green checks the work can be committed, with a message by the agent.")
    if dialog.agrees("Configure SCM? (y/N): "):
        while not (scm := dialog.ask("  SCM command (e.g., git): ")):
            dialog.say("  An SCM command is required.")
        while not (tasks := _parts(dialog.ask("  SCM tasks (comma-separated, e.g., commit,push): "))):
            dialog.say("  Please name at least one task.")
        said["scm"] = {"command": scm, "tasks": tasks}
    tests = next((name for name in TEST_FOLDERS if (workspace / name).is_dir()), "")
    if said["checks"] and tests:
        dialog.explain("An agent can make checks pass by changing the tests; what is protected is\nput back.")
        if dialog.agrees(f"Protect {tests}/** from the agent? (Y/n): ", unless_said=True):
            said["protect"] = [f"{tests}/**"]
    return said


def _is_choice(answer: str) -> bool:
    """Whether it answers a question of another kind: how many, yes or no, what to do."""
    return answer.isdigit() or answer.upper() in ("Y", "N", "YES", "NO", *get_args(FailAction))


def _parts(answer: str) -> list[str]:
    """What stands between commas."""
    return [part.strip() for part in answer.split(",") if part.strip()]


def _ask_checks(workspace: Path, dialog: Dialog) -> list[dict[str, str]]:
    dialog.explain("What must pass before the work is believed to be done: your tests, a linter.")
    found = _found_checks(workspace, dialog)
    checks = []
    question = "Add guardrail command (leave blank to finish): "
    while command := dialog.ask_about(question, next(iter(found), ""), _is_choice):
        if command == NONE:
            break
        found = [other for other in found if other != command]
        while (action := dialog.ask("  Fail action (APPEND|PREPEND|REPLACE): ", "APPEND").upper()) not in ACTIONS:
            dialog.say("  Please answer APPEND, PREPEND or REPLACE.")
        hint = dialog.ask("  Hint (optional, guidance for agent on failure): ")
        checks.append({"command": command, "failAction": action, **({"hint": hint} if hint else {})})
    return checks


def _found_checks(workspace: Path, dialog: Dialog) -> list[str]:
    """The checks that the project has already and that can be run here, each tried once."""

    proposals = detect_checks(workspace)
    if not proposals:
        return []

    usable = []
    with Keeper.start() as keeper, Interrupt() as interrupt:
        trials = Trials(workspace, resolve([]), keeper)
        for proposal in proposals:
            dialog.say(f"Found in {proposal.source}, and tried: {proposal.command}", end=" ")
            (trial,) = trials.of([proposal.command], interrupt)
            dialog.say(f"({trial.state}{f': {trial.ending}' if trial.ending else ''})")
            usable += [] if trial.state == "not runnable" else [proposal.command]
    if usable:
        dialog.explain(f"Enter takes what stands in brackets; {NONE} finishes without it.")
    return usable


def _show(workspace: Path, dialog: Dialog) -> None:
    """The settings that are there, as they work together; or what is wrong with them."""

    try:
        sources = load(workspace, {}, env={}).sources
    except UserError as error:
        dialog.say(clean(error.message))
        return
    effective = merge(DEFAULTS, *(normalize(read_json(path)).document for path in sources))
    dialog.say(escaped(msgspec.json.format(msgspec.json.encode(effective), indent=2)).decode())
    overlay = " (with local overlay from settings.local.json)" if len(sources) > 1 else ""
    dialog.say(f"Loaded from .ralph/settings.json{overlay}")


def _written(said: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(said), indent=2) + b"\n"


KINDS = ("settings", "events")


@command(words="settings|events")
def schema(values: Values, words: list[str]) -> int:
    """Print the JSON Schema of the settings file or of the events."""
    if len(words) != 1:
        raise UserError("the schema of what?", f"say {' or '.join(KINDS)}")
    print(schema_text(words[0]), end="")
    return 0


def schema_text(kind: str) -> str:
    """The JSON Schema of `settings` or `events`, indented for people, with a newline at its end."""

    if kind not in KINDS:
        raise UserError(f'there is no schema of "{kind}"', f"known are {' and '.join(KINDS)}")
    schema = settings_schema() if kind == "settings" else events_schema()
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


CART = '''"""Totals of a shopping cart."""


def total(price: float, coupon: float = 0) -> float:
    """The price, less a coupon of so many percent."""
    return price - coupon
'''

TEST = """import unittest

from cart import total


class TestTotal(unittest.TestCase):
    def test_a_coupon_is_a_percentage(self):
        self.assertEqual(total(80, coupon=25), 60)

    def test_without_a_coupon_the_price_stays(self):
        self.assertEqual(total(80), 80)
"""

WIDEST = 80  # columns of text
INTRODUCTION = """\
This is a demonstration. The agent is a script, not a model: nothing is sent anywhere, and nothing is spent.
It works on a small repository with a failing test, in {folder}
Watch what happens when it claims to be done in iteration 2.
"""

NEXT = """\
In iteration 2 the agent said it was done. ralph ran the check itself, and did not believe it. Look around:

    cd {folder}
    {ralph} show     # iteration by iteration
    {ralph} diff     # what it changed

Then, in a repository of your own, with an agent that you have installed (claude, codex, amp, …):

    {ralph} loop "Make the tests pass" --check "YOUR TEST COMMAND"
"""


@command()
def demo(values: Values, words: list[str]) -> int:
    """Watch a run on a small example, with a scripted agent. Takes a few seconds."""
    no_words(words, "`ralph demo` takes none")

    folder = Path(tempfile.mkdtemp(prefix=DEMO))
    for name, text in {"cart.py": CART, "test_cart.py": TEST, ".gitignore": "__pycache__/\n"}.items():
        (folder / name).write_text(text)
    if which("git"):
        _make_repository(folder)
    ralph = "ralph" if which("ralph") else os.path.join(os.path.dirname(sys.executable), "ralph")
    _say(INTRODUCTION.format(folder=folder))
    os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    os.environ.setdefault("RALPH_DEMO_PAUSE", "0.4" if sys.stderr.isatty() else "0")
    given = {
        "agent": f"{shlex.quote(sys.executable)} -m ralph.agents.demo",
        "check": ["python3 -m unittest -q"],
        "directory": str(folder),
        "maximum_iterations": 5,
        "max_cost": 1.0,
    }
    code = run_command("loop", given, ["Make the tests pass."])
    _say("\n" + NEXT.format(folder=folder, ralph=ralph))
    return code


def _make_repository(folder: Path) -> None:

    git = ("git", "-C", str(folder), "-c", "user.name=ralph", "-c", "user.email=ralph@localhost")
    for made in (("init", "-q"), ("add", "-A"), ("commit", "-q", "--no-gpg-sign", "-m", "A cart with a bug")):
        with Process(Command(argv=(*git, *made), env=os.environ)) as asked:
            asked.output(GitPolicy.OWN.value)
        if asked.code:
            raise UserError(f"git {made[0]} failed: {one_line(asked.error, 300)}", "mend it, then try again")


def _say(text: str) -> None:
    """In lines that fit the terminal; what is to be copied stays in one."""

    columns = min(terminal_size(sys.stderr, WIDEST)[0], WIDEST)
    for line in text.splitlines():
        is_whole = line.startswith(" ") or not line
        rows = [line] if is_whole else textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False)
        print("\n".join(rows), file=sys.stderr)
    print(file=sys.stderr, flush=True)
