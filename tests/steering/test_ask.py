"""An agent asks, a person answers, and the next prompt contains both. A setting says whether the run waits."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

Ralph = Callable[..., Any]
ASKS = f'[ $N = 1 ] && {sys.executable} -m ralph ask "Port 80 or 8080?"'


def test_on_question_wait_pauses_until_the_answer(ralph: Ralph, start: Any) -> None:
    run = start("--on-question", "wait", "--check", "true", before=ASKS)
    run.in_turn()
    run.let()
    asked = run.seen("question_asked")
    assert asked["text"] == "Port 80 or 8080?"
    assert run.until("paused")["reason"] == "waiting for an answer: Port 80 or 8080?"
    assert "asks: Port 80 or 8080?" in ralph("ps").out
    assert '"state":"asking"' in ralph("ps", "--json").out
    assert "answered: Port 80 or 8080?" in ralph("tell", "8080").out
    run.until("continued")
    run.in_turn()
    run.let("<response>DONE</response>")
    assert run.finish() == 0
    first, second = run.prompts()
    assert "ralph ask" in first
    assert "You asked: Port 80 or 8080?\nThe person who started this run answers:\n8080" in second


def test_on_question_continue_passes_the_answer_on_later(ralph: Ralph, start: Any) -> None:
    run = start(before=ASKS)
    run.in_turn()
    run.let()
    run.seen("question_asked")
    run.in_turn()
    assert "asks: Port 80 or 8080?" in ralph("ps").out
    ralph("tell", "8080")
    run.let()
    run.in_turn()
    run.let("<response>DONE</response>")
    assert run.finish() == 0
    assert ["You asked" in prompt for prompt in run.prompts()] == [False, False, True]
    assert not run.all("paused")


def test_an_agent_can_ask_by_a_file(ralph: Ralph, start: Any) -> None:
    run = start("--on-question", "wait", before='[ $N = 1 ] && echo "May I?" > .ralph/QUESTION.md')
    run.in_turn()
    run.let()
    assert run.seen("question_asked")["text"] == "May I?"
    run.until("paused")
    ralph("tell", "you may")
    run.in_turn()
    assert "You asked: May I?" in run.prompts()[1]


def test_a_paused_run_can_continue_without_an_answer(ralph: Ralph, start: Any) -> None:
    run = start("--on-question", "wait", before=ASKS)
    run.in_turn()
    run.let()
    run.until("paused")
    assert "without an answer" in ralph("resume").out
    run.in_turn()
    run.let("<response>DONE</response>")
    assert run.finish() == 0
    assert "You asked" not in run.prompts()[1]


def test_several_questions_are_answered_one_by_one(ralph: Ralph, start: Any) -> None:
    run = start("--on-question", "wait", before=ASKS + f' && {sys.executable} -m ralph ask "And the host?"')
    run.in_turn()
    run.let()
    run.until("paused")
    assert "still asked: And the host?" in ralph("tell", "8080").out
    assert "answered: And the host?" in ralph("tell", "localhost").out
    run.in_turn()
    assert run.prompts()[1].count("You asked: ") == 2


@pytest.mark.parametrize("trap", ["mkfifo", "mkdir", "ln -s /dev/zero"])
def test_anything_in_place_of_the_question_file_is_harmless(ralph: Ralph, agent: Callable[..., str], trap: str) -> None:
    fake = agent(f'{trap} .ralph/QUESTION.md; echo "<response>DONE</response>"')
    result = ralph("run", "-p", "x", "--json", "--agent", fake)
    assert result.code == 0
    assert "question_asked" not in result.kinds()


def test_only_an_agent_inside_a_run_asks(ralph: Ralph) -> None:
    result = ralph("ask", "Anybody there?")
    assert result.code == 2
    assert "not inside a run" in result.err


def test_an_empty_question_is_refused(ralph: Ralph) -> None:
    assert "no question" in ralph("ask", " ").err
