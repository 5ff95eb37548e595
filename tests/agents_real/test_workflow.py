"""The workflow in the guide passes actionlint, which is installed like the agents."""

import os
import subprocess
from pathlib import Path

import install

EXAMPLE = Path(__file__).parents[2] / "action" / "example.yml"


def judged(path: Path) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "PATH": install.path()}
    words = [install.actionlint().program, path.name]
    return subprocess.run(words, cwd=path.parent, env=env, capture_output=True, text=True, check=False)


def test_actionlint_accepts_the_example():
    done = judged(EXAMPLE)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stdout + done.stderr


def test_actionlint_reports_outside_text_in_a_script(tmp_path):
    spoilt = EXAMPLE.read_text().replace('echo "$WHO may', 'echo "${{ github.event.issue.title }} may')
    (tmp_path / "spoilt.yml").write_text(spoilt)
    done = judged(tmp_path / "spoilt.yml")
    assert done.returncode == 1
    assert "potentially untrusted" in done.stdout
