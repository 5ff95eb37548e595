"""The program ends as it should, whatever happens to it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from script import Hang, Say, shell

AGENT = (sys.executable, "-P", "-m", "ralph.builtin_agent")


@pytest.fixture
def start(workspace, address, wire):
    """Start the program with a scripted model, and end it with the test."""
    begun = []

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
        begun.append(process)
        process.stdin.write(prompt)
        process.stdin.close()
        return process

    yield run
    for process in begun:
        process.kill()
        process.wait()


def ended(process):
    out, err = process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    return process.wait(60), out.decode(), err.decode()


@pytest.mark.parametrize("wire", ["chat"])
def test_a_signal_ends_the_agent_and_its_running_command(server, start, eventually, workspace, wire):
    with server.stage(shell("echo $$ > up; exec sleep 3411")) as stage:
        process = start(stage)
        eventually(lambda: (workspace / "up").exists() and (workspace / "up").read_text().strip())
        process.send_signal(signal.SIGTERM)
        code, _, err = ended(process)
        assert (code, err) == (128 + signal.SIGTERM, "")
        child = Path("/proc") / (workspace / "up").read_text().strip()
        eventually(lambda: not child.exists() or "sleep" not in (child / "cmdline").read_text())


@pytest.mark.parametrize("wire", ["chat"])
def test_a_signal_while_a_command_starts_leaves_nothing_running(server, start, eventually, workspace, wire):
    """Ends the parent in the moment in which a child is started, before the parent has recorded it."""
    with server.stage(shell("echo $$ > up; kill $PPID; exec sleep 3413")) as stage:
        code, _, err = ended(start(stage))
        assert (code, err) == (128 + signal.SIGTERM, "")
        child = Path("/proc") / (workspace / "up").read_text().strip()
        eventually(lambda: not child.exists() or "sleep" not in (child / "cmdline").read_text())


@pytest.mark.parametrize("wire", ["chat"])
def test_the_agent_prints_nothing_while_its_model_is_silent_and_ctrl_c_ends_it(server, start, eventually, wire):
    """The agent prints nothing, so that ralph can tell a silent model from a working one."""
    with server.stage(Hang("Let me think")) as stage:
        process = start(stage)
        eventually(lambda: stage.asked)
        process.send_signal(signal.SIGINT)
        code, out, err = ended(process)
        assert (code, err) == (128 + signal.SIGINT, "")
        assert out.count("keep_alive") <= 1  # for its first line


@pytest.mark.parametrize("wire", ["chat"])
def test_a_signal_ends_the_agent_even_if_a_library_swallows_exceptions(server, start, tmp_path, wire):
    swallows = """
        import asyncio, os, signal

        def run(turn):
            turn.close()
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except BaseException:
                pass
            signal.pause()

        asyncio.run = run
    """
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(swallows))
    with server.stage() as stage:
        code, _, err = ended(start(stage, PYTHONPATH=str(tmp_path)))
    assert (code, err) == (128 + signal.SIGINT, "")


@pytest.mark.slow
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
def test_the_agent_ends_if_its_output_is_closed(server, start, wire):
    with server.stage(*[shell("seq 1 5000")] * 20, Say("ok")) as stage:
        process = start(stage)
        process.stdout.close()
        assert process.wait(60) == 1
        assert process.stderr.read() == b""
        process.stderr.close()


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
def test_invalid_options_are_reported_in_one_line(begin, capsys, monkeypatch, words, said):
    monkeypatch.delenv("MISTRAL_API_KEY", raising=False)
    assert begin(words) == 2
    out, err = capsys.readouterr()
    assert (out, said in err) == ("", True), err


def test_an_empty_prompt_is_refused():
    process = subprocess.run([*AGENT, "--model", "ollama:x"], input=" \n", capture_output=True, text=True, check=False)
    assert (process.returncode, "the prompt is empty" in process.stderr) == (2, True)
