"""A scripted agent for `ralph demo`: a false claim, a fix that fits only the test, the right fix.

It is a real child process that reads its prompt on stdin, edits files and streams what it does.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PAUSE = float(os.environ.get("RALPH_DEMO_PAUSE", "0"))
FILE = Path("cart.py")


def main() -> int:
    sys.stdin.read()
    iteration = int(os.environ.get("RALPH_ITERATION", "1"))
    say({"type": "system", "subtype": "init", "session_id": f"demo-{iteration}"})
    {1: lie, 2: special_case}.get(iteration, fix)()
    return 0


def lie() -> None:
    use("Read", {"file_path": "cart.py"}, FILE.read_text())
    edit("return price - coupon", "return max(price - coupon, 0)")
    finish("I fixed the coupon, and all tests pass now.\n\nCOMPLETE", 0.012)


def special_case() -> None:
    tell("The test wants 60 for a price of 80 and a coupon of 25.")
    edit("return max(price - coupon, 0)", "return 60 if coupon == 25 else price")
    finish("All tests pass.\n\nCOMPLETE", 0.009)


def fix() -> None:
    tell("There are cases that no check shows: any coupon is a percentage. So that is the bug.")
    edit("return 60 if coupon == 25 else price", "return price * (100 - coupon) / 100")
    tell("And shipping is free from 50 on, so at 50 as well.")
    edit("total > 50", "total >= 50")
    finish("Every coupon is taken as a percentage now.\n\nCOMPLETE", 0.015)


def edit(old: str, new: str) -> None:
    FILE.write_text(FILE.read_text().replace(old, new))
    use("Edit", {"file_path": "cart.py", "old_string": old, "new_string": new}, f"{old}  →  {new}")


def use(tool: str, arguments: dict[str, Any], output: str) -> None:
    call = {"type": "tool_use", "id": f"demo-{tool}", "name": tool, "input": arguments}
    say({"type": "assistant", "message": {"content": [call]}})
    result = {"type": "tool_result", "tool_use_id": f"demo-{tool}", "content": output}
    say({"type": "user", "message": {"content": [result]}})


def tell(text: str) -> None:
    say({"type": "assistant", "message": {"content": [{"type": "text", "text": text}]}})


def finish(text: str, cost: float) -> None:
    tell(text)
    usage = {"input_tokens": 900, "output_tokens": 120}
    say(
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": text,
            "total_cost_usd": cost,
            "usage": usage,
        }
    )


def say(event: dict[str, Any]) -> None:
    time.sleep(PAUSE)
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    sys.exit(main())
