"""How is a landing carried out? In a process of its own, which holds the gate alone and says what it saw."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ralph.backlog import item_worktrees
from ralph.backlog.gate import Gate, LandingRequest
from ralph.backlog.publishing import PATIENCE, Charge
from ralph.backlog.work_order import REQUEST, WorkOrder, folder_of, read
from ralph.core.backlog import Red, Verdict
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.secrets import Redactor, secret_values
from ralph.core.text import clean, tail
from ralph.errors import UserError
from ralph.files import hold, open_file
from ralph.processes.descendants import sweep_marked
from ralph.processes.interrupt import Interrupt
from ralph.processes.keeper import Keeper
from ralph.records.folder import RunFolder, prepare
from ralph.repository.configuration import configuration_of
from ralph.repository.git import Repository, obeying, repository
from ralph.repository.landing import Reserved
from ralph.run.checks import Checks, enclosed
from ralph.run.context import Context
from ralph.settings import Guardrail

LEFT = b"."
_LONGEST_CHECKS = 3600.0  # seconds in which a gate whose coordinator was killed is gone


class Interrupted(Exception):
    """A person asked to stop before the gate had seen all."""


def attend(path: str, keeper: Keeper, interrupt: Interrupt) -> tuple[Verdict, Callable[[], None]]:
    """One landing, or (without branches) a look at the target itself; and what is left to do when the next one may
    already be at the gate: worktrees and branches of those that have landed go."""
    folder = folder_of(path)
    work, request = read(folder, "work.json", WorkOrder), read(folder, REQUEST, LandingRequest)
    home = repository(Path(work.workspace))
    settled = configuration_of(home, work.id)
    with obeying(settled), _alone(folder):
        gate = _gate(work, home, folder, keeper, interrupt)
        try:
            verdict = gate.land(request) if request.branches else gate.opened()
        except UserError as error:
            verdict = Verdict(stuck=error.advice)
    tips = {branch.key: branch.tip for branch in request.branches}

    def clear() -> None:
        with obeying(settled), suppress(UserError):  # what is left goes when all is done
            item_worktrees.clear(work, home, {key: tips[key] for key in verdict.landed})

    return verdict, clear


@contextmanager
def _alone(folder: RunFolder) -> Iterator[None]:
    """While entered, nobody else is at the gate. What git we start inherits the lock: when we are killed, the next one
    waits until they are gone; and whatever the checks of a killed one have left is ended. To look for that takes as
    long as three gits: whoever leaves in good order says so in the lock."""
    lock = open_file(folder.path / "gate.lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    try:
        hold(lock, folder.path / "gate.lock", _LONGEST_CHECKS)
        if os.read(lock, 1) != LEFT:
            sweep_marked(_mark(folder))
        os.ftruncate(lock, 0)
        yield
        with suppress(OSError):  # the disk is full: then the next one looks
            os.pwrite(lock, LEFT, 0)
    finally:
        os.close(lock)


def _mark(folder: RunFolder) -> str:
    return f"{folder.id}-gate"


def _gate(work: WorkOrder, home: Repository, folder: RunFolder, keeper: Keeper, interrupt: Interrupt) -> Gate:
    made = work.gate_in(home)
    marked = RunFolder(folder.path.parent.parent, _mark(folder))
    marked.path = folder.path / "gate"
    # Python may take a module that it compiled a moment ago for this one: it compares times by the second.
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    context = Context(
        root=Path(made.workspace),
        folder=marked,
        keeper=keeper,
        interrupt=interrupt,
        tell=lambda *_: None,
        env=env,
        redact=Redactor(secret_values(env)),
        max_log=work.settings.max_log,
        grace=work.settings.grace,
        began=time.monotonic(),
    )
    numbers = iter(range(1, 1 << 30))
    charge = Charge(folder.path)

    def await_charge() -> None:
        if work.is_shared and not charge.wait(interrupt):
            raise Interrupted

    def check(command: str) -> Red | None:
        os.makedirs(made.workspace, exist_ok=True)
        prepare(Path(made.workspace))
        # One at a time, whatever loops do: each is run on exactly the candidate's files, as no other has left them.
        with enclosed(context, work.settings, work.workspace) as inside:
            seen = Checks(inside, [Guardrail(command)], work.settings).run(next(numbers))
        if seen is None:
            raise Interrupted
        (one,) = seen
        return None if one.passed else Red(one.name, one.ending, tail(clean(one.tail), ERROR_LIMIT))

    def furnish() -> None:
        item_worktrees.furnish(work, home, made, context)

    return Gate(
        repository=home,
        work=work.name,
        target=work.target,
        remote=work.remote,
        path=made.path,
        checks=work.checks,
        kept=Reserved(work.source.paths, work.kept(home), work.source.ticked),
        check=check,
        furnish=furnish,
        branch_of=work.branch_of,
        await_charge=await_charge,
        patience=PATIENCE if work.is_shared else 1.0,
    )
