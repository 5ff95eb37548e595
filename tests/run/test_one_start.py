"""A goal becomes the same prompt wherever it was typed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ralph.actions.launch import NextRun


def test_a_goal_typed_into_the_tui_or_the_web_ui_has_the_prompt_of_the_command(
    ralph: Callable[..., Any], agent: Callable[..., str], workspace: Path, prompts: Callable[..., list[str]]
) -> None:
    (workspace / ".ralph").mkdir()
    done = agent(
        'case "$PROMPT" in *"<response>DONE</response>"*) echo "<response>DONE</response>";; *) echo hm;; esac'
    )
    settings = {"agent": {"command": done}, "checks": ["true"], "protect": ["tests/**"], "maximumIterations": 2}
    (workspace / ".ralph" / "settings.json").write_text(json.dumps(settings))
    goal = "Repair chunked\nfor bytes"
    typed = ralph(*NextRun(workspace=str(workspace), has_settings=True).words(goal))
    assert typed.code == 0, typed.err
    assert ralph("run", goal).code == 0
    first, second = prompts()
    assert first == second
    assert "alone on the last line" in first


def test_header_show_and_report_say_that_a_run_had_yolo(
    ralph: Callable[..., Any], agent: Callable[..., str], workspace: Path
) -> None:
    result = ralph("run", "g", "-m", "1", "--yolo", "--agent", agent("echo hm"))
    page = ralph("report", "-o", "-").out
    assert ["--yolo" in text for text in (result.err.splitlines()[0], ralph("show").out.splitlines()[0], page)] == (
        [True] * 3
    )
