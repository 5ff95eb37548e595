"""Output of a working agent in Claude Code's format: text, tool calls and tool results, mostly file contents.

`python -m bench.speech FOLDER` writes it there, so that the process that measures memory does not hold it.
"""

import json
import sys
from pathlib import Path

MEGABYTE = 1_000_000
PIECE, LONG_LINE = 5 * MEGABYTE, 20 * MEGABYTE
SIZES = (200, 1000, 8000, 16000)  # characters of tool results
SENTENCE = 'The quick brown fox reads "src/fox.py" again,\n\tand then jumps over the lazy dog. '
SESSION = "6254815a-e87e-44d3-b4c5-5f153c8cfbf3"
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "Not yet.", "total_cost_usd": 0.01}


def lines() -> list[bytes]:
    """Return about 4 KB of lines."""
    made = []
    for number in range(200):
        output = SENTENCE * (SIZES[number % len(SIZES)] // len(SENTENCE))
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "Read", "input": {"file_path": "/repo/src/fox.py"}}
        answer = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": output, "is_error": False}
        made.append(_line("assistant", number, {"type": "text", "text": SENTENCE * 6}))
        made.append(_line("assistant", number, call))
        made.append(_line("user", number, answer, tool_use_result={"file": {"content": output}}))
    return made


def _line(role: str, number: int, block: dict[str, object], **more: object) -> bytes:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": role,
        "model": "claude-sonnet-4-5",
        "content": [block],
        "stop_reason": None,
        "usage": dict.fromkeys(names, 1000),
    }
    session = {
        "parent_tool_use_id": None,
        "session_id": SESSION,
        "uuid": f"{number:032x}",
    }
    return _bytes({"type": role, "message": message, **session, **more})


def _bytes(line: dict[str, object]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode()


def write(folder: Path) -> None:
    """Write 5 MB of ordinary output, one line of 20 MB in `long.ndjson`, the last line of a turn in `result.ndjson`."""
    batch = b"\n".join(lines()) + b"\n"
    (folder / "many.ndjson").write_bytes(batch * (PIECE // len(batch)))
    answer = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "x" * LONG_LINE, "is_error": False}
    (folder / "long.ndjson").write_bytes(_line("user", 1, answer) + b"\n")
    (folder / "result.ndjson").write_text(json.dumps(RESULT) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
