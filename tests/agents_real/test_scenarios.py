"""`ralph run` with the real agents: every scenario with every agent, for the table in the docs."""

import os
import select
import signal
import time
from typing import Any

import pytest
from lab import LIMIT
from script import Call, Cut, Forever, Hang, Say, Tokens, shell, write
from troubles import limited, no_login, overloaded

GOAL = "make the file made.txt please"
DONE = "It is made.\n<response>DONE</response>"
CHECK = "grep -q fixed made.txt"


def scenario(title: str) -> pytest.MarkDecorator:
    return pytest.mark.scenario(title)


def turns(ran) -> list[dict[str, Any]]:
    return [event["record"]["turn"] for event in ran.of("iteration_finished")]


@scenario("tool use, a file written, then done")
def test_a_claim_after_real_work_is_accepted(room, agent):
    with room() as place:
        made = place.workspace / "made.txt"
        place.play(
            Call("write", str(made), "fixed\n", tokens=Tokens(1000, 50)),
            Call("shell", "setsid sleep 3400 > /dev/null 2>&1 & echo ran-it", tokens=Tokens(1100, 40)),
            Say(DONE, tokens=Tokens(1200, 30)),
        )
        ran = place.ralph("--check", CHECK, "-p", GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert made.read_text() == "fixed\n"
        [turn] = turns(ran)
        assert turn["text"] == DONE
        assert turn["tool_calls"] == 2
        assert (turn["usage"]["input_tokens"], turn["usage"]["output_tokens"]) == (3300, 120)
        assert [tool["ok"] for tool in ran.of("tool_finished")] == [True, True]
        assert place.stage.asked[0].prompt.strip().endswith(GOAL)
        assert ran.left == {}


# The value of --model, which the model server gets as well.
MODELS = {"claude": "claude-haiku-4-5", "codex": "gpt-5.4", "gemini": "gemini-2.5-flash", "opencode": "lab/lab"}


@scenario("failing check, then fixed")
def test_a_failing_check_sends_the_agent_back(room, agent):
    model = MODELS.get(agent, "lab")
    with room() as place:
        place.play(Say(DONE), write(place.workspace / "made.txt", "fixed\n"), Say(DONE))
        ran = place.ralph("--model", model, "--check", CHECK, GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert len(turns(ran)) == 2
        assert [check["passed"] for check in ran.of("check_finished")] == [False, True]
        assert ran.of("claim_rejected")
        assert f'Guardrail "{CHECK}" failed with exit code' in place.stage.asked[1].prompt
        assert {asked.model for asked in place.stage.asked} == {model.removeprefix("lab/")}


@scenario("the marker in the prompt and in a tool's output")
@pytest.mark.parametrize("mode", ["--stream-agent-output", "--no-stream-agent-output"])
def test_only_the_agents_own_answer_is_a_claim(room, mode):
    marker = "<response>DONE</response>"
    with room(shell(f"printf '{marker}\\n'", text="Let me see."), Say("There is more to do.")) as place:
        ran = place.ralph(mode, "--max-iterations", "1", f"Do it, and when it is done say\n{marker}\n")
        assert (ran.code, ran.outcome) == (1, "exhausted"), str(ran)
        assert marker in place.stage.asked[1].results[-1]


@scenario("text mode (--no-stream-agent-output)")
def test_a_claim_in_plain_text_is_accepted(room):
    with room() as place:
        place.play(write(place.workspace / "made.txt", "fixed\n"), Say(f"First this is said.\n{DONE}"))
        ran = place.ralph("--no-stream-agent-output", "--check", CHECK, GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert turns(ran)[0]["text"].strip().endswith(DONE)


@scenario("tool error")
def test_a_failed_tool_is_not_a_failed_turn(room):
    with room() as place:
        place.play(Call("read", str(place.workspace / "not-there.txt")), Say(DONE))
        ran = place.ralph(GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert [tool["ok"] for tool in ran.of("tool_finished")] == [False]
        assert ran.of("agent_finished")[0]["tool_errors"] == 1


@scenario("bad login (401)")
def test_a_refused_login_ends_the_run_at_once(room):
    with room(Forever(no_login())) as place:
        ran = place.ralph(GOAL)
        assert (ran.code, ran.outcome) == (2, "fatal"), str(ran)
        assert turns(ran) == []


@scenario("usage limit (429)")
def test_a_usage_limit_is_recognised(room, agent, note):
    until = time.time() + 3600
    with room(Forever(limited(agent, until))) as place:
        on_subscription(place)
        ran = place.ralph("--on-limit", "stop", GOAL)
        assert (ran.code, ran.outcome) == (1, "failed"), str(ran)
        assert "limit" in ran.of("run_finished")[0]["reason"]
        [turn] = (event["turn"] for event in ran.of("turn_not_counted"))
        assert turn["failure"]["kind"] == "limit"
        if agent in ("claude", "codex", "gemini", "qwen", "builtin"):
            assert abs(turn["failure"]["resets_at"] - until) <= 90, turn
            note("reset time known")


@pytest.mark.parametrize("agent", ["claude"], indirect=True)
def test_ralph_waits_until_a_usage_limit_ends(room, agent):
    with room(limited(agent, time.time() + 3)) as place:
        on_subscription(place)
        place.stage.steps += [write(place.workspace / "made.txt", "fixed\n"), Say(DONE)]
        ran = place.ralph("--check", CHECK, GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert len(turns(ran)) == 1
        assert 0 < ran.of("waiting")[0]["seconds"] < 20


def on_subscription(place) -> None:
    """Claude Code reports when a limit resets if it runs on a subscription, not on a key."""
    if place.agent == "claude":
        place.env["CLAUDE_CODE_OAUTH_TOKEN"] = "sk-ant-oat01-made-up-for-the-tests"
        del place.env["ANTHROPIC_API_KEY"]


@scenario("overloaded (529), then fine")
def test_a_request_to_an_overloaded_model_is_retried(room, agent):
    with room(Forever(overloaded(agent))) as place:

        def recover(event) -> None:
            if event["type"] == "turn_not_counted":
                place.play(write(place.workspace / "made.txt", "fixed\n"), Say(DONE))

        ran = place.ralph("--check", CHECK, GOAL, on=recover)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert [event["turn"]["failure"]["kind"] for event in ran.of("turn_not_counted")] == ["transient"]
        assert len(turns(ran)) == 1


@scenario("connection lost")
def test_an_incomplete_answer_is_not_a_claim(room, agent, note):
    # Qwen asks the model to continue after the first half, so that its text counts.
    half = "Half a sentence" if agent == "qwen" else f"Half a sentence\n{DONE}\n"
    with room(Cut(half)) as place:
        place.stage.steps += [Cut(), write(place.workspace / "made.txt", "fixed\n"), Say("More to do."), Say(DONE)]
        ran = place.ralph(GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert (place.stage.steps, place.stage.surplus) == ([], 0)
        assert len(turns(ran)) == 2
        assert turns(ran)[-1]["text"] == DONE
        note("ralph retries the turn" if ran.of("turn_not_counted") else "the agent retries")


@scenario("a silent model")
def test_a_silent_turn_is_ended(room):
    with room(Hang("Let me think")) as place:
        ran = place.ralph("--idle-timeout", "4s", "--max-iterations", "1", GOAL)
        assert (ran.code, ran.outcome) == (1, "exhausted"), str(ran)
        [turn] = turns(ran)
        assert turn["ended_by"]
        assert ran.left == {}


@scenario("max turns")
def test_an_endless_turn_ends_at_a_limit(room, agent, note):
    own = agent in ("claude", "qwen", "builtin")
    with room(Forever(shell("echo once more"))) as place:
        bound = ("--ralph", "1", "--max-iterations", "3") if own else ("--turn-timeout", "6s", "--max-iterations", "1")
        ran = place.ralph(*bound, GOAL)
        assert (ran.code, ran.outcome) == (1, "exhausted"), str(ran)
        [turn] = turns(ran)
        assert turn["failure"]["kind"] == "ordinary"
        assert ran.left == {}
        if own:
            assert len(place.stage.asked) <= 4
            note("its own limit")
        else:
            note("--turn-timeout")


@scenario("Ctrl-C during a tool")
def test_nothing_survives_an_interrupt(room):
    with room() as place:
        process = start_a_stubborn_tool(place, "--grace", "1s")
        os.kill(process.pid, signal.SIGINT)
        ran = place.finish(process)
        assert (ran.code, ran.outcome) == (130, "interrupted"), str(ran)
        assert ran.left == {}


@scenario("kill -9 during a tool")
def test_nothing_survives_the_death_of_ralph(room):
    with room() as place, start_a_stubborn_tool(place) as process:
        process.kill()
        deadline = time.monotonic() + 10
        while left := place.living():
            assert time.monotonic() < deadline, left


def start_a_stubborn_tool(place, *words):
    """Start ralph with a tool call that never ends, and that has started a hidden process."""
    fifo = place.workspace.parent / "up"
    os.mkfifo(fifo)
    place.play(shell(f"setsid sleep 3401 & echo up > {fifo}; sleep 3402"), Say(DONE))
    process = place.start_ralph(*words, GOAL)
    up, ended = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), os.pidfd_open(process.pid)
    try:
        ready, _, _ = select.select([up, ended], [], [], LIMIT)
    finally:
        os.close(up)
        os.close(ended)
    assert ready == [up], str(place.finish(process))
    return process


@scenario("300 KB line")
def test_a_very_long_line_goes_through(room):
    # All its words differ: some agents end a turn in which the model repeats itself.
    answer = " ".join(f"{number:x}" for number in range(70_000)) + "\n" + DONE
    with room(shell("seq -s ' ' 60000"), Say(answer)) as place:
        ran = place.ralph(GOAL)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        [output] = place.workspace.glob(".ralph/runs/*/iterations/001/output.md")
        assert output.read_text().strip() == answer


@scenario("unicode and special characters")
def test_every_character_survives(room):
    goal = "- make «straße» 日本語 🎉 \u2028 $(touch oops) `id` \"double\" 'single' {{x}} $& %s \\n ---\nsecond line é"
    answer = f"Naïve 日本語 👩‍👩‍👧 \u2028 \\u0000 'q' \"Q\"\n{DONE}"
    with room() as place:
        made = place.workspace / "straße 日本.txt"
        place.play(write(made, "fixed ✓ 🎉\n"), Say(answer))
        ran = place.ralph("--prompt", goal)
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert goal in place.stage.asked[0].prompt
        assert made.read_text() == "fixed ✓ 🎉\n"
        assert turns(ran)[0]["text"] == answer
        assert not (place.workspace / "oops").exists()


@scenario("a prompt of 200 KB")
def test_a_long_prompt_arrives_whole(room):
    goal = "begin " + "abcdefgh " * 25_000 + "end"
    with room(Say(DONE)) as place:
        (place.workspace / "goal.md").write_text(goal)
        ran = place.ralph("--prompt-file", "goal.md")
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        assert goal in place.stage.asked[0].prompt


@scenario("resume (--session continue)")
def test_a_session_is_continued(room, agent, note):
    with room() as place:
        place.play(Say("I have begun."), write(place.workspace / "made.txt", "fixed\n"), Say(DONE))
        ran = place.ralph("--session", "continue", "--check", CHECK, GOAL)
        if agent == "cline":
            assert ran.code == 2, str(ran)
            assert "continue" in ran.stderr
            note("refused: it cannot")
            return
        assert (ran.code, ran.outcome) == (0, "done"), str(ran)
        first, second = turns(ran)
        assert first["session"] == second["session"]
        assert ("assistant", "I have begun.") in place.stage.asked[1].messages
        used = [(turn["usage"]["input_tokens"], turn["usage"]["output_tokens"]) for turn in (first, second)]
        assert used == [(100, 20), (200, 40)]
