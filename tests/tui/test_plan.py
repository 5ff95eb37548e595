from typing import Any

import pytest

from ralph.actions.launch import NextRun
from ralph.options import command_options
from ralph.options.command_options import words_of

START = ["run", "--quiet", "-C", "/w"]


@pytest.mark.parametrize(
    ("said", "words", "summary"),
    [
        ({}, ["--ralph=0"], "single shot"),
        ({"cap": 0}, ["--ralph=0"], "single shot"),
        ({"cap": 5}, ["--ralph=5"], "loop until STOP, at most 5"),
        ({"cap": -1}, ["--ralph=-1"], "loop until STOP, open end"),
        ({"has_settings": True}, [], "`ralph run`"),
        ({"has_settings": True, "cap": 0}, ["--ralph=0"], "single shot"),
        (
            {"checks": ("a", "b")},
            ["--preset=checks", "--check=a", "--check=b"],
            "loop until 2 checks pass",
        ),
        (
            {"checks": ("a",), "cap": 3},
            ["--check=a", "--ralph=3"],
            "loop until STOP, at most 3, 1 check",
        ),
        ({"agent": "codex"}, ["--agent=codex", "--ralph=0"], "single shot"),
        ({"given": {"max_cost": 3.0}}, ["--max-cost=3.0", "--ralph=0"], "single shot"),
        (
            {"given": {"preset": "promise", "yolo": True}},
            ["--preset=promise", "--yolo"],
            "`ralph run`",
        ),
    ],
)
def test_the_options_of_the_next_run_become_a_command_line(
    said: dict[str, Any], words: list[str], summary: str
) -> None:
    plan = NextRun(workspace="/w", **said)
    assert plan.words("go") == [*START, *words, "--", "go"]
    assert str(plan) == summary


def test_the_options_of_a_promise_loop_come_before_earlier_ones() -> None:
    plan = NextRun(workspace="/w", cap=5, agent="codex", checks=("a",), given={"max_cost": 3.0})
    words = plan.promise("Fix it", {"maximum_iterations": 7, "ultrawork": True, "check": ["b"]})
    assert words == [
        *START,
        "--preset=promise",
        "--prompt=Fix it",
        "--agent=codex",
        "--check=b",
        "--maximum-iterations=7",
        "--max-cost=3.0",
        "--ultrawork",
    ]


@pytest.mark.parametrize("goal", ["--help", "-p", "= a = b", "two\nlines", "ünïcode 🎉", "--print"])
def test_a_goal_that_looks_like_an_option_is_still_the_goal(goal: str) -> None:
    parsed = command_options.parse(command_options.RUN, NextRun(workspace="/w").words(goal)[1:])
    assert parsed == ({"quiet": True, "directory": "/w", "ralph": 0}, [goal])


def test_a_flag_that_is_off_is_left_out_of_the_command_line() -> None:
    assert words_of({"yolo": False, "worktree": True}) == ["--worktree"]
