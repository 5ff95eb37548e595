"""What did the agent do in the turn that just ended? What its host says about it, and what the transcript adds."""

import os

from ralph.core.promise import is_promised
from ralph.hosts import transcript
from ralph.hosts.loops import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Event = dict[str, Any]


class HostTurn:
    """One turn, as far as a promise needs to know it. `path` is the transcript, `size` its length now, `since` how much
    of it was there before. Tools are counted only where a claim must be backed by them: `fresh` are those since."""

    def __init__(self, loop: Loop, event: "Event") -> None:
        facts = loop.facts
        self.path = _text(event.get("transcript_path")) or _text(event.get("transcriptPath")) or facts["transcript"]
        self.size = _size(self.path)
        is_known = facts["transcript"] in ("", self.path) and facts["offset"] <= self.size
        self.since: int = facts["offset"] if is_known else 0
        self.model = _text(event.get("model"))
        self.text = self._last_text(event)
        self.is_claim = is_promised(facts["promise"], self.text, facts["anywhere"])
        self.needed: int = facts["min_tool_calls"] if facts["on_promise_no_work"] != "accept" else 0
        self.before: int = facts["tool_calls"]
        self.fresh = self._count() if self.is_claim and self.needed else None
        if self.is_claim and self.is_idle and event.get("last_assistant_message"):
            self._count_again()

    @property
    def is_unclear(self) -> bool:
        """Whether a claim needs work behind it, and only the workspace can tell whether there was any."""
        return self.is_claim and self.needed > self.before and self.fresh is None

    @property
    def tool_calls(self) -> int:
        """Since the loop began; counted up to what is needed."""
        return self.before + (self.fresh or 0)

    @property
    def is_idle(self) -> bool:
        return self.tool_calls < self.needed

    def _count(self) -> int | None:
        return transcript.tool_calls(self.path, self.since, max(self.needed - self.before, 1)) if self.path else None

    def _count_again(self) -> None:
        """The host's word comes before the transcript does: what it has not written down yet may be the work."""
        if self.size and transcript.has_heard(self.path, self.text, self.since):
            self.size, self.fresh = _size(self.path), self._count()

    def _last_text(self, event: "Event") -> str:
        """The host's own word for the last message, if it has one: it is there before the transcript is."""
        text = _text(event.get("last_assistant_message"))
        if not text and self.path:
            asked = event.get("timestamp")
            if "stopReason" in event and isinstance(asked, int):
                transcript.has_caught_up(self.path, b'"timestamp":%d' % asked)
            text = transcript.last_text(self.path, self.since)
        if not text and not event.get("stop_hook_active"):
            # All texts since the prompt, joined: of use only while they cannot hold a claim that was refused before.
            text = _text(event.get("prompt_response"))
        return text


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size if path else 0
    except (OSError, ValueError):
        return 0
