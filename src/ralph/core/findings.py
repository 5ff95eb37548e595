"""What comparing tests with what they were has shown, and what it means for a claim."""

from typing import Literal

from msgspec import Struct

from ralph.core.text import one_line

TestsRule = Literal["as-they-were", "may-change"]
"""Whether the tests as they were decide as well, or what they show is only reported."""
FindingKind = Literal["F", "Z", "N", "S", "weakened", "adapted", "load error", "not comparable", "green"]
"""The letters are those of the guide."""


class ChangeFinding(Struct, frozen=True, omit_defaults=True):
    """Something that the cells show. `text` is for people, without a full stop; if it is about one `check`, that is its
    subject."""

    kind: FindingKind
    text: str
    tests: tuple[str, ...] = ()
    check: str = ""

    @property
    def sentence(self) -> str:
        return f"{one_line(self.check, 80)} {self.text}" if self.check else self.text


class ComparedTests(Struct, frozen=True, omit_defaults=True):
    """What the tests as they were say about a claim."""

    finding: ChangeFinding
    refused: bool = False
    """The claim doesn't count."""
    mixed: tuple[str, ...] = ()
    """Changed files such as pyproject.toml, with which as they were the old tests only fail."""
    named: tuple[str, ...] = ()
    """Changed files that a check names although they are no tests."""
