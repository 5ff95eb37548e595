"""An option for a file accepts or refuses any path at once, in one line."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from ralph.cli import table
from ralph.cli.table import CliCommand

WORDS = {"run": ["g"], "loop": ["g"], "job": ["g"], "work": ["list"], "hook start": ["--session", "s", "g"]}
NEEDS_FILE = ("--prompt-file", "--spec")  # a goal in addition would be another error


def taking_files() -> Iterator[tuple[str, str]]:
    """Yield every command with an option for a file, and that option."""

    for name in table.SUMMARIES:
        found = table.find(name)
        inner = {f"{name} {one.name}": one for one in found.commands.values()} if isinstance(found, click.Group) else {}
        for path, one in (inner or {name: found}).items():
            assert isinstance(one, CliCommand)
            for option in one.options:
                if option.metavar == "FILE":
                    yield path, max(option.names, key=len)


@pytest.mark.parametrize("kind", ["/proc/self/mem", "fifo"])
def test_a_device_or_pipe_in_place_of_a_file_is_not_a_bug(
    ralph: Callable[..., Any], agent: Callable[..., str], workspace: Path, tmp_path: Path, kind: str
) -> None:
    (workspace / "list").write_text("- [x] one\n")
    fifo, works = tmp_path / "fifo", agent("echo '<response>DONE</response>'")
    os.mkfifo(fifo)
    asked = list(taking_files())
    assert len(asked) > 20
    for name, option in asked:
        takes_agent = any("--agent" in one.opts for one in table.find(name.split()[0]).params)
        words = WORDS.get(name, []) if option not in NEEDS_FILE else []
        words = [*(("--agent", works, "-m", "1") if takes_agent and "work" not in name else ()), *words]
        said = ralph(*name.split(), f"{option}={fifo if kind == 'fifo' else kind}", *words, timeout=30)
        assert said.code in (0, 1, 2), (name, option, said.err)
        assert "internal error" not in said.err, (name, option)
