"""How does a run make itself known? It keeps its facts in a file of its own folder, and leaves a link to that."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import RunFacts
from ralph.core.state import Activity, after, recalled
from ralph.files import open_own
from ralph.processes.descendants import own_start
from ralph.records.folder import RunFolder, cannot_write
from ralph.records.register import STATE, facts_in, host, registry

if TYPE_CHECKING:
    from ralph.records.journal import Story


MOST_LINKS = 1000
OFTEN_ENOUGH = 0.5  # seconds between two writes that say no more than what is done right now


class Registration:
    """A listener that keeps the run's own facts up to date while it goes on. `tick` tells what is left to tell. Whose
    part a run is must be known from its first moment on: who speaks of the whole does not mean it."""

    def __init__(
        self,
        folder: RunFolder,
        story: "Story | None" = None,
        deaf: bool = False,
        *,
        work: str = "",
        item: str = "",
        kind: str = "",
    ) -> None:
        known = RunFacts(id=folder.id, began=time.time(), work=work, item=item, kind=kind)
        if story is not None:
            known = facts_in(str(folder.path)) or recalled(story.run)
        me = {"pid": os.getpid(), "start": own_start(), "host": host(), "deaf": deaf}
        self._facts = replace(known, **me, stopping=False, outcome="")
        self._activity = Activity()
        self._encode = msgspec.json.Encoder().encode
        self._written = 0.0
        self._path = folder.path / STATE

    def begin(self) -> None:
        """From now on the run is known as what it is, before anything is told: it may be killed the next moment."""
        try:
            self._open()
            self._write()
        except OSError as error:
            raise cannot_write(self._path, error) from None

    def __call__(self, *happened: events.Event) -> None:
        now = time.time()
        facts = self._facts
        for event in happened:
            self._activity(event, now)
            facts = after(facts, event, now)
        if facts is not self._facts or now - self._written > OFTEN_ENOUGH:
            self._facts = facts
            self._tell()

    def tick(self, is_stopping: bool = False) -> None:
        if is_stopping != self._facts.stopping or self._activity.since != self._facts.since:
            self._facts = replace(self._facts, stopping=is_stopping)
            self._tell()

    def _tell(self) -> None:
        self._facts = replace(self._facts, doing=self._activity.text, since=self._activity.since)
        self._write_now()

    def _write_now(self) -> None:
        with suppress(OSError):  # a full disk: the journal says so, and is the truth
            if os.fstat(removed := self._fd).st_nlink == 0:  # by an agent that cleans up
                self._open()
                os.close(removed)
            self._write()

    def _open(self) -> None:
        self._fd = open_own(self._path)
        self._size = os.fstat(self._fd).st_size

    def _write(self) -> None:
        """In place, with one call, and never shorter than before: a reader finds the old or the new."""
        self._written = time.time()
        data = self._encode(self._facts)
        self._size = max(self._size, len(data))
        os.pwrite(self._fd, data.ljust(self._size, b"\n"), 0)

    def close(self) -> None:
        os.close(self._fd)


def enlist(folder: RunFolder, env: Mapping[str, str]) -> str:
    """Makes the run known to `ralph ps`; what stands in the way, if anything."""
    links = registry(env)
    try:
        os.makedirs(links, mode=0o700, exist_ok=True)
        _link(os.path.join(links, folder.id), str(folder.path.absolute()))
        if folder.id[-1] in "ab":  # one run in sixteen tidies up
            _prune(links)
    except OSError as error:
        return f"`ralph ps` will not list this run: cannot write {links}: {error.strerror}"
    return ""


def _link(link: str, place: str) -> None:
    try:
        os.symlink(place, link)
    except FileExistsError:
        if os.readlink(link) != place:  # the workspace was moved
            os.unlink(link)
            os.symlink(place, link)


def _prune(links: str) -> None:
    """Forgets the links that lead nowhere, and the oldest others, once there are very many."""
    names = sorted(os.listdir(links))
    if len(names) > MOST_LINKS:
        leading = [name for name in names if os.path.exists(os.path.join(links, name))]
        for name in {*names} - {*leading[-MOST_LINKS // 2 :]}:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(links, name))
