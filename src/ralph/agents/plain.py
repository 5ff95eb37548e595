"""What does an agent say that prints plain text? All of its stdout, less an echo of the prompt, in bounded memory."""

from collections.abc import Sequence

from ralph.core.events import AgentEvent, AgentText

LIMIT = 1 << 20


class Clipping:
    """Text of any length, of which the two ends are kept."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._half = limit // 2
        self._head: str | None = None
        self._parts: list[str] = []
        self._size = self._cut = 0

    def add(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._size += len(text)
            if self._size > 4 * self._half or len(self._parts) > 4096:
                self._shrink()

    def clear(self) -> None:
        self._head = None
        self._parts.clear()
        self._size = self._cut = 0

    @property
    def text(self) -> str:
        self._shrink()
        rest = "".join(self._parts)
        return rest if self._head is None else f"{self._head}\n[{self._cut} characters cut]\n{rest}"

    def _shrink(self) -> None:
        text = "".join(self._parts)
        if self._head is None and len(text) > 2 * self._half:
            self._head, text = text[: self._half], text[self._half :]
        if self._head is not None and len(text) > self._half:
            self._cut += len(text) - self._half
            text = text[-self._half :]
        self._parts = [text] if text else []
        self._size = len(text)


class PlainText:
    """Reads plain text line by line. A block of lines that repeats the whole prompt is an echo and is dropped. A label
    may stand before it (`Prompt: …`), or a mark before each line (`> …`)."""

    def __init__(self, prompt: str) -> None:
        self._whole_prompt = prompt
        self._held: list[str] = []  # lines of output that are the first lines of the prompt, and may become an echo
        self._label = ""
        self._lines = 0
        self._prompt: list[str] = []
        self._kept = Clipping()

    def feed(self, line: bytes) -> list[AgentEvent]:
        kept = self._without_echo(line.decode(errors="replace").removesuffix("\r"))
        self._lines += 1
        for text in kept:
            self._kept.add(f"{text}\n")
        return [AgentText(text) for text in kept]

    def feed_all(self, lines: Sequence[bytes]) -> list[AgentEvent]:
        """The same for lines that came at once, five times as fast: none of them can begin an echo if the beginning of
        the prompt stands nowhere in them."""
        text = b"\n".join(lines).decode(errors="replace")
        start = self._prompt[0].rstrip() if self._prompt else ""
        if not self._lines or self._held or (self._prompt and (not start or start in text)):
            return [event for line in lines for event in self.feed(line)]
        rows = text.split("\n")
        if "\r" in text:
            rows = [row.removesuffix("\r") for row in rows]
            text = "\n".join(rows)
        self._lines += len(rows)
        self._kept.add(f"{text}\n")
        return [AgentText(row) for row in rows]

    @property
    def text(self) -> str:
        return (self._kept.text + "".join(f"{line}\n" for line in self._held)).rstrip("\n")

    def _without_echo(self, line: str) -> list[str]:
        if not self._lines:  # a prompt may be long, and of most agents no line ever comes here
            prompt = self._whole_prompt.replace("\r\n", "\n").rstrip("\n")
            self._prompt = prompt.split("\n") if prompt.strip() else []
        if not self._prompt:
            return [line]
        expected, last = self._prompt[len(self._held)], len(self._held) == len(self._prompt) - 1
        if not self._held:
            labelled = not last and expected.strip() and line.endswith(expected)
            self._label = line.removesuffix(expected) if labelled else ""
        if line == expected or line.rstrip() == (self._label + expected).rstrip():
            self._held.append(line)
            if last:
                self._held.clear()
            return []
        if last and expected and line.startswith(expected) and len(self._held) == self._lines:
            # A prompt that ends without a newline: what follows on the line is the agent's own.
            self._held.clear()
            return [line[len(expected) :]]
        if not self._held:
            return [line]
        released, self._held = self._held, []
        return [*released, *self._without_echo(line)]
