"""Reading the transcripts of every host. The samples were written by the real programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.hooks.loops import Loop
from ralph.hooks.transcript import MAX_LINE, Transcript, host_turn

SAMPLES = Path(__file__).parent / "transcripts"
HOSTS = ("claude", "codex", "gemini")


def read(path: Path, size: int = 0) -> Transcript:
    transcript = Transcript(str(path), size)
    transcript.read()
    return transcript


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def message(text: str, **fields: str) -> dict[str, object]:
    return {"type": "assistant", "message": {**fields, "content": [{"type": "text", "text": text}]}}


@pytest.mark.parametrize("host", HOSTS)
def test_last_message_tool_calls_and_tokens_are_read(host):
    transcript = read(SAMPLES / f"{host}.jsonl")
    usage = transcript.usage
    assert (transcript.text, transcript.calls) == ("Worked.\n<promise>DONE</promise>", 1)
    assert (usage.input_tokens, usage.output_tokens) == (300, 60)


@pytest.mark.parametrize("host", HOSTS)
def test_only_lines_after_the_given_offset_are_read(host):
    path = SAMPLES / f"{host}.jsonl"
    transcript = read(path, path.stat().st_size)
    assert (transcript.text, transcript.calls, transcript.usage.tokens) == ("", None, 0)


@pytest.mark.parametrize("host", HOSTS)
def test_there_is_no_last_message_until_the_agent_answers_the_latest_prompt(host, tmp_path):
    """The sample ends after its last prompt."""
    lines = (SAMPLES / f"{host}.jsonl").read_text().splitlines(keepends=True)
    prompts = [
        at for at, line in enumerate(lines) if "attempted to end the loop" in line or '"content":"go on"' in line
    ]
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[: prompts[-1] + 1]))
    assert read(cut).text == ""


@pytest.mark.parametrize(
    "noise", ["", "\n\n", "{", "not json\n", '{"type":"assistant"}\n', '["assistant"]\n', '{"type":["assistant"]}\n']
)
def test_malformed_lines_are_skipped(tmp_path, noise):
    path = write(tmp_path / "t.jsonl", message("hello"))
    with path.open("a") as file:
        file.write(noise)
    assert read(path).text == "hello"


def test_lines_with_the_same_message_id_are_one_message(tmp_path):
    thinking = {"type": "thinking", "thinking": "<promise>DONE</promise>"}
    rows = (
        message("earlier", id="m1"),
        {"type": "assistant", "message": {"id": "m2", "content": [thinking]}},
        message("one", id="m2"),
        message("two", id="m2"),
    )
    assert read(write(tmp_path / "t.jsonl", *rows)).text == "one\ntwo"


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_last_line_is_read_once_it_is_complete(tmp_path, end):
    path, line = write(tmp_path / "t.jsonl", message("one")), json.dumps(message("two"))
    transcript = read(path)
    with path.open("a") as file:
        file.write(line[:20])
        file.flush()
        transcript.read()
        assert transcript.text == "one"
        file.write(line[20:] + end)
    transcript.read()
    assert (transcript.text, transcript.size) == ("two", path.stat().st_size)


@pytest.mark.parametrize("length", [MAX_LINE, MAX_LINE + 1, 2 * MAX_LINE + 5])
def test_a_line_that_is_too_long_is_skipped(tmp_path, length):
    path = tmp_path / "t.jsonl"
    first, last = (json.dumps(message(text)).encode() for text in ("first", "last"))
    path.write_bytes(first + b"\n" + b"x" * length + b"\n" + last + b"\n")
    assert read(path).text == "last"


def test_waiting_for_a_transcript_has_a_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("ralph.hooks.transcript.WRITE_TIMEOUT", 0.0)
    transcript = Transcript(str(tmp_path / "none"))
    transcript.read_until(lambda: False)
    assert transcript.text == ""


def test_tool_calls_that_the_host_writes_after_calling_the_hook_count(tmp_path, monkeypatch):
    path = write(tmp_path / "t.jsonl", {"type": "user", "message": {"content": "do it"}})
    last = "It is made.\n<promise>DONE</promise>"
    blocks = ({"type": "tool_use", "name": "Bash", "input": {}}, {"type": "text", "text": last})
    late = [json.dumps({"type": "assistant", "message": {"content": [block]}}) + "\n" for block in blocks]

    def write_one(_: float) -> None:
        with path.open("a") as file:
            file.write(late.pop(0))

    monkeypatch.setattr("ralph.hooks.transcript.time.sleep", write_one)
    facts = {"session": "s", "agent": "", "run": "r", "task": "t", "started": 0.0, "max_iterations": 3}
    loop = Loop(root=str(tmp_path), **facts, transcript=str(path), offset=0)
    turn, transcript = host_turn(loop, {"last_assistant_message": last}, "<promise>DONE</promise>")
    assert (turn.tool_calls, transcript.size) == (1, path.stat().st_size)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_transcript_of_fifty_megabytes_is_read_in_little_memory(tmp_path):
    path = write(tmp_path / "t.jsonl", *(message("word " * 2000, id=f"m{number}") for number in range(5000)))
    peak = "next(int(row.split()[1]) for row in open('/proc/self/status') if row.startswith('VmHWM'))"
    code = f"from ralph.hooks.transcript import Transcript; before = {peak}\n"
    code += f"transcript = Transcript({str(path)!r}); transcript.read(); print(transcript.calls, {peak} - before)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, grown = map(int, run.stdout.split())
    assert count == 0
    assert grown < 6_000  # kilobytes
