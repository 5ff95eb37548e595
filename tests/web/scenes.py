"""Recorded runs of all lengths and states, as real runs write them."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

from ralph.backlog.ledger import BacklogRegistration, JournalLedger
from ralph.core import backlog_events
from ralph.core import events as e
from ralph.core.backlog import BacklogTask, GateVerdict
from ralph.core.model import Check, Fingerprint, Iteration, Outcome, PersonNote, Turn, Usage
from ralph.core.secrets import Redactor
from ralph.store.folder import RunFolder, prepare
from ralph.store.journal import Journal
from ralph.store.mailbox import Mailbox
from ralph.store.writer import Registration, Writer, enlist

GOAL = "Make the cart honour coupons; the tests say how. A coupon is a percentage, may expire, and two do not stack."
CHECKS = ("pytest -q", "ruff check .", "mypy src")


class Scene:
    """A recorded run. It counts as running while this process lives, unless it has an outcome."""

    def __init__(
        self,
        workspace: Path,
        env: Mapping[str, str],
        run_id: str,
        *,
        goal: str = GOAL,
        checks: Sequence[str] = CHECKS,
        cap: int | None = 10,
        branch: str = "",
        agent: str = "claude",
        preset: str = "checks",
        limits: Mapping[str, float] | None = None,
        work: str = "",
        backlog_task: str = "",
        base_tree: Fingerprint | None = None,
    ) -> None:
        workspace.mkdir(parents=True, exist_ok=True)
        self.id, self.workspace, self.checks = run_id, workspace, checks
        self._is_closed = False
        self.folder = RunFolder(prepare(workspace), run_id)
        self.folder.make()
        self.folder.write("run.json", json.dumps({"settings": dict(limits or {})}).encode())
        self._journal = Journal(self.folder.journal).open()
        self._writer = Writer(run_id, [self._journal])
        self._registration = Registration(self.folder)
        self._registration.begin()
        enlist(self.folder, env)
        self.mail = Mailbox(self.folder.path)
        self.tell(
            e.RunStarted(
                goal=goal,
                preset=preset,
                agent=agent,
                workspace=str(workspace),
                max_iterations=cap,
                checks=tuple(checks),
                claims=("tag:COMPLETE",),
                pid=os.getpid(),
                branch=branch,
                work=work,
                backlog_task=backlog_task,
                base_tree=base_tree,
            )
        )

    def tell(self, *events: e.Event) -> None:
        self._registration(*self._writer(*events))
        self._registration.tick()

    def iterate(
        self, number: int, *passed: bool, cost: float = 0.11, tree: Fingerprint | None = None, said: str = ""
    ) -> None:
        """Record a whole iteration: a few tools, the checks, and the result."""
        self.begin(number)
        self.tell(
            e.AgentText(said or f"I look at what iteration {number} needs: the tests say `Decimal`, not `float`.")
        )
        self.tool("Read", f"{self.workspace}/src/shop/cart.py", "1\timport decimal\n2\t\n3\tclass Cart:", lines=28)
        self.tool("Bash", "pytest -q tests/test_cart.py", "...F\n1 failed, 3 passed", ok=False, lines=2)
        checks = [
            Check(name=name, passed=ok, exit_code=0 if ok else 1, head="1 failed", duration=2.0)
            for name, ok in zip(self.checks, passed, strict=False)
        ]
        for check in checks:
            self.tell(e.CheckStarted(check.name))
            self.tell(
                e.CheckFinished(
                    name=check.name,
                    passed=check.passed,
                    exit_code=check.exit_code,
                    duration_s=check.duration,
                    output="" if check.passed else "E  assert 3 == 4\n1 failed",
                )
            )
        turn = Turn(
            text="All of it is done.\n\nCOMPLETE",
            usage=Usage(input_tokens=4000, output_tokens=900, cost_usd=cost),
            duration=61.0,
            tool_calls=2,
        )
        self.tell(e.IterationFinished(number, Iteration(number=number, turn=turn, checks=tuple(checks), tree=tree)))

    def begin(self, number: int, cap: int | None = 10) -> None:
        self.tell(e.IterationStarted(number, cap, GOAL), e.AgentStarted("claude", pid=1))

    def tool(self, name: str, given: str, output: str = "", *, ok: bool = True, lines: int = 1) -> None:
        id_ = f"t{random.random()}"
        self.tell(e.ToolStarted(id_, name, given))
        self.tell(e.ToolFinished(id=id_, name=name, ok=ok, output=output, lines=lines, chars=len(output)))

    def refuse(self, reason: str = "1 of 3 checks failed: mypy src (exit 1)") -> None:
        self.tell(e.ClaimRejected("COMPLETE", "checks", reason))

    def finish(
        self, outcome: str = "done", reason: str = "the agent said COMPLETE and 3 checks passed", **more: object
    ) -> None:
        code = {"done": 0, "stopped": 0, "interrupted": 130, "fatal": 2}.get(outcome, 1)
        self.tell(
            e.RunFinished(
                outcome=Outcome(outcome),
                reason=reason,
                iterations=2,
                cost_usd=0.84,
                duration_s=1265.0,
                exit_code=code,
                **more,
            )
        )  # type: ignore[arg-type]
        self.close()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._journal.close()


def night(
    workspace: Path, env: Mapping[str, str], run_id: str, iterations: int, checks: int = 3, **more: object
) -> Scene:
    """Return a running run with this many finished iterations, in which more and more checks pass."""
    names = (*CHECKS, *(f"make check-{number}" for number in range(4, checks + 1)))[:checks]
    scene = Scene(
        workspace, env, run_id, checks=names, cap=iterations + 3, limits={"maxCost": 5, "maxTime": 7200}, **more
    )  # type: ignore[arg-type]
    chance = random.Random(7)
    for number in range(1, iterations + 1):
        passed = [chance.random() < number / iterations * 0.9 for _ in names]
        scene.iterate(number, *passed, cost=0.02 + chance.random() * 0.2)
        if number % 3 == 0:
            scene.refuse()
    scene.begin(iterations + 1, iterations + 3)
    scene.tell(e.PersonTold(iterations + 1, (PersonNote("n", "You may change the signature of `total()`."),)))
    scene.tell(e.AgentText("The type checker is right: sums are `float` in one place and `Decimal` in another."))
    tasks = ("Read the cart", "Add coupons", "Let them expire", "Use Decimal for sums", "Round once, at the end")
    scene.tell(
        e.TodoUpdated(
            tuple(
                e.TodoItem(text, ("done", "done", "active", "pending", "pending")[at]) for at, text in enumerate(tasks)
            )
        )
    )
    scene.tool("Read", f"{workspace}/src/shop/coupons.py", "class Coupon:\n    percent: Decimal", lines=21)
    scene.tell(e.ToolStarted("open", "Bash", "mypy src && pytest -q tests/test_cart.py"))
    return scene


def repository(workspace: Path, env: Mapping[str, str]) -> None:
    workspace.mkdir(parents=True, exist_ok=True)
    for words in (("init", "-q", "-b", "main"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", *words], cwd=workspace, env=dict(env), check=True)


CART = """class Cart:
    def total(self):
        return sum(self.prices)
"""
AGENT = """#!/bin/sh
cat > src/cart.py << END
from decimal import Decimal


class Cart:
    def total(self) -> Decimal:
        return sum(self.prices, Decimal())
END
echo "<b>Sums</b> are decimal now." >> notes.md
git mv README READ.ME
echo '<response>DONE</response>'
"""


def real_run(workspace: Path, env: Mapping[str, str]) -> str:
    """Run an agent that changes a repository; return the id of the run."""
    repository(workspace, env)
    (workspace / "src").mkdir()
    for path, text in {"src/cart.py": CART, "README": "A shop.\n", "agent": AGENT}.items():
        (workspace / path).write_text(text)
    (workspace / "agent").chmod(0o755)
    for words in (["add", "-A"], ["commit", "-qm", "second"]):
        subprocess.run(["git", *words], cwd=workspace, env=dict(env), check=True)
    words = [sys.executable, "-m", "ralph", "run", GOAL, "--agent", "./agent", "--check", "test -s notes.md"]
    subprocess.run(
        words, cwd=workspace, env=dict(env), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return os.listdir(workspace / ".ralph" / "runs")[0]


def wait_for(seen: object, seconds: float = 60.0) -> None:
    """Wait until `seen()` is true."""
    until = time.monotonic() + seconds
    while not seen():  # type: ignore[operator]
        assert time.monotonic() < until, "timed out"
        time.sleep(0.01)


class WorkScene:
    """A recorded backlog, as its coordinator writes it."""

    def __init__(self, workspace: Path, env: Mapping[str, str], run_id: str, *tasks: BacklogTask) -> None:
        self.id, self.workspace = run_id, workspace
        self.folder = RunFolder(prepare(workspace), run_id)
        self.folder.make()
        order = SimpleNamespace(
            workspace=str(workspace),
            source=SimpleNamespace(name="tasks.md"),
            shown_target="ralph/w/merged",
            remote=None,
            version="1",
        )
        self._ledger = JournalLedger(self.folder, Redactor(()))
        self._registration = BacklogRegistration(self.folder, order, self._ledger)  # type: ignore[arg-type]
        self._registration.begin()
        self._ledger.open()
        self._ledger.listen([self._registration])
        enlist(self.folder, env)
        begun = backlog_events.BacklogStarted(
            name="w",
            backlog="tasks.md",
            workspace=str(workspace),
            target="ralph/w/merged",
            checks=("make test",),
            slots=2,
        )
        self.tell(begun, *map(backlog_events.TaskListed, tasks))

    def tell(self, *happened: object) -> None:
        self._ledger.tell(*happened)  # type: ignore[arg-type]
        self._registration.tick()

    def start(self, key: str, run: Scene | None = None) -> None:
        self.tell(backlog_events.TaskStarted(key, 1, run.id if run else ""))

    def merge(self, key: str, cost: float = 0.4) -> None:
        self.tell(
            backlog_events.TaskReady(key=key, tip="a" * 40, files=("src/a.py",), cost_usd=cost),
            backlog_events.GateStarted((key,)),
            backlog_events.GateFinished(GateVerdict(tried=(key,), merged=(key,), commit="b" * 40)),
            backlog_events.TaskMerged(key, "a" * 40, "b" * 40),
        )

    def park(self, key: str, reason: str = "25 iterations were not enough", run: str = "") -> None:
        self.tell(backlog_events.TaskParked(key, reason, run, 1.2))

    def finish(self, outcome: str = "interrupted") -> None:
        totals = {"merged": 0, "parked": 0, "blocked": 0, "tasks": 4}
        self.tell(
            backlog_events.BacklogFinished(
                outcome=outcome, reason="", **totals, cost_usd=None, duration_s=9.0, exit_code=130
            )
        )
