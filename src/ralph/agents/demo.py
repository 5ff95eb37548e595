"""A scripted agent for `ralph demo`. Its turns: a false claim, a fix that passes only the test, the right fix. With the
argument `tune` it tries three ideas for a faster program, one of which is good.

It is a real child process that reads its prompt from stdin, edits files, and prints a stream of what it does.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PAUSE = float(os.environ.get("RALPH_DEMO_PAUSE", "0"))
FILE, UNIQUE = Path("cart.py"), Path("unique.py")


def main() -> int:
    sys.stdin.read()
    iteration = int(os.environ.get("RALPH_ITERATION", "1"))
    say("system", subtype="init", session_id=f"demo-{iteration}")
    turns = (sort_first, lose_the_order, use_a_dict) if "tune" in sys.argv else (lie, special_case, fix)
    turns[min(iteration, len(turns)) - 1]()
    return 0


def sort_first() -> None:
    tell("A sorted list is faster to search, I think.")
    edit("if word not in seen:", "if word not in sorted(seen):", UNIQUE)
    finish("IDEA: sort the list before searching it", 0.011)


def lose_the_order() -> None:
    tell("A set has no duplicates.")
    edit("    return seen\n", "    return list(set(words))\n", UNIQUE)
    finish("IDEA: return a set of the words", 0.009)


def use_a_dict() -> None:
    tell("A set lost the order, and the test noticed. A dict keeps it, and is searched at once.")
    UNIQUE.write_text("def unique(words):\n    return list(dict.fromkeys(words))\n")
    use("Write", "written", file_path="unique.py", content=UNIQUE.read_text())
    finish("IDEA: let a dict find the duplicates", 0.012)


def lie() -> None:
    use("Read", FILE.read_text(), file_path="cart.py")
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


def edit(old: str, new: str, file: Path = FILE) -> None:
    file.write_text(file.read_text().replace(old, new))
    use("Edit", f"{old}  →  {new}", file_path=file.name, old_string=old, new_string=new)


def use(tool: str, output: str, **arguments: str) -> None:
    call = f"demo-{tool}"
    say("assistant", message={"content": [{"type": "tool_use", "id": call, "name": tool, "input": arguments}]})
    say("user", message={"content": [{"type": "tool_result", "tool_use_id": call, "content": output}]})


def tell(text: str) -> None:
    say("assistant", message={"content": [{"type": "text", "text": text}]})


def finish(text: str, cost: float) -> None:
    tell(text)
    usage = {"input_tokens": 900, "output_tokens": 120}
    say("result", subtype="success", is_error=False, result=text, total_cost_usd=cost, usage=usage)


def say(kind: str, **fields: Any) -> None:
    time.sleep(PAUSE)
    print(json.dumps({"type": kind, **fields}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
