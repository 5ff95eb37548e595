"""`ralph bus`: post and read."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.cli import task
from ralph.cli.main import run_cli
from ralph.errors import UserError
from ralph.supervise.bus import MessageBus


@pytest.fixture(autouse=True)
def outside_any_task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MESSAGE_BUS", "JRUN_MESSAGE_BUS", "JRUN_PROJECT_ID", "JRUN_TASK_ID", "JRUN_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "bus.md")


def given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def post(path: str | None, kind: str, body: str | None) -> int:
    return task.post.handler(given(bus=path, type=kind, body=body), [])


def read(path: str | None, types: tuple[str, ...] = (), json: bool = False) -> int:
    return task.read.handler(given(bus=path, type=types, json=json), [])


def objects(out: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in out.splitlines()]


def test_post_prints_the_id_and_read_prints_one_object_per_line(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert post(path, "FACT", "it\nworks") == 0
    msg_id = capsys.readouterr().out.strip()
    assert read(path, json=True) == 0
    (message,) = objects(capsys.readouterr().out)
    assert message.pop("ts").endswith("Z")
    assert message == {
        "msg_id": msg_id,
        "type": "FACT",
        "body": "it\nworks",
        "project_id": "",
        "task_id": "",
        "run_id": "",
    }


def test_in_a_task_the_bus_and_the_ids_come_from_the_environment(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"MESSAGE_BUS": path, "PROJECT_ID": "p", "TASK_ID": "t", "ID": "r"}.items():
        monkeypatch.setenv(f"JRUN_{name}", value)
    post(None, "INFO", "x")
    (message,) = MessageBus(path).read()
    assert (message.project, message.task, message.run) == ("p", "t", "r")
    monkeypatch.setenv("MESSAGE_BUS", path + ".other")
    post(None, "INFO", "x")
    assert os.path.exists(path + ".other")


def test_the_text_on_stdin_is_the_body(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"---\r\n\x00\xff\n")))
    post(path, "INFO", None)
    (message,) = MessageBus(path).read()
    assert message.body == "---\r\n\x00\ufffd\n"


def test_control_characters_are_not_printed(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    msg_id = MessageBus(path).post("INFO", "\x1b[2Jred", run="r1")
    read(path)
    head, body = capsys.readouterr().out.splitlines()[:2]
    assert head.endswith(f"INFO {msg_id} run=r1")
    assert body == "red"


def test_read_chooses_by_type(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, body in (("QUESTION", "which?"), ("INFO", "noise"), ("ANSWER", "this")):
        MessageBus(path).post(kind, body)
    read(path, json=True, types=("info", "ANSWER"))
    assert [message["body"] for message in objects(capsys.readouterr().out)] == ["noise", "this"]


def test_a_missing_bus_or_text_is_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no message bus given"):
        read(None)
    with pytest.raises(UserError, match="no message bus"):
        read(path)
    with pytest.raises(UserError, match="needs a type"):
        post(path, "", "x")
    controller, terminal = os.openpty()
    with open(controller), open(terminal) as screen:
        monkeypatch.setattr(sys, "stdin", screen)
        with pytest.raises(UserError, match="the message is empty"):
            post(path, "INFO", None)


def test_a_reader_that_stops_listening_causes_no_complaint(path: str) -> None:
    for _ in range(2000):
        MessageBus(path).post("INFO", "x" * 100)
    script = """
import sys
from ralph.cli.task import read
from ralph.cli.main import exit_code
sys.exit(exit_code(lambda: read.handler({'bus': sys.argv[1]}, [])))
"""
    process = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 141


def run(*words: str) -> int:
    return run_cli(["bus", *words])


def test_the_commands_take_their_options(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    run("post", "--bus", path, "--type", "QUESTION", "--body", "--which?")
    assert run("post", f"--bus={path}", "--body", "") == 0
    capsys.readouterr()
    assert run("read", "--bus", path, "--json") == 0
    assert [(m["type"], m["body"]) for m in objects(capsys.readouterr().out)] == [
        ("QUESTION", "--which?"),
        ("INFO", ""),
    ]
    run("read", "--bus", path, "--type", "fact", "--type", "info", "--json")
    assert [message["type"] for message in objects(capsys.readouterr().out)] == ["INFO"]
