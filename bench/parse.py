"""How fast is a stream of Claude Code's read, and in how much memory? Prints MB/s over lines of about 1 KB.

By the clock and by processor time: on a busy machine only the second says something about the code.

python bench/parse.py [megabytes]
"""

import json
import resource
import sys
import time

from ralph.agents import module
from ralph.agents.protocol import Request
from ralph.core.model import Exit

FILLER = "The quick brown fox jumps over the lazy dog, and then it reads the file again. "


def lines() -> list[bytes]:
    """What a working agent prints most: words, tool calls and tool results."""

    def message(kind: str, number: int, **block: object) -> bytes:
        usage = {
            "input_tokens": 1000,
            "output_tokens": 1,
            "cache_read_input_tokens": 9,
            "cache_creation_input_tokens": 0,
        }
        inner = {
            "id": f"msg_{number}",
            "type": "message",
            "role": kind,
            "model": "claude-sonnet-4-5",
            "content": [block],
        }
        line = {"type": kind, "message": inner | {"stop_reason": None, "usage": usage}, "parent_tool_use_id": None}
        line |= {"session_id": "6254815a-e87e-44d3-b4c5-5f153c8cfbf3", "uuid": f"{number:032x}"}
        return json.dumps(line, separators=(",", ":")).encode()

    made = []
    for number in range(300):
        made.append(message("assistant", number, type="text", text=FILLER * 7))
        made.append(
            message(
                "assistant",
                number,
                type="tool_use",
                id=f"toolu_{number}",
                name="Edit",
                input={"file_path": "/repo/src/a.py", "old_string": FILLER * 3, "new_string": FILLER * 3},
            )
        )
        made.append(
            message(
                "user", number, type="tool_result", tool_use_id=f"toolu_{number}", content=FILLER * 7, is_error=False
            )
        )
    return made


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    batch = lines()
    size = sum(map(len, batch)) + len(batch)
    rounds = max(megabytes * 1_000_000 // size, 1)
    parser = module("claude").parser(Request("prompt", "", ("claude",)))
    feed = parser.feed
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, busy = time.perf_counter(), time.process_time()
    events = 0
    for _ in range(rounds):
        for line in batch:
            for _event in feed(line):
                events += 1
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    turn = parser.turn(Exit(0, 0.0, 0.0))
    total = rounds * size / 1e6
    speed = f"{total / seconds:.0f} MB/s ({total / busy:.0f} by processor time)"
    print(
        f"{total:.0f} MB, {size / len(batch):.0f} bytes a line: {speed}, {events} events, "
        f"{turn.tool_calls} tool calls, memory grew by {grown / 1024:.1f} MB"
    )


if __name__ == "__main__":
    main()
