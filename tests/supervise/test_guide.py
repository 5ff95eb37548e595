"""The example in the guide, a root agent with two children, runs as it is written."""

import re
import subprocess
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "supervise.md"


def test_the_example_of_the_guide_runs(task: Any) -> None:
    blocks = re.findall(r"```sh\n# ([^\n]+)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    scripts = {name: text for name, text in blocks if name in ("root.sh", "child.sh", "try it")}
    for name, text in scripts.items():
        (task.workspace / name).write_text(text)
    run = subprocess.run(
        ["sh", "-e", "try it"], cwd=task.workspace, env=task.environment, capture_output=True, text=True, timeout=50
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[:2] == ["the footer", "the header"]
    assert re.search(r"Write the page\.\n +the file DONE is there", run.stdout), run.stdout
    assert {"two children are running", "written: the header", "written: the footer"} <= set(run.stdout.splitlines())
