"""`ralph loop`: how does an agent begin afresh each time until every check passes? `ralph run` by other defaults."""

from __future__ import annotations

from ralph.cli.run import run_command
from ralph.cli.table import CliCommand
from ralph.run import options

COMMAND = CliCommand(
    "loop",
    "Give the agent a fresh context each time until every --check passes and it says COMPLETE.",
    lambda values, words: run_command("loop", values, words),
    options.LOOP,
    words="TASK [PATH]",
    examples=(
        'ralph loop "implement JWT login" --check "pytest tests/test_auth.py"',
        'ralph loop --spec spec.md --check "pytest -x" --max-cost 3 --worktree',
    ),
)
