"""The results of a run of the scenarios with each agent, stored as JSON and rendered as a page of the docs.

python tests/agents_real/table.py [--check] PAGE    write the page from the last run, or check that it is up to date
"""

import json
import sys
from pathlib import Path
from typing import Any

import install
from furniture import FURNISH

KEPT = install.HERE.parents[1] / ".cache" / "agents-results.json"
AMP = (
    "Its loop runs on its own server, not against a model, so that it cannot be driven offline: "
    "the tests run it up to the login, and its stream is tested on recorded and documented shapes."
)
ACP = (
    "**Any other agent that speaks the Agent Client Protocol**, Cursor, Goose, Kimi or Mistral Vibe for example: "
    "see [ACP agents](../guides/acp.md)."
)
CLAUDE = (
    "**Claude Code without a terminal**: `--permission-mode auto` (2.1.325, against a scripted model) never "
    "hung, and denied exactly what `acceptEdits` denies: `python3 -m pytest`, `curl`, and writing outside the "
    "workspace. Its safety check did not run in that session, and it denied what needs the check. So ralph "
    "uses `acceptEdits`. With `--max-cost` it also passes `--max-budget-usd`, and Claude Code ends the turn "
    "itself."
)
INTRODUCTION = """\
# Agents

<!-- Written by `make test-agents`: do not edit. -->

Every agent that ralph knows, as it behaves under `ralph run`. Each cell is a test with the real program, in the version
above it, against a scripted model on loopback; nothing else was reachable.
"""


class Results:
    """A pytest plugin that keeps the outcome of every scenario."""

    def __init__(self, config: Any) -> None:
        self.is_worker = hasattr(config, "workerinput")
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Collect a report. In a parallel run the first process gets all of them."""
        told = dict(report.user_properties)
        if "scenario" not in told or not (report.when == "call" or report.failed):
            return
        row = self.rows.setdefault(told["scenario"], {"line": told["line"], "agents": {}})
        cell = row["agents"].setdefault(told["agent"], {"passed": True, "notes": [], "seconds": 0.0})
        cell["passed"] &= not report.failed
        if report.skipped:  # a part of the scenario that the agent cannot play
            cell["notes"].append(report.longrepr[2].removeprefix("Skipped: "))
        cell["notes"] += [value for name, value in report.user_properties if name == "note"]
        cell["seconds"] = round(cell["seconds"] + report.duration, 1)

    def pytest_sessionfinish(self) -> None:
        if self.rows and not self.is_worker:
            ordered = dict(sorted(self.rows.items(), key=lambda row: row[1]["line"]))
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


def page(rows: dict[str, dict[str, Any]]) -> str:
    pinned = [name for name in install.NAMES if name in FURNISH and name != "amp"]
    agents = [*pinned, "builtin"]
    versions = [
        *(f"{name}<br>{install.PINNED['agents'][name]['version']}" for name in pinned),
        "builtin<br>ralph's own",
    ]
    lines = [f"| | {' | '.join(versions)} |", "|---|" + ":-:|" * len(agents)]
    notes: list[str] = []
    for title, row in rows.items():
        cells = [_cell(row["agents"].get(name), notes) for name in agents]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    table, legend = "\n".join(lines), "\n".join(f"{at}. {note}" for at, note in enumerate(notes, 1))
    amp = f"**amp** {install.PINNED['agents']['amp']['version']}: {AMP}"
    return f"{INTRODUCTION}\n{table}\n\n{legend}\n\n{amp}\n\n{CLAUDE}\n\n{ACP}\n"


def _cell(result: dict[str, Any] | None, notes: list[str]) -> str:
    if result is None:
        return "not run"
    for note in result["notes"]:
        if note not in notes:
            notes.append(note)
    marks = "".join(f"<sup>{notes.index(note) + 1}</sup>" for note in result["notes"])
    return ("✓" if result["passed"] else "**fails**") + marks


def main(words: list[str]) -> int:
    check = "--check" in words
    [place] = [Path(word) for word in words if word != "--check"]
    if not KEPT.exists():
        print(f"no results at {KEPT}: run `make test-agents`", file=sys.stderr)
        return 2
    made = page(json.loads(KEPT.read_text()))
    if check and (not place.exists() or place.read_text() != made):
        print(f"{place} does not show the last run: python {sys.argv[0]} {place}", file=sys.stderr)
        return 1
    if not check:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
