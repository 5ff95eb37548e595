"""What a set-up is: a small project, how its dependencies lead to it, and what ralph promises about its copies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["right", "cannot start", "named", "wrong"]
"""right: a check in a copy is green, and red once the copy is broken. named: it stays green, and the canary names it.
wrong: it stays green, and ralph says nothing."""


@dataclass(frozen=True, kw_only=True)
class SetUp:
    """In all texts, `{main}` is the user's tree, `{outside}` the folder that contains it, `{tools}` the folder with the
    stand-ins, and `{python}` the interpreter of the tests."""

    name: str
    files: Mapping[str, str]
    """The tracked files, and with `../` in front those outside the tree."""
    check: str
    broken: tuple[str, str, str]
    """A source file, a text in it, and what replaces the text to turn the check red."""
    environment: str = ""
    """Where a virtual environment with the packages of the tests is, relative to the tree."""
    prepare: str = ""
    """Shell commands that install the dependencies in the user's tree before the first commit."""
    server: str = ""
    """A Python program that runs in the user's tree. It prints a line when it is ready."""
    env: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""
    """The command of `--setup`."""
    folder: str = ""
    """Where the user calls ralph, relative to the tree."""
    needs: tuple[tuple[str, str], ...] = ()
    """Programs, with the Debian packages that have them."""
    in_place: Verdict = "right"
    own_path: Verdict = "right"
    stand_in: str = ""
    """What is not the real program here, because only a registry has it."""
