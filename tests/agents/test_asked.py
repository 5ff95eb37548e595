"""The options of an agent, read from its help, and when ralph reads it."""

import pytest

from ralph.agents.protocol import is_unknown_option, options_in_help
from ralph.core.model import Failure

HELP = """\
Usage: tool run [OPTIONS]
  -m, --model <M>   a model (see --sandbox-mode=x)
  --[no-]color      well-known
"""


def test_the_options_of_an_agent_are_read_from_its_help() -> None:
    options = options_in_help(HELP)
    assert options is not None
    assert {"-m", "--model", "--sandbox-mode"} <= options
    assert "-known" not in options


def test_a_help_without_options_returns_none() -> None:
    assert options_in_help("no options here") is None
    assert options_in_help("") is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("error: unexpected argument '--full-auto' found", True),
        ("error: unknown option '--auto'", True),
        ("Unknown arguments: approval-mode, approvalMode", True),
        ("unknown option: it printed its help", True),
        ("invalid key", False),
    ],
)
def test_ralph_reads_the_help_of_an_agent_only_after_it_refused_an_option(reason: str, expected: bool) -> None:
    assert is_unknown_option(Failure("fatal", reason)) is expected
    assert not is_unknown_option(None)
