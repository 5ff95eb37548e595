"""Transcripts of every host are read, however long they are. The samples were written by the real programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ralph.hooks.loops import Loop
from ralph.hooks.transcript import host_turn, last_text, newest_first, tool_calls, usage_since, wait_for_mark

SAMPLES = Path(__file__).parent / "transcripts"
LAST = dict.fromkeys(("claude", "codex", "gemini", "qwen"), "Worked.\n<promise>DONE</promise>")
LAST["copilot"] = "The script is over."


@pytest.mark.parametrize(("host", "text"), LAST.items())
def test_the_last_words_of_the_agent_are_found(host, text):
    assert last_text(str(SAMPLES / f"{host}.jsonl")) == text


@pytest.mark.parametrize("host", LAST)
def test_every_tool_call_is_counted_once(host):
    assert tool_calls(str(SAMPLES / f"{host}.jsonl")) == 1


@pytest.mark.parametrize("host", LAST)
def test_tokens_are_counted_once(host):
    calls, usage = usage_since(str(SAMPLES / f"{host}.jsonl"), 0)
    assert calls == 1
    answers = 4 if host == "copilot" else 3
    assert (usage.input_tokens, usage.output_tokens) == (100 * answers, 20 * answers)


@pytest.mark.parametrize("host", LAST)
def test_what_was_there_before_does_not_count(host):
    path = SAMPLES / f"{host}.jsonl"
    size = path.stat().st_size
    assert (last_text(str(path), size), tool_calls(str(path), size)) == ("", None)


@pytest.mark.parametrize("host", sorted({*LAST} - {"qwen"}))
def test_before_the_agent_has_answered_there_is_no_answer(host, tmp_path):
    """Cut right after the last prompt of each sample: what was said earlier is not an answer to it. Qwen does not write
    down what a hook says; but it hands over the agent's words itself."""
    lines = (SAMPLES / f"{host}.jsonl").read_text().splitlines(keepends=True)
    prompts = [
        at for at, line in enumerate(lines) if "attempted to end the loop" in line or '"content":"go on"' in line
    ]
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines[: prompts[-1] + 1]))
    assert last_text(str(cut)) == ""


@pytest.mark.parametrize(
    "noise", ["", "\n\n", "{", "not json\n", '{"type":"assistant"}\n', '["assistant"]\n', '{"type":["assistant"]}\n']
)
def test_malformed_lines_are_skipped(tmp_path, noise):
    path = tmp_path / "t.jsonl"
    row = {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}}
    path.write_text(json.dumps(row) + "\n" + noise)
    assert last_text(str(path)) == "hello"


def test_a_message_in_several_lines_is_one(tmp_path):
    path = tmp_path / "t.jsonl"
    rows = [
        {"type": "assistant", "message": {"id": "m1", "content": [{"type": "text", "text": "earlier"}]}},
        {
            "type": "assistant",
            "message": {"id": "m2", "content": [{"type": "thinking", "thinking": "<promise>DONE</promise>"}]},
        },
        {"type": "assistant", "message": {"id": "m2", "content": [{"type": "text", "text": "one"}]}},
        {"type": "assistant", "message": {"id": "m2", "content": [{"type": "text", "text": "two"}]}},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert last_text(str(path)) == "one\ntwo"


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"a", b"a\n", b"a\nb", b"a\nb\n", b"\n\na\n\nb\n\n", b"x" * 70_000 + b"\ny\n"]
)
def test_lines_come_newest_first_and_none_is_lost(tmp_path, content):
    path = tmp_path / "t"
    path.write_bytes(content)
    lines = list(newest_first(str(path)))
    assert lines[::-1] == content.split(b"\n") or (content == b"" and lines == [])


def test_a_line_that_is_too_long_is_skipped(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"first\n" + b"x" * (5 << 20) + b"\nlast\n")
    lines = list(newest_first(str(path)))
    assert lines[:2] == [b"", b"last"]
    assert lines[-1] == b"first"
    assert max(map(len, lines)) < 3 << 20


def test_the_wait_for_a_transcript_is_limited(tmp_path):
    path = tmp_path / "t"
    path.write_text('{"timestamp":1}\n')
    assert wait_for_mark(str(path), b'"timestamp":1')
    assert not wait_for_mark(str(path), b'"timestamp":2', timeout=0.0)
    assert not wait_for_mark(str(tmp_path / "none"), b"x", timeout=0.0)


def test_work_that_the_host_writes_down_late_counts(tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"type": "user", "message": {"content": "do it"}}) + "\n")
    last = "It is made.\n<promise>DONE</promise>"
    blocks = ({"type": "tool_use", "name": "Bash", "input": {}}, {"type": "text", "text": last})
    late = [json.dumps({"type": "assistant", "message": {"content": [block]}}) + "\n" for block in blocks]

    def write_one(_: float) -> None:
        with path.open("a") as file:
            file.write(late.pop(0))

    monkeypatch.setattr("ralph.hooks.transcript.time.sleep", write_one)
    facts = {"session": "s", "agent": "", "run": "r", "task": "t", "started": 0.0, "max_iterations": 3}
    loop = Loop(root=str(tmp_path), **facts, transcript=str(path), offset=0)
    taken = host_turn(loop, {"last_assistant_message": last}, "<promise>DONE</promise>", is_priced=False)
    assert (taken.turn.tool_calls, taken.size) == (1, path.stat().st_size)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_fifty_megabytes_are_read_in_little_memory(tmp_path):
    """Nothing but text in all of it, and a count that has to look everywhere."""
    path = tmp_path / "t.jsonl"
    row = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": "word " * 2000}]}}
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for _ in range(5000))
    peak = "next(int(row.split()[1]) for row in open('/proc/self/status') if row.startswith('VmHWM'))"
    code = f"from ralph.hooks import transcript; before = {peak}\n"
    code += f"print(transcript.tool_calls({str(path)!r}), {peak} - before)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, grown = map(int, run.stdout.split())
    assert count == 0
    assert grown < 6_000  # kilobytes
