"""What happened in a loop inside a session? Lines for its journal, the same that the engine's writer writes."""

import os
import time

from ralph.hooks.loops import Loop, stamp
from ralph.hooks.notation import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ralph.hooks.transcript import HostTurn

    Told = tuple[str, Any]


LONGEST_TEXT = 1 << 16


def tell(loop: Loop, told: "list[Told]") -> None:
    """Appends to the journal what the engine's writer would write."""
    os.makedirs(os.path.dirname(loop.journal), mode=0o700, exist_ok=True)
    handle = os.open(loop.journal, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b") as file:
        journal = file.read()
        seq = journal.count(b"\n")
        head = {"timestamp": stamp(), "run": loop.facts["run"]}
        lines = [dumps({"type": kind, **head, "seq": seq + n, "data": data}) for n, (kind, data) in enumerate(told, 1)]
        torn = b"\n" if journal and not journal.endswith(b"\n") else b""
        text = "\n".join(lines) + "\n"
        file.write(torn + (_redacted(text) if may_hold_keys(text) else text).encode())


def iteration_of(loop: Loop, turn: "HostTurn") -> "Iterator[Told]":
    facts, now = loop.facts, time.time()
    number, cap = facts["iteration"] + 1, facts["max_iterations"] + 1
    yield "ralph_iteration_started", {"iteration": number, "max_iterations": cap, "goal": facts["task"]}
    text = turn.text[-LONGEST_TEXT:].encode("utf-8", "replace").decode()  # half a character is no character
    said = {"text": text, "session": facts["session"], "agent": facts["agent"]}
    if turn.fresh is not None:
        said["tool_calls"] = turn.fresh
    record = {"number": number, "turn": {**said, "ended_at": now}}
    yield "iteration_finished", {"iteration": number, "record": record, "elapsed_s": _elapsed(loop)}


def finished(loop: Loop, outcome: str, reason: str, iterations: int, code: int) -> "Told":
    return "run_finished", {
        "outcome": outcome,
        "reason": reason,
        "iterations": iterations,
        "cost_usd": None,
        "duration_s": _elapsed(loop),
        "exit_code": code,
        "verified": False,  # a check or a tasks file would have had the engine asked
    }


def _elapsed(loop: Loop) -> float:
    return max(0.0, time.time() - float(loop.facts["started"]))


# What a text must hold before it is worth the time that it takes to look closely for keys in it.
HINTS = (
    *(
        "sk-",
        "k_live_",
        "k_test_",
        "ghp_",
        "gho_",
        "ghu_",
        "ghs_",
        "ghr_",
        "github_pat_",
        "glpat-",
        "xox",
        "npm_",
        "hf_",
    ),
    *("AKIA", "ASIA", "AIza", "eyJ", "earer ", "PRIVATE KEY"),
)


def may_hold_keys(text: str) -> bool:
    return any(hint in text for hint in HINTS)


def _redacted(lines: str) -> str:
    from ralph.core.secrets import redact_text

    return redact_text(lines)
