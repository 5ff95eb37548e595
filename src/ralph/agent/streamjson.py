"""What does the agent print? A line of JSON for each thing that happens, as in Claude Code's stream-json; or only its
final answer, as text."""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic_ai.messages import ModelResponse

from ralph.agent.calls import Call, text_of
from ralph.agent.toolbox import cut
from ralph.agent.wires import TRIES, Refused, Unfinished

_ALIVE = 2.0  # seconds between two signs of life


class Report:
    """Tells what happens to whoever reads stdout. `is_text`: nothing but the answer is asked for."""

    def __init__(self, model: str, is_text: bool) -> None:
        self._model, self._is_text = model, is_text
        self._session = ""
        self._replies = 0
        self._alive = self._began = time.monotonic()
        self._used: Counter[str] = Counter()

    def begins(self, session: str, folder: str) -> None:
        self._session = session
        self._line("system", subtype="init", cwd=folder, model=self._model)

    def is_alive(self) -> None:
        """Bytes are coming: whoever waits for a silent agent need not end this one."""
        now = time.monotonic()
        if now - self._alive >= _ALIVE:
            self._alive = now
            self._line("keep_alive")

    def asks_again(self, number: int, pause: float, error: Refused) -> None:
        about = {"attempt": number, "max_retries": TRIES - 1, "retry_delay_ms": round(pause * 1000)}
        self._line("system", subtype="api_retry", error_status=error.status, error=error.message, **about)

    def notices(self, what: str, words: str) -> None:
        self._line("system", subtype=what, content=words)

    def replies(self, reply: ModelResponse, calls: Sequence[Call]) -> None:
        used = _usage(reply)
        self._used.update(used)
        self._replies += 1
        said = text_of(reply)
        content: list[dict[str, Any]] = [{"type": "text", "text": said}] if said else []
        for call in calls:
            given = call.given or {"description": call.asked}
            told = {name: cut(value, 2000) if isinstance(value, str) else value for name, value in given.items()}
            content.append({"type": "tool_use", "id": call.id, "name": call.tool, "input": told})
        message = {"id": f"reply_{self._replies}", "role": "assistant", "model": self._model, "content": content}
        self._line("assistant", message={**message, "usage": used})

    def returns(self, calls: Sequence[Call], results: Sequence[tuple[bool, str]]) -> None:
        content = [
            {"type": "tool_result", "tool_use_id": call.id, "is_error": not ok, "content": output}
            for call, (ok, output) in zip(calls, results, strict=True)
        ]
        self._line("user", message={"role": "user", "content": content})

    def ends(self, answer: str) -> None:
        """The turn is over, and this is the agent's final answer."""
        if self._is_text:
            print(answer, flush=True)
        self._result("success", False, answer)

    def breaks_off(self, why: Unfinished) -> None:
        """The turn is over, and the work is not: nothing that was said counts as an answer."""
        self._result(why.how, True, why.message)
        print(f"unfinished: {why.message}", file=sys.stderr)

    def refused(self, error: Refused) -> None:
        if error.resets_at is not None:
            self._line("rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": int(error.resets_at)})
        more = {"api_error_status": error.status, "terminal_reason": "api_error"}
        self._result("error_during_execution", True, f"API Error: {error.message}", **more)
        print(f"API Error: {error.message}", file=sys.stderr)

    def _result(self, subtype: str, is_error: bool, words: str, **more: Any) -> None:
        spent = round((time.monotonic() - self._began) * 1000)
        about = {"num_turns": self._replies, "duration_ms": spent, "usage": self._used, **more}
        self._line("result", subtype=subtype, is_error=is_error, result=words, **about)

    def _line(self, kind: str, **fields: Any) -> None:
        if not self._is_text:
            # In ASCII: half an emoji from a model that was cut is no valid UTF-8.
            print(json.dumps({"type": kind, "session_id": self._session, **fields}), flush=True)


def _usage(reply: ModelResponse) -> dict[str, int]:
    """The tokens of one reply. What came from the cache, or went into it, is not counted as input again."""
    used = reply.usage
    return {
        "input_tokens": max(used.input_tokens - used.cache_read_tokens - used.cache_write_tokens, 0),
        "output_tokens": used.output_tokens,
        "cache_read_input_tokens": used.cache_read_tokens,
        "cache_creation_input_tokens": used.cache_write_tokens,
    }
