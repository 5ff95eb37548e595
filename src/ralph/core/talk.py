"""Do the words around a marker deny, promise, ask, command or condition it, or do they state it?"""

import re
from functools import cache

from ralph.core.vocabulary import LANGUAGES

_FUTURE_ENDINGS = ("erai", "irai", "drai", "ttrai", "rò", "acağım", "eceğim")
_SPANISH_FUTURE = ("aré", "eré", "iré", "dré")  # in French they end what is done: "réparé", "généré"
_FRENCH = frozenset(["ai", "au", "aux", "avec", "dans", "des", "du", "est", "et", "il", "sont", "tous", "tout", "été"])

_BREAK = re.compile(
    r"[,;:—–，、；：،]|\s-\s|\b(?:but|so|therefore|thus|hence|however|aber|also|daher|pero|donc|mais|но|поэтому|mas)\b"
    r"|但|所以|因此|ので|므로|لذلك|لكن"
)
_I_CONCLUDE = re.compile(r"\b(i|ich|je) (?:therefore|thus|hence|so|also|daher|donc) ")  # the same clause goes on
_CLOSING = re.compile(r";|\b(?:let|tell) me\b")  # what follows is about something else
_SENTENCE = re.compile(r"[.!?:;…。！？：；—–\n]+")
_PAUSE = re.compile(r"[,.!?:;…—–\n]+")
# A vowel that is written as a sign on its consonant belongs to the word: `\w` takes it for an end.
_WORD = re.compile(r"[\w%/\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0963\u0966-\u0dff\u0e30-\u0e4e]+")


def announces(sentence: str, strictly: bool = True) -> bool:
    """Whether a sentence that leads up to a marker says that it comes later, has to come, or is an example. `strictly`:
    it must also say that the work is done, or that this is the claim."""
    sentence = sentence.rstrip(" :：")
    said, clause = _normal(sentence), _normal(_clauses(sentence)[-1])
    words = said.split()
    is_conclusion = not strictly and len(clause.split()) > 2  # what was denied before it is why it is said
    if words and _has("nearly", f" {words[-1]} "):
        return True
    if _is_step(words) or _is_put_off(sentence, clause if is_conclusion else said):
        return True
    if _has("obeys", said):
        return _has("duty about plan no", _without("obeys", said)) and not _has("here performs", said)
    if (len(words) > 1 and _is_commanded(said, 9)) or _only_leads_up(words, said):
        return True
    if strictly and _has("marker about", clause) and not _has("here performs", said):
        return True
    if _has("done", said):
        return False
    if _has("duty about plan no" if strictly else "duty about plan", said):
        return True
    is_label = len(words) <= 4 and _has("label", said)
    return not (is_label or _has("here performs", said)) and (strictly or _has("marker", said))


def is_about_saying(question: str) -> bool:
    """Whether it is the marker that would be said: "Shall I write more tests?" is an offer, and spoils no claim."""
    return _has("say", _normal(question)) and _has("marker", _normal(question))


def _only_leads_up(words: list[str], said: str) -> bool:
    """Whether it is a thing to do, or ends with a verb of saying and does not say it now: whatever else is in it, it
    tells nothing of the work."""
    if len(words) == 1:
        return _has("plan", said) and (said.isascii() or not _has("done", said))
    return bool(words) and _has("say", f" {words[-1]} ") and not _has("here performs now label", said)


def _is_put_off(sentence: str, said: str) -> bool:
    """Whether it is not yet time, or there is a condition."""
    return _has("put_off", said) or _is_future(said) or (_has("if", said) and _is_governed(sentence))


def dangles(line: str) -> bool:
    """Whether a line without a full stop needs the marker below it to be a sentence, or foretells it."""
    said = _normal(line)
    last = said.split()[-1:]
    return bool(last) and (_has("say nearly open", f" {last[0]} ") or (_has("if marker", said) and _is_future(said)))


def goes_on(text: str) -> bool:
    """Whether what follows a marker that stands alone is the rest of its sentence, and takes it away."""
    first = next((char for char in text if char.isalpha()), "")
    return first.islower() and _has("behind", f" {' '.join(_normal(text).split()[:6])} ")


def plans(line: str) -> bool:
    """Whether the head of a list or a part says that what is below it is to be done."""
    return _has("plan put_off duty if will about", _normal(line))


def retracts(text: str) -> bool:
    """Whether what follows a claim takes it back: a sentence that begins so, a word that cuts in, or words that say
    outright that it is not done. A summary has the same words in it: "actually in the cache", "gibt None zurück"."""
    if _has("undone", _normal(text)) or any(_opens("back", _normal(part)) for part in _SENTENCE.split(text)):
        return True
    return any(_normal(part) in _phrases("halt") for part in _PAUSE.split(text))


def discusses(before: str, after: str, bare: bool) -> bool:
    """Whether the sentence that holds a marker denies, promises, asks, commands or conditions it. `bare`: it is a word
    that may also be an ordinary part of the sentence."""
    if after.rstrip().endswith(("?", "？", "؟")):
        return True
    said, follows = _normal(_clauses(before)[-1]), _normal(_CLOSING.split(after.lower())[0])
    behind, last = follows.split(), said.split()[-1:]
    if bare and after.lstrip(" \t*_`")[:1].isalpha() and behind[0].isascii() and not _has("on", f" {behind[0]} "):
        return True
    if (
        _is_put_off(before, said)
        or _is_part_of_whole(said)
        or _is_commanded(said, 4)
        or _has("duty about back halt undone", said)
    ):
        return True
    if (last and _has("nearly", f" {last[0]} ")) or _has("behind", f" {' '.join(behind[:6])} "):
        return True
    if _is_unsaid(said.split()) or _is_last_step(said, _normal(before)):
        return True
    return _has("marker", said) and not _has("here performs now", said)


def _is_governed(sentence: str) -> bool:
    """Whether a condition holds for the end of its sentence: "when it works, I say", not "when I ran it, it worked"."""
    clauses = _clauses(sentence)
    last = _normal(clauses[-1])
    return _has("if", last) or _has("say", last) or len(last.split()) <= 2


def _is_commanded(clause: str, most: int) -> bool:
    words = clause.split()
    if "ich" in words[:2] or "ik" in words[:2]:
        return False
    return 0 < len(words) <= most and _has("order", f" {words[0]} ")


def _is_future(said: str) -> bool:
    words = said.split()
    endings = _FUTURE_ENDINGS if _FRENCH.intersection(words) else _FUTURE_ENDINGS + _SPANISH_FUTURE
    will = _has("will", said) or any(word.endswith(endings) for word in words)
    return will and not _has("now", said)


def _is_step(words: list[str]) -> bool:
    """Whether a label only counts: "Step 3", "Phase 2"."""
    return len(words) <= 3 and any(word.isdigit() or word[:1].isdigit() for word in words)


def _is_unsaid(words: list[str]) -> bool:
    """Whether saying it is what is denied: "por isso não digo", "I have not written"."""
    if len(words) < 2 or not _has("say performs", f" {words[-1]} "):
        return False
    said = f" {' '.join(words)} "
    return _has("no", f" {words[-2]} ") or (_has("no", said) and not _has("here performs now", said))


def _is_last_step(clause: str, sentence: str) -> bool:
    """Whether a clause only puts the marker behind things to do: "lint, test, then"."""
    return 1 <= len(clause.split()) <= 2 and _has("plan", clause) and not _has("done", sentence)


def _is_part_of_whole(said: str) -> bool:
    """Whether a share stands before the marker: 90 %, 3/5, 3 of 7."""
    for word in said.split()[-3:]:
        number, slash, whole = word.partition("/")
        if word.endswith("%") and word != "100%" and word[:-1].isdigit():
            return True
        if slash and number.isdigit() and whole.isdigit() and number != whole:
            return True
    return False


def _clauses(sentence: str) -> list[str]:
    return _BREAK.split(_I_CONCLUDE.sub(r"\1 ", sentence.lower())) or [""]


def _normal(text: str) -> str:
    text = text.lower().replace("\u0307", "").replace("’", "'")  # an İ is two characters in small letters
    text = text.replace("n't", " not").replace("'ll", " will").replace("'d ", " would ")
    return f" {' '.join(_WORD.findall(text))} "


def _has(rows: str, said: str) -> bool:
    return any(phrase in said for row in rows.split() for phrase in _phrases(row))


def _opens(row: str, said: str) -> bool:
    """Whether a phrase of the row begins at one of the first three words, or is among the first signs, spaces aside."""
    words = said.split()
    starts = (f" {' '.join(words[at : at + 6])} " for at in range(min(3, len(words))))
    return any(start.startswith(_phrases(row)) for start in starts) or any(
        phrase in said[:9] for phrase in _phrases(row) if phrase[0] != " "
    )


def _without(row: str, said: str) -> str:
    for phrase in _phrases(row):
        said = said.replace(phrase, " ")
    return said


@cache
def _phrases(row: str) -> tuple[str, ...]:
    rows = [line.partition(": ") for words in LANGUAGES.values() for line in words.split("\n")]
    phrases = [phrase.strip() for name, _, phrases in rows if name == row for phrase in phrases.split("|")]
    return tuple(pattern for phrase in phrases for pattern in _patterns(phrase))


def _patterns(phrase: str) -> tuple[str, ...]:
    """As it is looked for in `_normal` text. A word is not found in the middle of another, but where nothing is put
    between words; in Arabic and Hebrew "and" and "then" are part of the next word, and endings are many."""
    code = max(map(ord, phrase))
    if 0x0590 <= code < 0x0700:
        return f" {phrase}", f" و{phrase}", f" ف{phrase}"
    if code > 0x0700 and not 0x1E00 <= code < 0x2000:
        return (phrase,)
    return (f" {phrase[:-1]}" if phrase.endswith("*") else f" {phrase} ",)
