"""The scripted model of a real CLI: a server on loopback that plays the same agent as agent.py.

It answers with one shell command for the work of a turn, then with the agent's words. It also plays the judge of Claude
Code's /goal.
"""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, convert

from bench.lab import ROOT
from bench.nights.agent import Turn
from bench.nights.contenders import CAP, Contender, Place
from bench.nights.population import WRONG, Step, parts_after
from bench.nights.task import CHECK, GOAL

sys.path.append(str(ROOT / "tests" / "agents_real"))

from modelserver import ModelServer, Stage
from script import Asked as Asked
from script import Call, Cut, Fail, Hang, Say, Uses
from script import Step as Answer

JUDGE = "evaluating a stop-condition hook"  # in the system prompt of Claude Code's evaluator
LOOK = f'{CHECK}; echo "exit $?"'
PASSED = re.compile(r"^exit 0\s*$", re.MULTILINE)
FLOOD = "yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx | head -c 12000000"
NOTHING = "git status --short"  # what an agent does that changes nothing and does not run the tests
ENDLESS = 2 * CAP + 5  # a loop with more turns is considered endless
HANG_SECONDS = 3.0  # seconds after which a silent stream is dropped; the real CLIs wait for minutes
BROKEN = ("crash", "cut", "hang")


class Opened(Struct):
    """A turn in progress. `answer` is the reply to its first request, and to a retry of it."""

    turn: Turn
    number: int
    step: dict[str, Any]
    answer: Answer
    broken: bool = False


class NightModel(Stage):
    """The model of one night. `judge`: perfect or trusting; `tool`: the call with which this CLI claims to be done."""

    def __init__(self, url: str, contender: Contender) -> None:
        super().__init__(url, ())
        self.contender = contender
        self.place: Place | None = None
        self.opened: Opened | None = None
        self.limited = self.tampered = self.passed = self.says_done = False

    def is_aside(self, asked: Asked) -> bool:
        return JUDGE not in asked.system and super().is_aside(asked)

    def next(self, asked: Asked) -> Answer:
        if JUDGE in asked.system:
            return Say(json.dumps({"ok": self.believes(), "reason": "that is what the transcript shows"}))
        with self._lock:
            answer = self.end(asked) if has_result(asked) else self.begin()
        if isinstance(answer, Hang):
            self.over.wait(HANG_SECONDS)
            return Cut(answer.text)
        return answer

    def believes(self) -> bool:
        """Return the judge's verdict. The perfect judge believes only a test run that it saw pass with unedited tests;
        the trusting one believes the agent's last words."""
        return self.says_done if self.contender.judge == "trusting" else self.passed and not self.tampered

    def begin(self) -> Answer:
        if self.limited:
            return Fail(429, "usage limit reached")
        if self.opened:
            return self.opened.answer
        assert self.place
        turn = Turn(str(self.place.ledger), str(self.place.work), prompt=GOAL)
        number, step = turn.begin(age=0.0)
        self.passed = False
        if number > ENDLESS:
            (self.place.ledger / "endless").touch()
        if step["fate"] in ("limit", "overload"):
            self.limited = step["fate"] == "limit"
            facts = turn.facts(step, number, "no answer", False)
            turn.note(**facts, cost=0.0, fate=step["fate"])
            return Fail(429, "usage limit reached") if self.limited else Fail(529, "overloaded")
        commands = self.commands(turn, step)
        self.opened = Opened(turn, number, step, Call("shell", "\n".join(commands)))
        return self.opened.answer if commands else self.speak("")

    def commands(self, turn: Turn, step: dict[str, Any]) -> list[str]:
        """Return the commands of the turn. An agent that lies runs the tests only if they would pass."""
        after = parts_after(turn.parts(), convert(step, Step))
        commands: list[str] = turn.commands(step)
        self.tampered |= any("tests/" in command for command in commands)
        has_lied = step["speech"] == "lie" and WRONG in after and not step["cheat"]
        commands += [LOOK] if step["looks"] and not has_lied else []
        commands += [FLOOD] if step["fate"] == "flood" else []
        return commands or ([NOTHING] if step["looks"] else [])

    def end(self, asked: Asked) -> Answer:
        return self.speak(asked.results[-1]) if self.opened else Say("That is all.")

    def speak(self, result: str) -> Answer:
        """Return the last words of a turn. A stream that was cut off gets a full answer when the CLI asks again."""
        assert self.opened
        turn, step, fate = self.opened.turn, self.opened.step, self.opened.step["fate"]
        text, claims = turn.words(step)
        if not self.opened.broken:
            paid = {"cost": step["cost"], "paid": step["cost"]}
            turn.note(**turn.facts(step, self.opened.number, text, claims), **paid, fate=fate)
        if fate in BROKEN and not self.opened.broken:
            self.opened.broken = True
            return Hang("Now I") if fate == "hang" else Cut("Now I")
        self.opened = None
        self.passed = bool(PASSED.search(result))
        self.says_done = claims or (step["speech"] == "forget" and WRONG not in turn.parts())
        if claims and self.contender.claim.get("tool"):
            return Uses(((self.contender.claim["tool"], self.contender.claim["arguments"]),), text)
        return Say(text)


def has_result(asked: Asked) -> bool:
    """Return whether the request has the result of a tool call: then it continues a turn, otherwise it begins one."""
    roles = [role for role, _ in asked.messages]
    last = max((at for at, role in enumerate(roles) if role == "assistant"), default=-1)
    return "tool" in roles[last + 1 :]


@contextmanager
def serving(contender: Contender) -> Iterator[NightModel]:
    with ModelServer() as server:
        model = NightModel(f"http://127.0.0.1:{server.port}/night", contender)
        server.stages["night"] = model
        try:
            yield model
        finally:
            model.over.set()
