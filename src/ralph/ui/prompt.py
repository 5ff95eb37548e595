"""Where does a person type? A line that remembers what was typed before, and completes commands."""

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.suggester import SuggestFromList
from textual.widgets import Input

from ralph.ui.commands import FORMS

MOST_LINES = 200


class Prompt(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("up", "recall(-1)"), Binding("down", "recall(1)")]

    def __init__(self, id: str, placeholder: str) -> None:  # noqa: A002 - textual's name for it
        names = [f"/{name}" for name in FORMS]
        super().__init__(
            id=id, placeholder=placeholder, compact=True, select_on_focus=False, suggester=SuggestFromList(names)
        )
        self.cursor_blink = False  # it would be drawn twice a second, for nothing
        self._lines: list[str] = []
        self._at = 0

    def on_paste(self, event: events.Paste) -> None:
        """All that was pasted, as one line. Textual would take the first of several, and say nothing."""
        event.prevent_default()
        event.stop()
        text = event.text.strip("\n")
        self.insert_text_at_cursor(" ".join(text.split()) if "\n" in text else text)

    def accept(self) -> None:
        """What was typed has been done: the line is free for the next."""
        if self.value and self.value not in self._lines[-1:]:
            self._lines.append(self.value)
            del self._lines[:-MOST_LINES]
        self._at = len(self._lines)
        self.value = ""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """In an empty line `home` and `end` lead nowhere: they are left to what the agent says."""
        return bool(self.value) if action in ("home", "end") else super().check_action(action, parameters)

    def action_recall(self, steps: int) -> None:
        """Brings back an earlier line."""
        if not self._lines:
            return
        self._at = min(max(self._at + steps, 0), len(self._lines))
        self.value = self._lines[self._at] if self._at < len(self._lines) else ""
        self.cursor_position = len(self.value)
