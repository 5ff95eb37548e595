"""Text that means harm to anyone who shows it as it came, and an agent that puts it wherever an agent can."""

import json
import re
from pathlib import Path

EVIL = "x\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\x9d0;t\x9c\u202ey"
COMMANDS_A_TERMINAL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\U000e0000-\U000e007f]"
)
NAMES = (f"a{EVIL}b", "plain\nD forged (+0 -9)")
SCRIPT = f"""python3 - <<'PYTHON'
import os
for name in {json.dumps(NAMES)}:
    open(name, "w").write("{json.dumps(EVIL)[1:-1]}")
print("{json.dumps(EVIL)[1:-1]}")
PYTHON
exit 1"""


def forge(folder: Path) -> None:
    """The facts of a run and its journal, which its agent can write: as JSON allows it, what is harmful as it is."""
    facts = json.loads((folder / "state.json").read_text())
    for name in (
        "goal",
        "workspace",
        "agent",
        "preset",
        "branch",
        "doing",
        "reason",
        "backlog_task",
        "work",
        "outcome",
    ):
        facts[name] = f"{facts.get(name, '')}{EVIL}"
    (folder / "state.json").write_text(json.dumps(facts, ensure_ascii=False))
    journal = folder / "journal.ndjson"
    journal.write_text(re.sub(r"\\u(009[0-9a-f]|202e)", lambda found: chr(int(found[1], 16)), journal.read_text()))
