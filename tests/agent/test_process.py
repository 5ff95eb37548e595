"""Does the program itself end as it should, whatever happens to it and around it?"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from script import Endless, Hang, Other, Say, shell

ENDS = {"chat": "completions", "responses": "responses", "messages": "messages", "google": "generateContent"}
AGENT = (sys.executable, "-P", "-m", "ralph.agent")


@pytest.fixture
def start(workspace, address, wire):
    """The program, begun on a stage."""

    def run(stage, *words, prompt=b"Do it.", **env):
        where = ("--model", "lab", "--url", address(stage), "--wire", wire)
        process = subprocess.Popen(
            [*AGENT, *where, *words],
            cwd=workspace,
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        process.stdin.write(prompt)
        process.stdin.close()
        return process

    return run


def ended(process):
    out, err = process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    return process.wait(60), out.decode(), err.decode()


@pytest.mark.parametrize("wire", ["chat"])
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_command_that_it_runs(server, start, eventually, workspace, wire, sent):
    with server.stage(shell("sleep 1; echo $$ > up; exec sleep 3411")) as stage:
        process = start(stage)
        eventually(lambda: (workspace / "up").exists() and (workspace / "up").read_text().strip())
        process.send_signal(sent)
        code, _, err = ended(process)
        assert (code, err) == (128 + sent, "")
        child = Path("/proc") / (workspace / "up").read_text().strip()
        eventually(lambda: not child.exists() or "sleep" not in (child / "cmdline").read_text())


@pytest.mark.parametrize("wire", ["chat"])
def test_a_session_survives_a_kill(server, start, eventually, workspace, wire):
    with server.stage(shell("echo $$ > up; exec sleep 3412"), Say("I go on.")) as stage:
        process = start(stage)
        first = json.loads(process.stdout.readline())
        eventually(lambda: (workspace / "up").exists() and (workspace / "up").read_text().strip())
        process.kill()
        ended(process)
        os.kill(int((workspace / "up").read_text()), signal.SIGKILL)
        code, out, _ = ended(start(stage, "--resume", first["session_id"]))
        assert (code, json.loads(out.splitlines()[-1])["result"]) == (0, "I go on.")
        assert "interrupted" in stage.asked[1].results[0]


@pytest.mark.parametrize("wire", ["chat"])
def test_it_ends_when_nobody_listens(server, start, wire):
    with server.stage(*[shell("seq 1 5000")] * 20, Say("ok")) as stage:
        process = start(stage)
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == b""
        process.stderr.close()


@pytest.mark.parametrize("wire", ["chat"])
def test_it_shows_that_it_lives_while_a_long_reply_comes(server, start, wire):
    with server.stage(Endless("word " * 10)) as stage:
        process = start(stage)
        lines = (json.loads(line) for line in process.stdout)
        assert next(line for line in lines if line["type"] == "keep_alive")
        process.kill()
        ended(process)


@pytest.mark.parametrize("wire", ["chat"])
def test_a_silent_model_leaves_it_silent(server, start, wire):
    """So that ralph can tell the one from the other."""
    with server.stage(Hang("Let me think")) as stage:
        process = start(stage)
        assert json.loads(process.stdout.readline())["subtype"] == "init"
        process.kill()
        assert b"keep_alive" not in process.stdout.read()
        ended_quietly(process)


def ended_quietly(process):
    process.stdout.close()
    process.stderr.close()
    process.wait(60)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required: --model"),
        (("--model", "ollama:x", "--context", "0"), "must be at least 1"),
        (("--model", "ollama:x", "--context", "many"), "invalid"),
        (("--model", "ollama:x", "--tools", "magic"), "invalid choice"),
        (("--model", "nobody:x"), "unknown provider"),
        (("--model", "mistral:x"), "MISTRAL_API_KEY is not set"),
    ],
)
def test_wrong_words_are_answered_in_a_line(words, said):
    process = subprocess.run([*AGENT, *words], input="Do it.", capture_output=True, text=True, check=False)
    assert (process.returncode, process.stdout) == (2, "")
    assert said in process.stderr
    assert "Traceback" not in process.stderr


def test_an_empty_prompt_is_refused():
    process = subprocess.run([*AGENT, "--model", "ollama:x"], input=" \n", capture_output=True, text=True, check=False)
    assert (process.returncode, "the prompt is empty" in process.stderr) == (2, True)


@pytest.mark.parametrize("seed", range(40))
def test_no_reply_however_mutilated_is_a_traceback_or_a_half_answer(play, wire, seed):
    """Streams with bytes changed, lines doubled, lost and swapped: an answer is whole, or there is none."""
    import dialects
    from script import Tokens

    chance = random.Random(seed)
    whole = "The answer is DONE."
    spoken = dialects.dialect(f"/{ENDS[wire]}")
    asked = spoken.asked("", {"messages": [], "model": "lab", "stream": True})
    lines = b"".join(spoken.stream(dialects.Reply(whole, (), Tokens()), asked)).split(b"\n")
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(lines))
        match chance.randrange(5):
            case 0:
                lines[at] = lines[at][: chance.randint(0, len(lines[at]))]
            case 1:
                del lines[at]
            case 2:
                lines.insert(at, lines[chance.randrange(len(lines))])
            case 3:
                lines[at] = b"data: " + chance.choice([b"7", b"null", b"[]", b'"x"', b"{}", b'{"choices": [{}]}', b"{"])
            case 4:
                changed = bytearray(lines[at] or b"x")
                changed[chance.randrange(len(changed))] = chance.randrange(32, 127)
                lines[at] = bytes(changed)
    ran = play(Other(b"\n".join(lines), "text/event-stream"), Say("asked again"))
    assert ran.code in (0, 1)
    assert "Traceback" not in ran.stderr
    if ran.code == 0:
        assert ran.answer == "asked again" or "DONE" in ran.answer or len(ran.answer) < len(whole) + 3
