"""What has become of the list since it was read? People edit it while it is worked off, and what has landed is ticked
where no commit can do that."""

import time

from msgspec.structs import replace

from ralph.backlog import taking_on
from ralph.backlog.lists import ListContent, sound
from ralph.backlog.work_order import WorkOrder
from ralph.core.backlog import SETTLED, Board, Item, Job
from ralph.core.work_events import ItemListed, ItemQueued, ItemWithdrawn, WorkEvent
from ralph.errors import UserError

ASKED_AGAIN = 60.0  # seconds between two looks at a list that another program keeps
TICKED, TAKEN_OFF = "it was ticked by a person", "it was taken off the list"


class ListWatch:
    """One list, for as long as it is worked off. `is_here` unless another machine has brought it."""

    def __init__(self, order: WorkOrder, is_here: bool = True) -> None:
        self._order, self._source = order, order.source
        self._is_at_hand = is_here and order.source.is_in_files
        self._stamp: object = None
        self._asked = time.monotonic()
        self._settled: set[str] = set()

    def begin(self) -> None:
        """The list has just been read."""
        self._stamp = self._source.stamp() if self._is_at_hand else None

    def hurry(self) -> None:
        """Its target has changed: who goes by that asks now."""
        if self._source.is_in_files:
            self._asked = -ASKED_AGAIN

    def has_to_be_asked_for(self) -> bool:
        """Whether it is time to have another program say what is in it: that takes a process of its own."""
        if self._is_at_hand or time.monotonic() - self._asked < ASKED_AGAIN:
            return False
        self._asked = time.monotonic()
        return True

    def reread(self) -> ListContent | None:
        """What it says now, if a person has touched it; a broken one is an error."""
        if not self._is_at_hand or (stamp := self._source.stamp()) == self._stamp:
            return None
        self._stamp = stamp
        return sound(self._source.read(), self._source.name)

    def tick(self, board: Board) -> list[str]:
        """Ticks what has landed, where the list is not in git or another program keeps it; what stands in the way."""
        landed = [key for key, job in board.jobs.items() if job.state == "landed"]
        if self._source.program:
            fresh = [key for key in landed if key not in self._settled]
            self._settled.update(fresh)
            return [said for key in fresh if (said := taking_on.settle(self._order, key, board.jobs[key].commit))]
        if self._source.paths or not landed:
            return []
        try:
            self._source.tick_on_disk(landed)
            self._stamp = self._source.stamp()
        except (OSError, UserError) as error:
            return [f"cannot tick {self._source.name}: {error}"]
        return []


def differences(board: Board, reading: ListContent) -> list[WorkEvent]:
    """What a list says now, against what is known."""
    told: list[WorkEvent] = []
    for item in reading.items:
        job = board.jobs.get(item.key)
        if job is not None:
            told += _changes_of(item, job)
        elif not item.done:
            told.append(ItemListed(item))
    listed = {item.key for item in reading.items}
    gone = [key for key, job in board.jobs.items() if key not in listed and job.state not in SETTLED]
    return [*told, *(ItemWithdrawn(key, TAKEN_OFF) for key in gone)]


def _changes_of(item: Item, job: Job) -> list[WorkEvent]:
    if item.done:
        return [ItemListed(item), ItemWithdrawn(item.key, TICKED)] if job.state not in SETTLED else []
    if job.state == "withdrawn" and job.reason in (TICKED, TAKEN_OFF):
        return [ItemListed(item), ItemQueued(item.key, "it is on the list again", forgiven=True)]
    if job.state == "landed" or _wanted(item) == _wanted(job.item):
        return []
    edited = [ItemQueued(item.key, "its text was edited", forgiven=True)] if job.state == "parked" else []
    return [ItemListed(item), *edited]


def _wanted(item: Item) -> Item:
    """The item less where it stands in the list."""
    return replace(item, place="", done=False)
