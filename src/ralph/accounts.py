"""What is there to tell about a run on record? Its journal, read for what matters, and git's word on changed files."""

import time
from collections.abc import Iterator
from pathlib import Path

from ralph.core.events import NAMES, Event
from ralph.errors import UserError
from ralph.show.account import Account, Changed, with_files
from ralph.show.accountant import Accountant
from ralph.world.records.folder import RunFolder
from ralph.world.records.following import unreadable
from ralph.world.records.journal import decoded
from ralph.world.records.register import Listed

_BUFFER = 1 << 16  # lines are longer than the eight KB of the default


def account_now(run: Listed) -> Account:
    """The account of a run as it stands at this moment."""
    return account_of(run.folder, run.state, time.time() if run.is_alive else 0.0)


def account_of(folder: RunFolder, state: str = "", now: float = 0.0) -> Account:
    """The account of a run; `state` is what is known of one that has no outcome yet, `now` when it is still at work."""
    accountant = Accountant(folder.id)
    heard = False
    for event, at in _told(folder.journal, accountant.kinds):
        accountant.hear(event, at)
        heard = True
    if not heard:
        raise UserError(
            f"there is nothing to read in {folder.journal}", "it is empty, or was written by another version of ralph"
        )
    return _with_files(accountant.settled(state, now))


def _told(journal: Path, kinds: frozenset[str]) -> Iterator[tuple[Event, float]]:
    """The events of these kinds. Lines of another kind are most of a large journal, and are not even decoded."""
    others = tuple(b'{"type":"%s"' % name.encode() for name in NAMES.values() if name not in kinds)
    try:
        with open(journal, "rb", buffering=_BUFFER) as lines:
            for line in lines:
                if line.startswith(others):
                    continue
                entry = decoded(line)
                event = entry.event() if entry and entry.type in kinds else None
                if entry and event is not None:
                    yield event, entry.at
    except OSError as error:
        raise unreadable(journal, error) from None


def _with_files(account: Account) -> Account:
    pairs = account.pairs()
    workspace = Path(account.workspace)
    if not pairs or ":" not in (account.base_tree or "") or not workspace.is_dir():
        return account
    from ralph.world.repository.changes import changes_between
    from ralph.world.repository.git import find_repository

    try:
        repository = find_repository(workspace)
        found = changes_between(repository, list(pairs.values())) if repository else {}
    except UserError:  # a repository that is broken by now: the rest of the account stands
        return account
    return with_files(
        account,
        {
            number: [Changed(one.status, one.path, one.added, one.deleted) for one in found[pair]]
            for number, pair in pairs.items()
            if pair in found
        },
    )
