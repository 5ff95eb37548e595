"""Recorded streams of real agents, damaged in every way, never cause a crash or a false claim."""

import random
from pathlib import Path

import pytest

from ralph import agents
from ralph.agents.protocol import TurnRequest
from ralph.core.model import Exit, Iteration, Outcome, Run, Stop, Turn
from ralph.loop import judge
from ralph.run.policy import make_policy
from ralph.settings import Settings

STREAMS = Path(__file__).parent.parent / "agents" / "streams"
ANSWERED_TWICE = "stream-input.ndjson"  # without its second half it is a claim
RECORDED = sorted(
    path
    for path in STREAMS.glob("*/*")
    if path.suffix in (".ndjson", ".txt") and path.stat().st_size < 300_000 and path.name != ANSWERED_TWICE
)
RULES = make_policy(Settings(until=("word:STOP", "response:DONE", "suffix:DONE", "promise:DONE", "tag:COMPLETE"))).rules
WRONG = (b"null", b"7", b"[]", b"{}", b'""', b"true", b"1e999", b'"\\ud83d"')
DAMAGE = ("truncate", "overwrite", "drop", "repeat", "shuffle", "interleave", "retype", "grow", "glue")
ENDED = [
    Exit(code=code, at=9.0, duration=1.0, stderr=stderr, ended_by=by)
    for code in (0, 1, -9)
    for stderr in ("", "STOP\n<response>DONE</response>\n")
    for by in ("", "turn-timeout")
]


def turn_of(agent: str, data: bytes, ended: Exit) -> Turn:
    parser = agents.module(agent).parser(
        TurnRequest(prompt="make the files", prompt_file="/prompt.md", command=(agent,))
    )
    for line in data.split(b"\n"):
        for _ in parser.feed(line):
            pass
    return parser.turn(ended)


def is_done(turn: Turn) -> bool:
    verdict = judge(Run(id="r", goal="g", iterations=(Iteration(number=1, turn=turn),)), RULES)
    return isinstance(verdict, Stop) and verdict.outcome is Outcome.DONE


@pytest.fixture(scope="module")
def unclaimed() -> dict[Path, bytes]:
    """Recorded streams without a claim."""
    read = {path: path.read_bytes() for path in RECORDED}
    kept = {path: data for path, data in read.items() if not is_done(turn_of(path.parent.name, data, ENDED[0]))}
    assert len(kept) > len(read) / 2
    return kept


def damaged(stream: bytes, other: bytes, how: str, chance: random.Random) -> bytes:
    lines = stream.split(b"\n")
    at, line = chance.randrange(len(stream) + 1), chance.randrange(len(lines))
    match how:
        case "truncate":
            return stream[:at]
        case "overwrite":
            rubbish = chance.randbytes(chance.randint(1, 8))
            return stream[:at] + rubbish + stream[at + len(rubbish) :]
        case "drop":
            del lines[line]
        case "repeat":
            lines.insert(line, lines[line])
        case "shuffle":
            chance.shuffle(lines)
        case "interleave":
            lines = [one for pair in zip(lines, other.split(b"\n"), strict=False) for one in pair]
        case "retype":
            before, colon, after = lines[line].partition(b":")
            lines[line] = before + colon + chance.choice(WRONG) + after
        case "grow":
            lines[line:line] = [lines[line] * 50, b"\xff" * 5000]
        case "glue":
            return stream.replace(b"\n", b"", chance.randint(1, 5))
    return b"\n".join(lines)


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_stream_never_becomes_a_claim(unclaimed: dict[Path, bytes], how: str) -> None:
    names = sorted(unclaimed)
    for seed in range(250):
        chance = random.Random(f"{how} {seed}")
        path = chance.choice(names)
        stream = damaged(unclaimed[path], unclaimed[chance.choice(names)], how, chance)
        assert not is_done(turn_of(path.parent.name, stream, chance.choice(ENDED))), f"{path} {seed}"


@pytest.mark.parametrize("ended", [ended for ended in ENDED if ended.code or ended.ended_by])
def test_a_failed_turn_is_never_done(ended: Exit) -> None:
    for path in RECORDED:
        assert not is_done(turn_of(path.parent.name, path.read_bytes(), ended)), path
