"""Four runs at a time, each in its own copy that is at the same path for its checks: no check sees another copy."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import installed
from tests.system.copies.lab import Lab
from tests.system.copies.setups import SetUp
from tests.system.copies.test_copies import SETUPS

from ralph.process.keeper import Keeper

NAMES = ("editable, setuptools", "npm, jest", "npm, vitest", "uv run", "go", "cargo")
COPIES, VERDICTS = 4, 3

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has mount namespaces"),
]


@pytest.mark.parametrize(
    "set_up", [set_up for set_up in SETUPS if set_up.name in NAMES], ids=lambda set_up: set_up.name
)
def test_four_copies_at_a_time_do_not_see_each_other(
    set_up: SetUp, tmp_path: Path, tools: Path, keeper: Keeper
) -> None:
    """Each run has three verdicts: at its start, after the agent broke the copy or not, and after it did the other."""
    for program, packages in set_up.needs:
        installed(program, packages)
    lab = Lab(set_up, tmp_path, tools, keeper)
    lab.build()
    file, text, other = set_up.broken
    runs = []
    for at in range(COPIES):
        agent = tmp_path / f"agent-{at}"
        agent.write_text(f"""#!{sys.executable}
from pathlib import Path
import os
mark, file = Path({str(tmp_path / f"called-{at}")!r}), Path({file!r})
text, other = {text!r}, {other!r}
breaks = mark.exists() != {bool(at % 2)}
mark.touch()
file.write_text(file.read_text().replace(text, other) if breaks else file.read_text().replace(other, text))
""")
        agent.chmod(0o755)
        words = (
            "loop",
            "T",
            "--worktree",
            "--check",
            lab.fill(set_up.check),
            "--agent",
            str(agent),
            "-m",
            "2",
            "--json",
        )
        command = (sys.executable, "-m", "ralph", *words)
        runs.append(
            subprocess.Popen(
                command,
                cwd=lab.main,
                env=lab.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
            )
        )
    verdicts = []
    for run in runs:
        out, err = run.communicate(timeout=170)
        stream = [json.loads(line) for line in out.splitlines()]
        verdicts.append([event["data"]["passed"] for event in stream if event["type"] == "check_finished"])
        assert len(verdicts[-1]) == VERDICTS, err[-2000:]
    assert verdicts == [[True, True, False] if at % 2 == 0 else [True, False, True] for at in range(COPIES)]
