"""Plain text: removing an echo of the prompt, and keeping both ends of a long text."""

import tracemalloc

import pytest

from ralph.agents.reader import LIMIT, Clipping, PlainText, without_summary
from ralph.core.claims import Claim, makes_claim


def said(prompt: str, output: str) -> str:
    plain = PlainText(prompt)
    for line in output.encode().split(b"\n"):
        plain.feed(line)
    return plain.text


@pytest.mark.parametrize(
    ("prompt", "output", "text"),
    [
        ("fix it", "fix it\nSTOP", "STOP"),
        ("fix it", "fix itSTOP", "STOP"),
        ("fix it\n", "fix it\nSTOP", "STOP"),
        ("say STOP\nwhen done", "say STOP\nwhen done\nworking", "working"),
        ("say STOP\nwhen done", "> \nsay STOP\nwhen done\nworking", "> \nworking"),
        ("say STOP\nwhen done", "say STOP\nwhen doneworking", "working"),
        ("say STOP\nwhen done", "say STOP\nwhen\n", "say STOP\nwhen"),
        ("say STOP\nwhen done", "say STOP", "say STOP"),
        ("say STOP\nwhen done", "a\nsay STOP\nsay STOP\nwhen done\nb", "a\nsay STOP\nb"),
        ("a\r\nb", "a\r\nb\r\nc", "c"),
        ("fix it", "I will fix it\nfix it now", "I will fix it\nfix it now"),
        ("fix it", "fix it\nfix it\nx", "x"),
        ("say\nSTOP", "Prompt: say\nSTOP\nworking", "working"),
        ("say\n\nSTOP", "> say\n>\n> STOP\nworking", "working"),
        ("say\nSTOP", "You say\nthat I shall\nSTOP", "You say\nthat I shall\nSTOP"),
        ("say\nit\nSTOP", "I say\nI say\nit\nSTOP\nworking", "I say\nworking"),
        ("", "anything\n", "anything"),
        ("  \n", "anything", "anything"),
    ],
)
def test_only_a_whole_echo_is_dropped(prompt: str, output: str, text: str) -> None:
    assert said(prompt, output) == text


def test_an_echo_of_five_megabytes_is_dropped() -> None:
    prompt = "\n".join(f"line {number} says <promise>DONE</promise>" for number in range(120_000))
    assert said(prompt, f"{prompt}\nstill working") == "still working"


def test_both_ends_of_a_long_text_are_kept() -> None:
    clipping = Clipping(1000)
    for number in range(10_000):
        clipping.add(f"{number:05}\n")
    text = clipping.text
    assert text.startswith("00000\n00001\n")
    assert text.endswith("09998\n09999\n")
    assert "characters cut]" in text
    assert len(text) < 1100
    kept = sum(int(line) >= 0 for line in text.split("\n") if line.isdigit() and len(line) == 5)
    assert kept == pytest.approx(1000 / 6, abs=3)


def test_cut_characters_are_counted() -> None:
    clipping = Clipping(10)
    for _ in range(100):
        clipping.add("abcdefg")
    assert "[690 characters cut]" in clipping.text


def test_a_text_that_fits_is_kept_whole() -> None:
    clipping = Clipping(10)
    clipping.add("0123456789")
    assert clipping.text == "0123456789"
    clipping.add("x")
    clipping.clear()
    assert clipping.text == ""


def test_endless_output_takes_no_more_memory_than_a_little() -> None:
    plain = PlainText("prompt")
    tracemalloc.start()
    for _ in range(30_000):
        plain.feed(b"a line of forty characters, more or less" * 10)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * LIMIT
    assert len(plain.text) < LIMIT + 100


@pytest.mark.parametrize(
    "summary",
    [
        "tokens used: 12,345",
        "tokens used\n12,345",
        "Tokens: 2.1k sent, 45 received. Cost: $0.0065 message, $0.01 session.",
        "Total cost:            $0.5500\nTotal duration (API):  6m 19.7s\nTotal duration (wall): 6h 33m\n"
        "Total code changes:    0 lines added, 0 lines removed",
        "Total usage est:       1 Premium request\nUsage by model:\n    claude-sonnet-4.5    12.3k input, 456 output",
    ],
)
def test_a_summary_of_tokens_and_cost_is_not_part_of_the_answer(summary: str) -> None:
    answer = "All tests pass.\n\nSTOP"
    assert without_summary(f"{answer}\n\n{summary}\n") == answer
    assert makes_claim(Claim("word", "STOP"), without_summary(f"{answer}\n{summary}"))


@pytest.mark.parametrize("answer", ["Total cost: 12 euros", "12,345", "STOP\n12,345", "tokens used: 5", ""])
def test_an_answer_is_not_taken_for_a_summary(answer: str) -> None:
    assert without_summary(answer) == answer
