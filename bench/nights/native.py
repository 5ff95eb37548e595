"""The loops that agents have built in: real CLIs from npm at pinned versions, with the scripted model of model.py.

The fairness column of the page says what each one reads and how it says that it is done.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.lab import ROOT
from bench.nights.contenders import CAP, SAID_DONE, SAID_NOT, Contender, Place
from bench.nights.task import CHECK, GOAL

sys.path.append(str(ROOT / "tests" / "agents_real"))

import install
from furniture import FURNISH

DRIVER = Path(__file__).parent / "codex_goal.py"
PLUGIN_SOURCE = "https://github.com/anthropics/claude-plugins-official"
PLUGIN_COMMIT = "340e33aef211d95769d252324854497af871dafe"
PLUGIN = ROOT / ".cache" / "nights" / f"ralph-loop-plugin-{PLUGIN_COMMIT[:12]}"
REQUESTS = 2 * CAP  # each turn is two requests: a command, then words
TOKENS = 120 * REQUESTS  # the cost that the scripted model reports for these requests


def find_contenders() -> tuple[list[Contender], dict[str, str]]:
    """Return the native loops that can be installed, and for each other one the reason."""
    found, missing = [], dict[str, str]()
    for name, make in (("claude", claude), ("codex", codex), ("copilot", copilot)):
        got = install.bring([name])[name]
        if isinstance(got, install.InstallError):
            missing[name] = f"cannot be installed here: {got}"
        else:
            found += make(got)
    if any(one.name.startswith("Claude") for one in found):
        if why := _bring_plugin():
            missing["ralph-loop plugin"] = why
        else:
            found.append(plugin(install.agent("claude")))
    return [replace(one, fairness=f"version {one.version}: {one.fairness}") for one in found], missing


def claude(got: "install.Installed") -> list[Contender]:
    def goal(judge: str, fairness: str) -> Contender:
        return Contender(
            name=f"Claude /goal, {judge} reader",
            argv=lambda place: _then_status(_claude(got, f"/goal {GOAL}")),
            claim={"text": "The goal is met."},
            says=lambda output, code: SAID_DONE if '"met":true' in output else SAID_NOT,
            judge=judge,
            fairness=fairness,
            **_common(got),
        )

    def hook(place: Place) -> None:
        command = {"type": "command", "command": f"{CHECK} >&2 || exit 2"}
        settings = place.home / ".claude" / "settings.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps({"hooks": {"Stop": [{"hooks": [command]}]}}))

    perfect = "the upper bound: its judge believes only a test run that it saw pass, and no tests that it saw edited"
    trusting = "the lower bound: its judge believes the agent's last words; the real one is somewhere between the two"
    return [
        Contender(
            name="Claude, Stop hook with the tests",
            argv=lambda place: _claude(got, GOAL),
            claim={"text": "Everything is done."},
            says=lambda output, code: SAID_DONE if code == 0 else SAID_NOT,
            prepare=hook,
            gate=True,
            fairness="one line in the user's settings; says that it gave up only in stream-json, with exit code 0",
            **_common(got),
        ),
        goal("perfect", perfect),
        goal("trusting", trusting),
    ]


def plugin(got: "install.Installed") -> Contender:
    words = f"/ralph-loop:ralph-loop {GOAL.replace('`', '')} --max-iterations {CAP} --completion-promise DONE"
    return Contender(
        name="Claude, ralph-loop plugin",
        argv=lambda place: _claude(got, words, "--plugin-dir", str(PLUGIN)),
        claim={"text": "<promise>DONE</promise>", "wreck": [".claude"]},
        says=lambda output, code: SAID_DONE if "<promise>DONE</promise>" in output else SAID_NOT,
        fairness="the official plugin; it takes no check, and reads the session file while Claude Code still writes it",
        **_common(got),
    )


def _common(got: "install.Installed", furniture: str = "claude", **more: str) -> dict[str, Any]:
    def env(place: Place) -> dict[str, str]:
        return {**FURNISH[furniture](place.home, place.url), "PATH": f"{place.bin}:{install.path()}", **more, **SANDBOX}

    return {"env": env, "version": got.version, "plain": False, "reads": False, "native": True}


SANDBOX = {"IS_SANDBOX": "1", "ANTHROPIC_SMALL_FAST_MODEL": "judge"}


def _claude(got: "install.Installed", prompt: str, *more: str) -> Sequence[str]:
    flags = ("--dangerously-skip-permissions", "--output-format", "json", "--max-turns", str(REQUESTS))
    return (str(got.program), "-p", prompt, *flags, *more)


def _then_status(argv: Sequence[str]) -> Sequence[str]:
    """Return the goal's state from the session's file: it is printed nowhere else."""
    return (
        "sh",
        "-c",
        '"$@"; code=$?; grep -h goal_status ~/.claude/projects/*/*.jsonl | tail -n 1; exit $code',
        "sh",
        *argv,
    )


def codex(got: "install.Installed") -> list[Contender]:
    return [
        Contender(
            name="Codex goals",
            argv=lambda place: (sys.executable, str(DRIVER), str(got.program), GOAL, str(TOKENS)),
            claim={"text": "The goal is met.", "tool": "update_goal", "arguments": {"status": "complete"}},
            says=lambda output, code: SAID_DONE if "goal: complete" in output else SAID_NOT,
            fairness="has no command for scripts: the lines that drive its app-server, and its exit code, are ours",
            **_common(got, "codex"),
        )
    ]


def copilot(got: "install.Installed") -> list[Contender]:
    words = (
        "--autopilot",
        "--allow-all",
        "--no-auto-update",
        "--output-format",
        "json",
        "--max-autopilot-continues",
        str(CAP - 1),
    )

    def prepare(place: Place) -> None:
        """Run Copilot once: it unpacks 235 MB into an empty home."""
        unpacked = ROOT / ".cache" / "nights" / f"copilot-unpacked-{got.version}"
        unpacked.mkdir(parents=True, exist_ok=True)
        (place.home / ".cache").mkdir()
        (place.home / ".cache" / "copilot").symlink_to(unpacked)

    return [
        Contender(
            name="Copilot autopilot",
            argv=lambda place: (str(got.program), "-p", GOAL, *words),
            claim={"text": "The task is complete.", "tool": "task_complete", "arguments": {"summary": "all done"}},
            says=lambda output, code: SAID_DONE if '"reason":"task_complete"' in output else SAID_NOT,
            prepare=prepare,
            fairness="believes its agent's task_complete; takes no check",
            **_common(got, "copilot"),
        )
    ]


def _bring_plugin() -> str:
    """Clone the marketplace at the pinned commit. Return the error, if there is one."""
    if (PLUGIN / ".claude-plugin").exists():
        return ""
    part = PLUGIN.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    source = os.environ.get("NIGHTS_PLUGINS", PLUGIN_SOURCE)
    for argv in (
        ("git", "clone", "--quiet", "--no-checkout", source, str(part)),
        ("git", "-C", str(part), "checkout", "--quiet", PLUGIN_COMMIT, "--", "plugins/ralph-loop"),
    ):
        env = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        done = subprocess.run(argv, capture_output=True, env=env, stdin=subprocess.DEVNULL)
        if done.returncode:
            return f"cannot be cloned from {source}; NIGHTS_PLUGINS names a clone of it"
    (part / "plugins" / "ralph-loop").rename(PLUGIN)
    shutil.rmtree(part)
    return ""
