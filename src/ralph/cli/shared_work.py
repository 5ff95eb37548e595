"""`ralph work … --db URL`: how is a backlog worked off by many machines, seen and steered from any of them?"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from ralph.core.text import escaped
from ralph.errors import UserError

if TYPE_CHECKING:
    from ralph.backlog.lists import ListContent
    from ralph.backlog.work_order import WorkOrder
    from ralph.cli.run import Shown
    from ralph.fleet.steering import Seen


def play_shared(db: str, order: WorkOrder, reading: ListContent, shown: Shown, notice: str) -> int:
    """Brings a work to the fleet, and takes part in it until it is over."""
    from pathlib import Path

    from ralph.cli.worker import engine
    from ralph.records.folder import prepare, work_lock

    url = engine().url_of(db or None)
    from ralph.fleet.worker import Spectator, Worker
    from ralph.show.outlet import Ndjson

    spectator = Spectator((Ndjson(),) if shown.json else (), shown.quiet)
    workspace = Path(order.workspace)
    worker = Worker(url, workspace, slots=order.slots, spectator=spectator)
    with work_lock(prepare(workspace), order.id):
        return worker.work_off(order, reading, notice)


def act_on_shared(action: str, values: dict[str, Any], words: list[str]) -> int:
    """Looks at a work of the fleet, or tells all who work on it what a person wants."""
    from ralph.cli.worker import engine

    database = engine()
    from ralph.fleet import schema, steering

    with database.opened(database.url_of(values.get("db"))) as opened:
        schema.ready(opened)
        if action in ("retry", "withdraw"):
            if not words:
                raise UserError(f"no item to {action}", f"name one: ralph work {action} KEY")
            work, key = _work_and_key(words[0])
            done = steering.retry(opened, work, key, " ".join(words[1:])) if action == "retry" else ""
            print(done or steering.withdraw(opened, work, key))
            return 0
        name = words[0] if words else ""
        if action in ("pause", "resume", "stop"):
            acts = {"pause": lambda: steering.hold(opened, name, True), "stop": lambda: steering.stop(opened, name)}
            print(acts.get(action, lambda: steering.resume(opened, name))())
            return 0
        seen = steering.see(opened, name)
    if action == "report":
        from ralph.show.works import markdown

        sys.stdout.write(markdown(seen.history))
        return 0
    return _show(seen, action == "show", bool(values.get("json")))


def _work_and_key(word: str) -> tuple[str, str]:
    """`KEY`, or `WORK/KEY` where several works are open."""
    work, slash, key = word.partition("/")
    return (work, key) if slash else ("", word)


def _show(seen: Seen, is_whole: bool, as_json: bool) -> int:

    from ralph.show.outlet import choose
    from ralph.show.works import lines, rows, summary, table

    made = rows(seen.board, {})
    if as_json:
        from msgspec.json import encode

        told = [*made, *(_told(seen, worker) for worker in seen.workers)]
        sys.stdout.buffer.write(escaped(b"".join(encode(row) + b"\n" for row in told)))
        return 0
    print(f"work {seen.row.name}: {summary(seen.history)}")
    if is_whole:
        for job, why in seen.history.needing():
            print(f"needs you: {job.item.key}: {why} (try again: ralph work retry {job.item.key})")
        print("\n".join(lines(seen.history)))
    style = choose(sys.stdout, os.environ, sys.stdout.isatty(), None, None)
    columns = os.get_terminal_size().columns if sys.stdout.isatty() else 200
    print("\n".join(table(seen.board, made, style, columns, most=len(made))))
    from ralph.fleet.steering import told_of

    print("\n".join(told_of(seen.workers, seen.board)))
    return 0


def _told(seen: Seen, worker: Any) -> dict[str, Any]:
    from msgspec import to_builtins

    from ralph.fleet.steering import doing

    return {"worker": worker.name, **to_builtins(worker), "items": doing(worker, seen.board)}
