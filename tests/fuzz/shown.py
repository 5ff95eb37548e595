"""Render a hostile text in everything that ralph displays: does it become harmless, and how long does that take?"""

import json
from collections.abc import Iterator
from enum import Enum
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Struct

from ralph.core import backlog_events, events
from ralph.core.events import Event
from ralph.history import evidence
from ralph.history.backlog_history import BacklogHistory, fold_backlog
from ralph.history.fold import Fold
from ralph.history.run_history import RunHistory
from ralph.show import backlog_lines, backlog_report, report, summary, words
from ralph.show.event_lines import EventLines
from ralph.show.outlet import Style
from ralph.store.journal import Entry
from ralph.web import pieces

LARGEST = 10**308


class Filling(Struct, frozen=True):
    """The values for all fields: the text, a number as close to it as the type allows, and True."""

    text: str
    number: int = 1
    flag: bool = True


def of(text: str | Filling) -> Filling:
    return Filling(encodable(text)) if isinstance(text, str) else text


def filled(kind: Any, what: Filling) -> Any:
    """Return a value of this type in which every text is the hostile one, also in fields that are added later."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{field.name: filled(field.type, what) for field in fields})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind))
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return filled(inner[0], what)
    if origin is Literal:
        return inner[0]
    if origin is tuple:
        return (filled(inner[0], what),) if inner[1:] == (...,) else tuple(filled(each, what) for each in inner)
    if origin in (list, dict):
        return [filled(inner[0], what)] if origin is list else {filled(inner[0], what): filled(inner[1], what)}
    plain = {str: what.text, int: what.number, float: float(min(what.number, LARGEST)), bool: what.flag, bytes: b""}
    return plain.get(kind)


def happened(text: str | Filling) -> Iterator[tuple[Event, Entry]]:
    """One event of every kind."""
    for seq, (kind, name) in enumerate((events.NAMES | backlog_events.NAMES).items()):
        event = filled(kind, of(text))
        data = msgspec.Raw(json.dumps(msgspec.to_builtins(event)).encode())
        yield event, Entry(name, "2026-01-01T00:00:00Z", "r", seq, data)


def encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def history_of(text: str | Filling) -> RunHistory:
    fold = Fold("20260101-000000-abcd")
    for event, entry in happened(text):
        fold.add(event, entry.at)
    return fold.history


def work_of(text: str | Filling) -> BacklogHistory:
    return fold_backlog("20260101-000000-abcd", [entry for _, entry in happened(text)])


def lines(text: str | Filling, columns: int, verbose: bool) -> list[str]:
    render = EventLines(Style(color=True), verbose=verbose, columns=columns)
    return [line for event, entry in happened(text) for line in render(event, entry.at)]


def on_a_page(text: str | Filling) -> str:
    recent = pieces.RecentPieces(of(text).text)
    for event, entry in happened(text):
        recent.add(entry, event)
    return recent.since(-1)


def in_summary(text: str | Filling) -> list[str]:
    history = history_of(text)
    return [
        *summary.table(history, Style()),
        *summary.render_history(history, Style()),
        words.outcome_sentence(history),
    ]


def in_report(text: str | Filling) -> str:
    history = history_of(text)
    proof = {1: filled(evidence.Evidence, of(text))}
    return report.html(history, proof) + report.for_review(history, of(text).text)


def of_work(text: str | Filling) -> str:
    history = work_of(text)
    shown = backlog_lines.table(history.board, backlog_lines.rows(history.board, {}), Style(), 80)
    return "\n".join(
        [
            backlog_report.html(history),
            backlog_report.summary(history),
            *shown,
        ]
    )


def work_lines(text: str | Filling) -> list[str]:
    told = (backlog_lines.sentence(event)[0] for event, _ in happened(text))
    return [line for one in told for line in one.split("\n")]
