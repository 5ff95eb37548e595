"""What is a promise? The words that an agent owes, and what it is told until it has said them."""

from collections.abc import Iterable

from ralph.core.wording import NOT_TO_THE_LETTER, doubt, nearly, stands_in

WROTE = "You wrote"

NO_WORK = (
    "Promise detected, but no tool calls/work were performed; "
    "you must actually complete the task before emitting the promise."
)


def marker_of(promise: str) -> str:
    """What the agent has to write, to the letter."""
    return f"<promise>{promise}</promise>"


def promised(promise: str, text: str, anywhere: bool = False) -> "tuple[str, str] | None":
    """The line that holds the promise, and why it makes none: empty if it does. `anywhere`: whatever it says."""
    if not promise.strip():
        return None
    last = text.rfind(marker_of(promise))
    if last < 0:
        line = nearly(marker_of(promise), text)
        return (line, NOT_TO_THE_LETTER) if line else None
    span = last, last + len(marker_of(promise))
    return " ".join(stands_in(text, span).split())[:200], "" if anywhere else doubt(text, span)


def wording_message(marker: str, words: str, doubt: str) -> str:
    """What the agent is told about a claim that was seen and not believed."""
    return (
        f'{WROTE} "{words}", which is no claim: {doubt}. When the work is done: to claim, put it alone on the last '
        f"line, {marker} and nothing else, below an empty line."
    )


def blocked_message(marker: str, words: str, doubt: str) -> str:
    """What the agent is told that seems to say that it cannot go on."""
    return (
        f'{WROTE} "{words}", which ends nothing: {doubt}. If you cannot go on, put it alone on the last line: {marker}'
    )


def promise_contract(task: str, marker: str) -> str:
    return (
        f"{task}\n\n"
        "Strict requirements for ending this task:\n"
        f"- Only when the task is fully done, output exactly this, alone on the last line: {marker}\n"
        "- It must match exactly: no white space inside the tag, no other wording, no variants.\n"
        "- If the task is not fully done, do not output it. Do not output it to get out of the loop.\n"
        "- You must do the work with your tools first: a promise without work is rejected.\n"
    )


def promise_continuation(task: str, marker: str, objections: Iterable[str], ultrawork: bool = False) -> str:
    why = "\n\n".join(objections)
    opening, promise = f"{why}\n\n", f"promise {marker}"
    if not why:
        opening = f"You attempted to end the loop, but you did not output the completion promise {marker}. "
        promise = "promise"
    told = (
        f"{opening}Continue working on the original task below. "
        f"Only output the {promise} when the task is fully complete.\n\nOriginal task:\n{task}"
    )
    return f"ultrawork\n\n{told}" if ultrawork else told
