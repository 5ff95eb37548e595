"""How does a machine that takes no part see and steer the works of a fleet? As one that does: each work has a folder
here, with a copy of all that was told of it and a mailbox, whose letters are carried to the database."""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec

from ralph.backlog.ledger import WorkRegistration
from ralph.backlog.wishes import take_wishes
from ralph.backlog.work_order import ORDER, WorkOrder, put
from ralph.core.backlog import Board
from ralph.core.secrets import Redactor
from ralph.errors import UserError
from ralph.files import state_folder
from ralph.fleet import schema, steering
from ralph.fleet.database import Database, Present, WorkRow
from ralph.fleet.heartbeat import Registered
from ralph.fleet.shared_ledger import SharedLedger
from ralph.records.folder import RunFolder, prepare
from ralph.records.writer import enlist
from ralph.steering.mailbox import Mailbox

NOBODY = Registered(0, "", 0)
OFTEN = 1.0  # seconds between two looks
MOST = 50  # works: older ones are history


class Mirror:
    """The works in a database, as if they were at work here, for as long as it is entered. `follows`: and whatever
    happens to them meanwhile."""

    def __init__(self, url: str, *, follows: bool, env: Mapping[str, str] = os.environ) -> None:
        self._database = Database(url, patience=2.0)
        self._follows, self._env = follows, env
        self._stack, self._over = ExitStack(), threading.Event()
        self._copies: dict[str, Copy] = {}
        self._thread = threading.Thread(target=self._run, name="mirror", daemon=True)
        self.workers: tuple[Present, ...] = ()

    def __enter__(self) -> "Mirror":
        try:
            schema.ready(self._database)
            self._look()
        except BaseException:
            self.__exit__()
            raise
        if self._follows:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=OFTEN)
        self._stack.close()
        self._database.close()

    def __contains__(self, run: str) -> bool:
        return run in self._copies

    def told_of_workers(self) -> list[str]:
        """A line for each worker."""
        boards = {work: copy.board for work, copy in self._copies.items()}
        return [
            line for worker in self.workers for line in steering.told_of([worker], boards.get(worker.work, Board()))
        ]

    def _run(self) -> None:
        while not self._over.wait(OFTEN):
            with suppress(UserError):  # it is away: what is shown is what was known last
                self._look()

    def _look(self) -> None:
        rows, self.workers = self._database.do(lambda transaction: (transaction.works(), tuple(transaction.present())))
        for row in rows[-MOST:]:
            if row.layout <= schema.LAYOUT:
                self._copy(row).bring_up_to_date()

    def _copy(self, row: WorkRow) -> "Copy":
        if row.id not in self._copies:
            place = Path(state_folder(self._env, "fleet"), row.name)
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            order = msgspec.structs.replace(msgspec.json.decode(row.order, type=WorkOrder), workspace=str(place))
            copy = Copy(self._database, order, RunFolder(prepare(place), row.id))
            copy.begin()
            self._copies[row.id] = copy
            enlist(copy.folder, self._env)
            self._stack.callback(copy.close)
            self._stack.callback(Path(state_folder(self._env, "runs"), row.id).unlink, missing_ok=True)
        return self._copies[row.id]


class Copy:
    """One of them."""

    def __init__(self, database: Database, order: WorkOrder, folder: RunFolder) -> None:
        self._database, self._order, self.folder = database, order, folder
        self._registration = WorkRegistration(folder, order, deaf=True)
        self._ledger = SharedLedger(folder, (), Redactor(), database, NOBODY)
        self._registration.watch(self._ledger)
        self._mailbox = Mailbox(folder.path)
        self._pause = steering.Pause(self._mailbox)

    def begin(self) -> None:
        self.folder.make()
        put(self.folder, ORDER, self._order)
        self._registration.begin()
        self._ledger.open()
        self._registration(*filter(None, (self._ledger.finished,)))
        self._ledger.listen((self._registration,))

    @property
    def board(self) -> Board:
        return self._ledger.board

    def bring_up_to_date(self) -> None:
        self._ledger.hear()
        self._registration.began(self._ledger.began)
        self._registration.tick()
        self._ledger.heard = []
        for wish in take_wishes(self._mailbox):
            self._ask(
                steering.withdraw if wish.kind == "withdraw" else partial(steering.retry, note=wish.note), wish.key
            )
        if (is_held := self._pause.changed(self._ledger.board.is_held)) is not None:
            self._ask(steering.hold, is_held)
        if self._mailbox.take_stop(now=True) or self._mailbox.take_stop():
            self._ask(steering.stop)

    def _ask(self, act: Callable[..., str], *about: object) -> None:
        """What a person has asked for here, of all."""
        with suppress(UserError):  # it came too late, and what is shown says so
            act(self._database, self._order.id, *about)

    def close(self) -> None:
        if self._ledger.finished is None:
            self._registration.leave()
        self._ledger.close()
        self._registration.close()
