"""What decides, and what says what came of it, is tested but for a few lines: new code there comes with its tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = {"core": 95, "history": 95}
# What is about speed, or tries every character, says no more about which lines are tested, and would take the most of
# the time.
SLOW = "not huge and not thousand and not phrases and not border and not hidden and not takes and not time and not cut"


@pytest.mark.timeout(300)
def test_core_and_history_are_covered_by_their_own_tests(tmp_path: Path) -> None:
    data, told = tmp_path / "coverage", tmp_path / "coverage.json"
    rooms = ",".join(f"ralph.{room}" for room in FLOORS)
    tests = ["tests/core", "tests/history", "tests/run/test_tasks.py", "tests/test_loop.py"]
    tests += ["--ignore=tests/history/test_reports.py", "-k", SLOW, "--hypothesis-profile=few"]
    coverage = [sys.executable, "-m", "coverage"]
    run = [*coverage, "run", f"--data-file={data}", f"--source={rooms}", "-m", "pytest", "-p", "no:xdist", *tests]
    played = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert played.returncode == 0, played.stdout[-2000:]
    subprocess.run([*coverage, "json", "-q", f"--data-file={data}", f"-o{told}"], cwd=ROOT, check=True)
    files = json.loads(told.read_text())["files"]
    for room, floor in FLOORS.items():
        sums = [file["summary"] for path, file in files.items() if f"/{room}/" in path]
        covered, lines = sum(one["covered_lines"] for one in sums), sum(one["num_statements"] for one in sums)
        assert 100 * covered / lines >= floor, f"{room}: {100 * covered / lines:.1f} % of its lines are tested"
