"""`ralph work` and `ralph worker`: run the tasks of a backlog in parallel, and merge what passes the checks."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from msgspec import to_builtins

from ralph.backlog import task_requests
from ralph.backlog.backlog_plan import (
    BacklogPlan,
    BacklogRequest,
    LoadedBacklog,
    load_backlog,
    plan_to_resume,
    prepare,
)
from ralph.backlog.backlog_play import play as play_plan
from ralph.cli.backlog_views import print_tasks, show_backlog
from ralph.cli.play import confirm_settings
from ralph.cli.request import Shown, loop_settings
from ralph.cli.table import Values, command, folder_of, needs_extra, print_objects
from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.git.client import require_git
from ralph.options import command_options
from ralph.options.option import Option
from ralph.process.signals import ANNOUNCEMENT, Interrupt
from ralph.settings import load, parse_duration
from ralph.show.backlog_lines import BacklogScreen, backlog_sentence, rows
from ralph.show.notify import notify_about_backlog
from ralph.show.outlet import Ndjson
from ralph.store.folder import backlog_lock
from ralph.store.folder import prepare as prepare_folder
from ralph.store.register import Listed

ACTIONS = ("status", "retry", "withdraw")
SHARED_ACTIONS = (*ACTIONS, "pause", "resume", "stop")
"""With --db: what can be done from any of the machines that share a backlog."""


@command(
    *command_options.WORK,
    words="BACKLOG",
    examples=(
        'ralph work TASKS.md -j 4 --check "pytest -q"',
        'ralph work github:label=ready -j 2 --check "make test" --push',
        'ralph work prd.json --check "npm test" --setup "npm ci" --max-cost 20',
        'ralph work TASKS.md --check "pytest -q" --db postgresql://db.example/ralph --push=origin/main',
    ),
)
def work(values: dict[str, Any], words: list[str]) -> int:
    """Run the tasks of a backlog, each in its own worktree, and merge those that pass every check.

    BACKLOG is a file (Markdown checkboxes, prd.json, tasks.json), a folder (Backlog.md), github:, github:label=NAME or
    beads:. Every commit on the target branch has passed every check.

    \b
    ralph work status [WORK]      show the state of each task
    ralph work retry KEY [NOTE]   try a parked task again
    ralph work withdraw KEY       drop a task; its branch stays

    With --db several machines work on it (see ralph worker); from any of them:

    \b
    ralph work status|retry|withdraw … --db URL    as above; status also shows the workers
    ralph work pause|resume|stop [WORK] --db URL   pause it, continue it, end it"""
    is_shared = "db" in values or "RALPH_DB" in os.environ
    if words and words[0] in (SHARED_ACTIONS if is_shared else ACTIONS) and not os.path.exists(words[0]):
        return _act(words[0], values, words[1:], is_shared)
    if "issue" in values:
        number = values["issue"].strip().rpartition("/issues/")[2].removeprefix("#")
        if not (number.isascii() and number.isdigit()):
            raise UserError(f"--issue: expected a number or URL, got {values['issue']!r}", "for example: --issue 42")
        words = [*words, f"github:{number}"]
    if not words:
        raise UserError("no backlog", "name a file or folder with tasks, github: or beads:")
    if len(words) > 1:
        raise UserError(f"unexpected argument: {words[1]!r}", "name one backlog")
    return start(values, words[0])


def _act(action: str, values: dict[str, Any], words: list[str], is_shared: bool) -> int:
    """Carry out an action on a backlog that exists, here or in the fleet."""
    name, note, as_json = "".join(words[:1]), " ".join(words[1:]), bool(values.get("json"))
    if action in ("retry", "withdraw") and not name:
        raise UserError(f"no task to {action}", f"name one: ralph work {action} KEY")
    if is_shared:
        asyncio.run(_act_on_shared(action, values, name, note))
        return 0
    folder = folder_of(values)
    if action == "status":
        return show_backlog(task_requests.find_backlog_run(name, folder), as_json)
    print(task_requests.leave_request(action, name, note, folder))
    return 0


def start(values: dict[str, Any], word: str) -> int:
    """Start a new backlog run."""
    if "db" in values and "push" not in values:
        raise UserError("--db needs --push", "machines share their work through a remote branch: --push=REMOTE/BRANCH")
    workspace, overrides = loop_settings(values)
    request = BacklogRequest(
        workspace=str(workspace),
        backlog=word,
        settings=load(workspace, overrides, env=os.environ, options=command_options.option_names("work")).settings,
        target=values.get("target", ""),
        push=str(values["push"]) if "push" in values else None,
        max_cost=values.get("max_cost"),
        max_time=parse_duration(values["max_time"]) if "max_time" in values else None,
        is_shared="db" in values,
    )
    backlog = load_backlog(request, confirm_settings)
    if backlog.is_done:
        print(f"ralph: nothing to do: every task of {backlog.source.name} is done", file=sys.stderr)
        return 0
    if values.get("dry_run"):
        return _print_backlog(backlog)
    shown, plan = Shown.parse(values), prepare(backlog)
    if "db" in values:
        return play_shared(values["db"], plan, json=shown.json, quiet=shown.quiet)
    return play(plan, shown)


def _print_backlog(backlog: LoadedBacklog) -> int:
    for check in backlog.settings.checks:
        print(f"check: {one_line(check.command, 1000)}")
    for task in backlog.content.tasks:
        after = f" (after {', '.join(task.after)})" if task.after else ""
        print(f"{'[x]' if task.done else '[ ]'} {task.key}: {task.title}{after}")
    return 0


def play(plan: BacklogPlan, shown: Shown) -> int:
    """Run a backlog in front of the user, or resume it; return the exit code."""
    settings = plan.order.settings
    screen = BacklogScreen(sys.stderr, quiet=shown.quiet, color=settings.color, emoji=settings.emoji, env=os.environ)
    with Interrupt(lambda: screen.announce(ANNOUNCEMENT)) as interrupt:
        finished = play_plan(
            plan,
            followers=[screen.follow, notify_about_backlog],
            sinks=[lambda opened: Ndjson(opened.is_late)] if shown.json else [],
            ticks=[screen.tick],
            interrupt=interrupt,
        )
        interrupt.fix_exit_code(finished.exit_code)
        return finished.exit_code


def resume(run: Listed, shown: Shown) -> int:
    """Continue a backlog that was stopped, killed, or has parked tasks."""
    return play(plan_to_resume(run.folder), shown)


@command(
    Option("--db URL", "The database: postgresql://HOST/NAME (default: $RALPH_DB)."),
    Option("-j --jobs N", "How many tasks run at once (default: 2)."),
    Option("--name NAME", "The name that other machines see (default: HOST-PID)."),
    Option("--once", "Exit when no backlog is open."),
    Option("--migrate", "Update the database of an older ralph, and exit."),
    Option("-C --directory DIR", "The clone (default: the current folder)."),
    Option("--quiet", "Print only errors."),
    examples=(
        "ralph worker --db postgresql://db.example/ralph -j 4",
        "RALPH_DB=@/etc/ralph/db ralph worker --name build-7",
    ),
)
def worker(values: Values, words: list[str]) -> int:
    """Work on the tasks of the backlogs in a database, in this clone, until stopped.

    One worker at a time merges what is ready; if a worker goes silent, another one takes over within seconds. Keep the
    password in PGPASSWORD or a password file, or the whole URL in RALPH_DB (RALPH_DB=@FILE: in a file). A worker runs
    the checks and agents that the backlogs in the database name: write access to the database means shell access to
    this machine."""
    database = load_fleet()
    url = database.resolve_url(values.get("db"))
    if values.get("migrate"):
        asyncio.run(database.migrate(url))
        print("the database is up to date")
        return 0
    jobs = values.get("jobs", 2)
    if jobs < 1:
        raise UserError(f"-j {jobs} is too small", "give a number above 0")
    from ralph.fleet.worker import Worker

    workspace = folder_of(values)
    require_git(workspace)  # before anything is written there
    made = Worker(url, workspace, slots=jobs, name=values.get("name", ""), is_quiet=bool(values.get("quiet")))
    with backlog_lock(prepare_folder(workspace), "worker"):
        return made.run(once=bool(values.get("once")))


def load_fleet() -> ModuleType:
    """Import the fleet's database module, or say which extra is missing."""
    with needs_extra("a fleet", "fleet"):
        from ralph.fleet import database
    return database


def play_shared(db: str, plan: BacklogPlan, *, json: bool, quiet: bool) -> int:
    """Bring a backlog to the fleet, and work on it until it is over."""
    url = load_fleet().resolve_url(db or None)
    from ralph.fleet.worker import Worker

    workspace = Path(plan.order.workspace)
    worker = Worker(url, workspace, slots=plan.order.slots, is_quiet=quiet, prints_events=json)
    if plan.notice and not quiet:
        print(f"ralph: {one_line(plan.notice, 2000)}", file=sys.stderr)
    with backlog_lock(prepare_folder(workspace), plan.order.id):
        return worker.run(plan.order, plan.content)


async def _act_on_shared(action: str, values: dict[str, Any], name: str, note: str) -> None:
    """Carry out a request about a backlog of the fleet, or print its tasks and who works on them."""
    database, key = load_fleet(), ""
    from ralph.fleet import log

    if action in ("retry", "withdraw"):
        name, key = name.split("/", 1) if "/" in name else ("", name)  # with several backlogs: WORK/KEY
    async with database.Database(database.resolve_url(values.get("db")), database.ONE_SHOT).connect() as opened:
        if action != "status":
            print(clean(await log.steer(opened, action, name, key, note)))
            return
        work, state, workers = await log.load_shared_backlog(opened, name)
    job_rows = rows(state.board, {})
    if values.get("json"):
        print_objects([*job_rows, *({"worker": peer.name, **to_builtins(peer)} for peer in workers)])
        return
    print(
        f"work {one_line(work.name)}: {backlog_sentence(state.finished, work.target) if state.finished else 'running'}"
    )
    print_tasks(state.board, job_rows)
    for worker in workers:
        print(clean(log.describe_worker(worker, state.board)))
