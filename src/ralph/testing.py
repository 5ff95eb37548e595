"""Fakes for those who write their own agents, rules or workspaces, and a suite that an agent's module must pass."""

from collections.abc import Iterable, Sequence

from ralph.core.events import Event
from ralph.core.model import Check, Iteration, Run, Snapshot, Turn


class ScriptedAgent:
    """Answers its prompts one after the other; the last answer is repeated. `prompts` remembers what it was asked."""

    def __init__(self, *answers: str | Turn) -> None:
        self._answers = [Turn(answer) if isinstance(answer, str) else answer for answer in answers]
        self.prompts: list[str] = []

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        self.prompts.append(prompt)
        return self._answers[min(len(self.prompts), len(self._answers)) - 1]


class FakeWorkspace:
    """A workspace whose checks and trees are scripted, one entry per iteration; the last entry is repeated."""

    def __init__(
        self,
        checks: Sequence[tuple[Check, ...] | None] = ((),),
        trees: Sequence[str | None] = (None,),
        looks: Sequence[Snapshot] = (Snapshot(),),
    ) -> None:
        self._checks, self._trees, self._looks = checks, trees, looks
        self._checked = self._seen = self._looked = 0

    def look(self, run: Run) -> Snapshot:
        self._looked += 1
        return self._looks[min(self._looked, len(self._looks)) - 1]

    def guard(self) -> tuple[str, ...]:
        return ()

    def check(self, number: int) -> tuple[Check, ...] | None:
        self._checked += 1
        return self._checks[min(self._checked, len(self._checks)) - 1]

    def tree(self, number: int) -> str | None:
        self._seen += 1
        return self._trees[min(self._seen, len(self._trees)) - 1]


class Ear:
    """A listener that remembers every event."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.heard.append(event)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.heard]


def a_run(*turns: str | Turn | Iteration, seen: Snapshot = Snapshot(), base_tree: str | None = None) -> Run:
    """A run with these iterations behind it."""
    run = Run("test", goal="the goal", base_tree=base_tree)
    for number, turn in enumerate(turns, 1):
        if isinstance(turn, Iteration):
            run = run.plus(turn)
        else:
            run = run.plus(Iteration(number, Turn(turn) if isinstance(turn, str) else turn))
    return run.seeing(seen)


def iterations(*trees: str | None, text: str = "same") -> Iterable[Iteration]:
    """Iterations that differ in their trees alone."""
    return [Iteration(number, Turn(text), tree=tree) for number, tree in enumerate(trees, 1)]
