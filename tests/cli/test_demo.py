"""The first thing that a newcomer runs ends done, and reads well on any terminal."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_the_demo_shows_a_refused_claim_and_ends_done(ralph: Callable[..., Any], tmp_path: Path) -> None:
    result = ralph("demo", TMPDIR=str(tmp_path))
    assert result.code == 0, result.err
    assert "not done: the agent claimed COMPLETE, refused by checks" in result.err
    (folder,) = tmp_path.glob("ralph-demo-*")
    own = result.err.partition("ralph · ")[0] + result.err.partition("\nIn iteration 2 ")[2]
    assert [line for line in own.splitlines() if len(line) > 80 and str(folder) not in line] == []
    assert "so far" not in result.err, "nothing is spent, so nothing is estimated"


def test_it_names_the_command_as_it_can_be_typed(ralph: Callable[..., Any], tmp_path: Path) -> None:
    bare = f"{tmp_path}:/usr/bin:/bin"
    said = ralph("demo", TMPDIR=str(tmp_path), PATH=bare).err
    (line,) = [line for line in said.splitlines() if line.endswith("# iteration by iteration")]
    assert os.access(line.split()[0], os.X_OK)
