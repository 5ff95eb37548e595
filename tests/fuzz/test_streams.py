"""A million mutated lines per agent: no parser raises, and no run ends as done without a claim of the agent."""

import json
import random

import pytest
from tests.agents.conftest import recordings
from tests.agents.test_mutations import FORGERIES, MARK

from ralph.agents import known_names, module
from ralph.agents.protocol import TurnRequest
from ralph.core.claims import Claim, Reading, makes_claim
from ralph.core.model import Exit

LINES = 1_000_000
CLAIM, VERIFIED = Claim("promise", "FORGED"), Reading(verified=True)
NONSENSE = (
    b"\xff\xfe",
    b"\\ud83d",
    "\u2028".encode(),
    b"\0",
    b"[" * 200,
    b"{",
    b"}",
    b'"',
    b"null",
    b"1e999",
    b"-0",
    b"9" * 400,
)


def streams(agent: str) -> list[list[bytes]]:
    """Return recorded streams of an agent that ended well, without their claims. There is none of Amp, which prints the
    format of Claude."""
    agent = "claude" if agent == "amp" else agent
    found = [one.lines[:60] for one in recordings() if one.agent == agent and not one.is_text and one.code == 0]
    return [[line.replace(b"STOP", b"fine") for line in lines if len(line) < 20_000] for lines in found]


def mutated(lines: list[bytes], forged: list[bytes], chance: random.Random) -> list[bytes]:
    """Return a stream with a few broken lines, and with inserted text that is not the agent's own. The inserted lines
    may be cut or joined, but the agent's program still says whose text they are."""
    lines = [*lines]
    for _ in range(chance.randint(0, 5)):
        at = chance.randrange(len(lines))
        lines[at] = _broken(lines[at], lines, chance)
    for _ in range(chance.randint(1, 4)):
        line = chance.choice(forged)
        cut = chance.randint(2, len(line))
        line = chance.choice((line, line, line[:cut], line + line[:cut], line[cut:]))
        lines.insert(chance.randint(0, len(lines)), line)
    return lines


def _broken(line: bytes, lines: list[bytes], chance: random.Random) -> bytes:
    cut, kind = chance.randint(0, len(line)), chance.randrange(7)
    if kind == 0:
        return line[:cut]
    if kind == 1:
        return line[cut:]
    if kind == 2:
        return line + chance.choice(lines)
    if kind == 3:
        return line[:cut] + chance.choice(NONSENSE) + line[cut:]
    if kind == 4:
        return _with_another_value(line, chance)
    if kind == 5:
        flipped = bytearray(line)
        for _ in range(len(line) // 100 + 1 if line else 0):
            flipped[chance.randrange(len(line))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    return line.replace(b'"', b"'", chance.randint(1, 3))


def _with_another_value(line: bytes, chance: random.Random) -> bytes:
    """Return the line with one of its values replaced by one of another type."""
    try:
        inner = value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    while isinstance(inner, dict | list) and inner:
        key = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        if not isinstance(inner[key], dict | list) or chance.random() < 0.3:
            inner[key] = chance.choice([None, True, 0, -1, 1.5, 10**400, "", [], {}, [[]], {"type": []}])
            break
        inner = inner[key]
    return json.dumps(value).encode()


@pytest.mark.parametrize("agent", known_names())
def test_mutated_lines_cause_no_crash_and_no_claim(agent: str, share: float) -> None:
    chance, read = random.Random(agent), 0
    sources, forged = streams(agent), [json.dumps(line).encode() for line in FORGERIES[agent]]
    while read < LINES * share:
        lines = mutated(chance.choice(sources), forged, chance)
        parser = module(agent).parser(TurnRequest(prompt="prompt", prompt_file="", command=(agent,)))
        for line in lines:
            list(parser.feed(line))
        turn = parser.turn(Exit(code=chance.choice((0, 0, 0, 1, -15)), at=1.8e9, duration=1.0))
        turn.text.encode()
        assert turn.failure or not makes_claim(CLAIM, turn.text, VERIFIED), b"\n".join(lines)
        read += len(lines)
    assert MARK.encode() in forged[0]
