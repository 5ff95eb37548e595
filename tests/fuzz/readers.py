"""What in ralph reads text from outside: answers, output, streams, prompts and lists?"""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ralph.agents import known, module
from ralph.agents.failures import resets_at, stated_in
from ralph.agents.protocol import TurnRequest
from ralph.core import prompts, text
from ralph.core.claims import Claim, Reading, echoes, read
from ralph.core.model import Exit
from ralph.core.secrets import Redactor, redact_text, settled
from ralph.core.tasks_file import tasks_in_markdown
from ralph.errors import UserError
from ralph.hooks.transcript import newest_first
from ralph.planning.plan import load as load_plan
from ralph.records import journal
from ralph.settings.layers import load
from ralph.settings.proposed import proposed_checks
from ralph.supervise import bus

Reader = Callable[[str], object]

CLAIMS = (
    Claim("promise", "DONE"),
    Claim("response", "DONE"),
    Claim("word", "STOP"),
    Claim("tag", "COMPLETE"),
    Claim("suffix", "DONE"),
)
READINGS = (Reading(), Reading(verified=True), Reading(strict=True), Reading(anywhere=True))
PROMPT = "Fix the parser.\nWhen it works, say:\n\nSTOP\n\nor\n<promise>DONE</promise>\n"

# What makes an expression or a parser try again, in one alphabet.
PIECES = (
    *("<promise>DONE</promise>", "<response>DONE</response>", "<response>", "</response>", "STOP", "COMPLETE"),
    *("DONE", "-", "--", "---", "=", "*", "**", "`", "```", "~~", "#", ">", "|", '"', "'", "“", "„", "«", "「"),
    *("(", "[ ]", "[x]", ".", ":", "!", "?", "…", "。", "：", ",", ";", " ", "\t", "\n", "\n\n", "\r"),
    *("\u2028", "\u00a0", "✅", "❌", "🎉", "1. ", "1) ", "- ", "a", "é", "не", "还没", "まだ", "아직", "بعد"),
    *("not yet ", "when ", "I will ", "all tests pass ", "5/5 ", "\x1b[31m", "\x1b]0;", "\x1b", "\x9b", "\x07"),
    *("\ud83d", "\0", "{", "}", '{"type":"', '\\"', "\\n", "<!--", "-->", "sk-", "sk-ant-", "ghp_", "xoxb-"),
    *("eyJ", "eyJaaaaaaaa.", "Bearer ", "-----BEGIN ", "PRIVATE KEY-----", "-----END ", "429 ", "error: "),
    *("rate limit ", "exceeded ", "retry-after: ", "try again in ", "10s", "1h", "resets ", "7pm ", "(UTC)"),
    *("aaaaaaaa", "AAAAAAAA", "00000000", "________", "a.b.c.", "https://a:b@c/", "model: ", "quota"),
    *("overloaded ", "Fix the parser.\n", "When it works, say:\n"),
)


def _parsed(agent: str, said: str) -> None:
    parser = module(agent).parser(TurnRequest(prompt=PROMPT, prompt_file="", command=(agent,)))
    parser.feed_all(said.encode("utf-8", "replace").split(b"\n"))
    parser.turn(Exit(code=1, at=1.8e9, duration=1.0, stderr=said)).text.encode()


def _in_a_file(read: Callable[[Path], object]) -> Reader:
    """What reads a file of others: the text is one."""
    place = Path(tempfile.mkdtemp(prefix="ralph-fuzz-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / ".ralph").mkdir()

    def reader(said: str) -> object:
        file = place / ".ralph" / "settings.json"
        file.write_bytes(said.encode("utf-8", "replace"))
        with suppress(UserError):
            read(file)
        return None

    return reader


READERS: dict[str, Reader] = {
    **{
        f"claim {claim} {number}": lambda said, claim=claim, reading=reading: read(claim, said, reading)
        for claim in CLAIMS
        for number, reading in enumerate(READINGS)
    },
    "echoes in an answer": lambda said: echoes(said, PROMPT),
    "echoes of a prompt": lambda said: echoes(PROMPT, said),
    "failures": stated_in,
    "resets": lambda said: resets_at(said, 1.8e9),
    "secrets": redact_text,
    "known secrets": Redactor([b"correct horse battery"]).text,
    "settled": lambda said: settled(said.encode("utf-8", "replace")),
    "clean": text.clean,
    "one line": text.one_line,
    "short": lambda said: text.short(said, 200),
    "commit message": prompts.commit_message,
    "boxes": lambda said: list(tasks_in_markdown(said)),
    "settings": _in_a_file(lambda file: load(file.parent.parent, {}, env={})),
    "a journal": _in_a_file(lambda file: list(journal.read(file))),
    "a bus": _in_a_file(lambda file: list(bus.read(file))),
    "a transcript": _in_a_file(lambda file: list(newest_first(str(file)))),
    "a plan": _in_a_file(load_plan),
    "checks of a project": _in_a_file(
        lambda file: file.rename(file.parent.parent / "Makefile") and proposed_checks(file.parent.parent)
    ),
    **{f"stream of {agent}": lambda said, agent=agent: _parsed(agent, said) for agent in (*known(), "command")},
}
