"""Does a sentence state the marker in it, or does it deny, promise, ask, command or condition it?"""

import re

# A marker is talked about, not stated, when the clause that holds it denies ("not", "never"), promises ("will",
# "going to"), asks, commands ("output X") or conditions ("if", "once"); or when a condition follows it ("X only when").
_SAY = "output|emit|print|say|write|type|reply|respond|return|send"
_TALK_BEFORE = re.compile(
    r"\b(?:not|never|cannot|nor|neither|will|shall|would|should|must|could|may|might|if|when|once|until|till|unless"
    r"|can(?!\s+(?:confirm|now|report|see|verify)\b)"
    r"|whether|only|before|instead\s+of|rather\s+than|going\s+to|about\s+to|plan\s+to|intend\s+to|unable|refuse"
    r"|as\s+soon\s+as|as\s+long\s+as|too\s+(?:early|soon)|withhold(?:ing)?|hold(?:ing)?\s+(?:back|off)"
    r"|avoid(?:ing)?|refrain(?:ing)?|declin(?:e|ing)|no\s+(?:way|need)|(?:need|have|has|want|order|goal\s+is)\s+to"
    r"|premature|hardly|barely|far\s+from|yet\s+to|no\s+longer|remains?\s+to|todo|next\s+steps?"
    r"|ignore|disregard|retract|withdraw|take\s+back|e\.g|for\s+(?:example|instance)|such\s+as"
    rf"|to\s+(?:{_SAY}|declare|claim|be|see))\b"
    r"|n't\b|'(?:ll|d)\b|\b(?:isn|won|don|can|doesn|didn|wasn|aren|haven|hasn|shouldn|wouldn|couldn)t\b"
    r"|\[ \]\W*$|\b(?:no|almost|nearly|partly|partially|mostly|half|towards?)\W*$|(?<![\d.])(?!100\b)\d[\d.]*\s*%\W*$"
    r"|\b(\d+)\s*(?:/|of)\s*(?!\1\b)\d+\W*$"  # 3/5, but not 5/5
    rf"|(?:\b(?:then|and|please|finally)\s+|[:,]\s*)(?:{_SAY})(?:\s+(?:with|exactly|just))*(?!\s*:)\W*$",
    re.IGNORECASE,
)
_TALK_AFTER = re.compile(
    r"^\W*(?:[\w'-]+\W+){0,4}?(?:only|when|whenever|once|if|until|till|unless|after|as\s+soon\s+as|yet|later|soon"
    r"|provided|not|is\s+false|would|will|cannot|can't|isn't|wasn't|except|must\s+wait|pending|premature|wrong"
    r"|(?:which|that)\s+(?:I|we)'(?:ll|d))\b|^\W*[:=]\s*(?:no|false)\b",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    rf"^\W*(?:(?:please|then|and|just)\s+)+(?:{_SAY}|use|include|append|add|end)\b"
    rf"|^\W*(?:{_SAY}|use|include|append|add|end)\b(?!\s*:)",  # "Output: X" is a label
    re.IGNORECASE,
)
_NEW_SENTENCE = re.compile(r"\W*\s([A-Z]\w*)")  # also where no full stop is: after a marker there often is none
_CLOSING = re.compile(r";|\b(?:let|tell)\s+me\b", re.IGNORECASE)  # what follows is about something else
_NEW_CLAUSE = re.compile(r"[;—–]|\s-\s|,?\s*\b(?:but|so|therefore|thus|hence|however|(?<!\bI\s)now)\b,?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\be\.g)(?<!\bi\.e)[.!?…]['\")\]*`]*(?=\s|$)|\n\s*\n|\n\s*(?=[-*+#>|]|\d+[.)]\s)")


def simply_states(text: str, start: int, end: int) -> bool:
    """Whether the sentence around `text[start:end]` states it and nothing else about it."""
    before, after, question = _sentence_around(text, start, end)
    if question or _COMMAND.search(_last_clause(before)):
        return False
    return not (_TALK_BEFORE.search(_last_clause(before)) or _TALK_AFTER.search(after))


def _sentence_around(text: str, start: int, end: int) -> tuple[str, str, bool]:
    """What stands in the marker's sentence before and after it, and whether the sentence is a question."""
    window = text[max(0, start - 600) : start].replace("’", "'")
    ends = [match.end() for match in _SENTENCE_END.finditer(window)]
    before = window[ends[-1] if ends else 0 :]
    rest = text[end : end + 600].replace("’", "'")
    stop = _SENTENCE_END.search(rest)
    after = rest[: stop.start()] if stop else rest
    if begins := _NEW_SENTENCE.match(after):
        return before, begins[1], False
    question = stop is not None and rest[stop.start() : stop.end()].startswith("?")
    return before, _CLOSING.split(after)[0], question


def _last_clause(before: str) -> str:
    """The part of a sentence that still governs what comes next: "I could not lint, but all is done: X" states X."""
    breaks = list(_NEW_CLAUSE.finditer(before))
    return before[breaks[-1].end() :] if breaks else before
