"""Fakes for those who write their own agents, rules or workspaces, and a suite that an agent's module must pass."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ralph.agents.protocol import AgentModule, TurnRequest
from ralph.core.model import Check, Exit, Fingerprint, Iteration, Run, Snapshot, Turn


class ScriptedAgent:
    """Answers its prompts one after the other; the last answer is repeated. `prompts` remembers what it was asked."""

    def __init__(self, *answers: str | Turn) -> None:
        self._answers = [Turn(text=answer) if isinstance(answer, str) else answer for answer in answers]
        self.prompts: list[str] = []

    def take_turn(self, prompt: str, run: Run, purpose: str = "work") -> Turn:
        self.prompts.append(prompt)
        return self._answers[min(len(self.prompts), len(self._answers)) - 1]


class FakeWorkspace:
    """A workspace whose checks and trees are scripted, one entry per iteration; the last entry is repeated."""

    def __init__(
        self,
        checks: Sequence[tuple[Check, ...] | None] = ((),),
        trees: Sequence[Fingerprint | None] = (None,),
        looks: Sequence[Snapshot] = (Snapshot(),),
    ) -> None:
        self._checks, self._trees, self._looks = checks, trees, looks
        self._checked = self._seen = self._looked = 0
        self.restored: list[int] = []

    def look(self, run: Run) -> Snapshot:
        self._looked += 1
        return self._looks[min(self._looked, len(self._looks)) - 1]

    def guard(self) -> tuple[str, ...]:
        return ()

    def restore(self, iteration: Iteration) -> tuple[Fingerprint, str] | None:
        """Pretend to restore the files; `restored` remembers the numbers of the iterations."""
        self.restored.append(iteration.number)
        return (iteration.tree, "refs/kept") if iteration.tree else None

    def check(self, number: int) -> tuple[Check, ...] | None:
        self._checked += 1
        return self._checks[min(self._checked, len(self._checks)) - 1]

    def tree(self, number: int) -> Fingerprint | None:
        self._seen += 1
        return self._trees[min(self._seen, len(self._trees)) - 1]


def a_run(*turns: str | Turn | Iteration, seen: Snapshot = Snapshot(), base_tree: Fingerprint | None = None) -> Run:
    """A run with these iterations behind it."""
    run = Run(id="test", goal="the goal", base_tree=base_tree)
    for number, turn in enumerate(turns, 1):
        if isinstance(turn, Iteration):
            run = run.plus(turn)
        else:
            run = run.plus(Iteration(number=number, turn=Turn(text=turn) if isinstance(turn, str) else turn))
    return run.seeing(seen)


GARBAGE = (
    *(b"", b" ", b"{", b"{}", b"[]", b"null", b"0", b'"', b"\xff\xfe", b"plain words", b'{"type":null}', b'{"type":5}'),
    *(b'{"type":"' + kind + b'"}' for kind in (b"assistant", b"result", b"system", b"error", b"init", b"\\ud83d")),
    *(b'{"type":"' + kind + b'","message":[],"item":7,"data":"x"}' for kind in (b"user", b"item.completed", b"abort")),
    b'{"type":"result","result":7,"usage":[],"num_turns":1e308,"total_cost_usd":"much"}',
    b'{"type":' + b"[" * 5000,
)


def agent_contract(module: AgentModule) -> None:
    """Raise unless `module` satisfies the interface of an agent: words to start it, and a parser that never raises."""
    assert all(isinstance(name, str) for name in (module.NAME, module.INSTALL)), "names are words"
    task, file = "do the task\nin two lines", "/tmp/prompt.md"
    request = TurnRequest(prompt=task, prompt_file=file, command=("program",), flags=("--user-flag",), model="a-model")
    changes: tuple[dict[str, Any], ...] = ({}, {"yolo": True, "root": True}, {"stream": False}, {"session": "S-1"})
    for asked in (replace(request, **change) for change in changes):
        invocation = module.invocation(asked)
        assert invocation.argv, "there is a program to run"
        assert all(isinstance(word, str) and "\0" not in word for word in invocation.argv), "argv is words"
        placed = [word for word in invocation.argv if asked.prompt in word or asked.prompt_file in word]
        assert bool(placed) != (invocation.stdin == "prompt"), "the prompt arrives in one way, on stdin or in a word"
        assert "--user-flag" in invocation.argv, "the user's own flags are passed on"
        if asked.session and module.RESUMES:
            assert any("S-1" in word for word in invocation.argv), "a session is named when it is to be continued"
    parser = module.parser(request)
    for line in (*GARBAGE, *reversed(GARBAGE)):
        list(parser.feed(line))
    turn = parser.turn(Exit(code=1, at=5.0, duration=2.0, stderr="it broke"))
    assert turn.failure, "an exit code other than 0 is a failure"
    assert (turn.exit_code, turn.ended_at, turn.duration) == (1, 5.0, 2.0), "a turn says how and when it ended"
    parser = module.parser(request)
    for line in request.prompt.encode().split(b"\n"):
        assert not list(parser.feed(line)), "an echo of the prompt is nothing that the agent says"
    assert parser.turn(Exit(code=0, at=5.0, duration=2.0)).text == "", "an echo of the prompt is not an answer"
    late = module.parser(request).turn(Exit(code=-9, at=5.0, duration=2.0, ended_by="the turn timeout")).failure
    assert late is not None, "a turn that ralph ended has failed"
    assert "the turn timeout" in late.reason, "a turn that ralph ended says why"
