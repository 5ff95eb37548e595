"""What comparing tests with what they were has shown, and what it means for a claim."""

from typing import Literal

from msgspec import Struct

from ralph.core.text import listed, one_line

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

    @property
    def is_doubtful(self) -> bool:
        """Whether a person should look, although the claim may count."""
        return self.finding.kind in ("S", "weakened")

    def describe(self) -> str:
        """Return everything that was found out about the tests as they were, in one line."""
        return "; ".join((self.finding.text, *self._remarks()))

    def as_addition(self) -> str:
        """Return what the reason of a run that is done adds: nothing if the tests as they were pass."""
        lead = ", but" if self.is_doubtful else ";"
        texts = [] if self.finding.kind == "green" else [f"{lead} {self.finding.text}"]
        return "".join((*texts, *(f"; {remark}" for remark in self._remarks())))

    def _remarks(self) -> list[str]:
        mixed = [f"{listed(self.mixed, 3)} changed how the tests run"] if self.mixed else []
        named = [f"{listed(self.named, 3)} changed, which a check names"] if self.named else []
        return [*mixed, *named]
