"""The commands of the guide to backlogs, typed into a shell in their order."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.backlog.works import WAITING, Works, go

GUIDE = (Path(__file__).parent.parent.parent / "docs" / "guides" / "work.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]
(LIST,) = re.findall(r"```markdown\n(.*?)```", GUIDE, re.DOTALL)
AGENT = f"""
if printf '%s' "$PROMPT" | grep -q '^T8 '; then
  while [ ! -e "$HOME/T8" ]; do sleep 0.1; done
  if mkdir "$HOME/tried"; then rm T8.txt; echo COMPLETE; exit; fi
  while [ ! -e "$HOME/stopped" ]; do sleep 0.02; done
fi
{WAITING}
"""


class Shell:
    """Runs commands of the guide; `left` are those that were not run yet."""

    def __init__(self, works: Works) -> None:
        self.works, self.left = works, list(COMMANDS)

    def types(self, line: str) -> str:
        done = self.start(line)
        out, said = done.communicate(timeout=60)
        assert done.returncode == 0, f"{line}: {said}"
        return out + said

    def start(self, line: str) -> "subprocess.Popen[str]":
        self.left.remove(line)
        place, pipe = self.works, subprocess.PIPE
        words = ["sh", "-c", f"exec {line}"]
        made = subprocess.Popen(words, cwd=place.folder, env=place.env, stdout=pipe, stderr=pipe, text=True)
        place.started.append(made)
        return made


@pytest.fixture
def shell(works: Works, agent: Callable[..., str]) -> Shell:
    programs = Path(works.env["HOME"]) / "bin"
    for name, text in (("pytest", "exit 0"), ("ralph", f'exec {shlex.quote(sys.executable)} -m ralph "$@"')):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    works.script(AGENT)
    (programs / "claude").symlink_to(works.agent if "/" in works.agent else programs / works.agent)
    works.todo(LIST + "- [ ] T8 The catalogue\n- [ ] T9 Not after all\n")
    return Shell(works)


@pytest.mark.timeout(180)
def test_every_command_of_the_guide_works_in_its_order(shell: Shell, eventually: Callable[..., None]) -> None:
    works, home = shell.works, Path(shell.works.env["HOME"])
    night = shell.start('ralph work TASKS.md -j 4 --check "pytest -q"')
    for key in ("T1", "T2", "T8", "T9"):
        works.wait_for("task_started", key=key)
    eventually(lambda: len((home / "working").read_text().split()) == 3 if (home / "working").exists() else False)
    assert "working" in shell.types("ralph work status")
    shell.types('ralph tell T8 "The catalogue is in data/old.csv"')
    (home / "T8").touch()
    works.wait_for("task_parked", key="T8")
    shell.types("ralph work retry T8")
    works.wait_for("task_queued", key="T8", reason="asked for by a person")
    shell.types("ralph work withdraw T9")
    works.wait_for("task_withdrawn", key="T9")
    shell.types("ralph pause")
    works.wait_for("work_paused", is_paused=True)
    go(works)
    shell.left.append("ralph resume")  # the guide has it once, for a pause and for a stop
    shell.types("ralph resume")
    works.wait_for("work_paused", is_paused=False)
    shell.types("ralph stop")
    (home / "stopped").touch()
    night.communicate(timeout=60)
    assert night.returncode in (0, 130), "it may have ended before the stop"
    said = shell.types("ralph resume")
    assert f"4 of 4 merged into {works.target}: ralph accept {works.target.split('/')[1]}" in said
    shell.types("ralph report -o morning.html")
    assert "T8" in (works.folder / "morning.html").read_text()
    assert shell.left == [], "every command was typed"
    assert works.show("TASKS.md").count("[x]") == 4
