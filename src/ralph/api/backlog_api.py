"""The Python API of backlogs: `Backlog` does what `ralph work` does."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from ralph.backlog.backlog_plan import BacklogPlan, BacklogRequest, load_backlog, prepare
from ralph.backlog.backlog_play import play
from ralph.core.backlog_events import BacklogFinished
from ralph.errors import UserError
from ralph.process.signals import Cancellation
from ralph.process.streams import open_standard_streams
from ralph.settings import load
from ralph.settings.presets import PRESET_OF
from ralph.show.notify import notify_about_backlog


class BacklogResult(Struct, frozen=True, kw_only=True):
    """How a backlog ended: `done`, `parked`, `budget`, `timeout`, `stuck`, `blocked`, `fatal` or `interrupted`.

    `exit_code` is that of `ralph work`. The tasks were merged into `target`. `id` names the backlog for `ralph show`,
    `ralph accept` and `ralph resume`; it is empty if every task was done before, so that nothing was started.
    """

    outcome: str
    reason: str = ""
    exit_code: int = 0
    id: str = ""
    target: str = ""
    tasks: int = 0
    merged: int = 0
    parked: int = 0
    blocked: int = 0
    cost_usd: float | None = None
    duration_s: float = 0.0

    @property
    def success(self) -> bool:
        return self.exit_code == 0


class Backlog:
    """Runs the tasks of a backlog, each in its own worktree, and merges those that pass every check.

    - `backlog` is a file, a folder, `github:` or `beads:`, as for `ralph work`.
    - `checks` must pass before each merge; without them, those of the settings files.
    - `agent` names an agent as `--agent` does. `jobs` is how many tasks run at once.
    - `target` is the local branch to merge into, `push` (REMOTE/BRANCH) one on a remote instead.
    - `max_cost` (USD) and `max_time` (seconds) limit the whole backlog.
    - `settings` are any others, with the names of settings.json.
    - `cancel` ends the backlog when it is set; the caller then handles signals itself.
    """

    def __init__(
        self,
        backlog: str | os.PathLike[str],
        checks: Sequence[str] = (),
        workspace_root: str | os.PathLike[str] = ".",
        *,
        agent: str = "",
        jobs: int | None = None,
        target: str = "",
        push: str | None = None,
        max_cost: float | None = None,
        max_time: float | None = None,
        settings: Mapping[str, Any] | None = None,
        cancel: "Event | None" = None,
    ) -> None:
        if isinstance(checks, str):
            raise UserError(f"checks: expected a list, got {checks!r}", "put it into a list")
        self.backlog, self.workspace_root = os.fspath(backlog), Path(workspace_root).resolve()
        self._target, self._push, self._cancel = target, push, cancel
        self._max_cost, self._max_time = max_cost, max_time
        self._settings: dict[str, Any] = {"preset": PRESET_OF["work"], **(settings or {})}
        self._settings |= {"checks": [{"command": command} for command in checks]} if checks else {}
        self._settings |= {"agent": {"command": agent}} if agent else {}
        if jobs is not None:
            self._settings["work"] = {**self._settings.get("work", {}), "jobs": jobs}

    def run(self) -> BacklogResult:
        """Run the backlog to its end. Raise a `UserError` if it cannot start."""
        open_standard_streams()
        loaded = load(self.workspace_root, self._settings, env=os.environ, source="Backlog")
        request = BacklogRequest(
            workspace=str(self.workspace_root),
            backlog=self.backlog,
            settings=loaded.settings,
            target=self._target,
            push=self._push,
            max_cost=self._max_cost,
            max_time=self._max_time,
        )
        backlog = load_backlog(request)
        if backlog.is_done:
            return BacklogResult(outcome="done")
        plan = prepare(backlog)
        finished = _play_until(self._cancel, plan) if self._cancel else play(plan, followers=[notify_about_backlog])
        return BacklogResult(id=plan.order.id, target=plan.order.shown_target, **asdict(finished))


def _play_until(cancel: Event, plan: BacklogPlan) -> BacklogFinished:
    """Play a backlog that ends when the event is set. Leave the signals to the caller."""
    with Cancellation(cancel) as interrupt:
        return play(plan, followers=[notify_about_backlog], ticks=[interrupt.tick], interrupt=interrupt)
