"""Which files did each iteration change? Git compares all the trees of a run in one go."""

import re
from collections.abc import Sequence

from ralph.world.repository.diff import DIFFED, GENERATED, Change, no_index
from ralph.world.repository.git import GitError, Repository
from ralph.world.repository.index import shown, tree_of

_HEADER = re.compile(rb"([0-9a-f]{40,64}) ([0-9a-f]{40,64})\n")
Pair = tuple[str, str]


def changes_between(repository: Repository, pairs: Sequence[Pair]) -> dict[Pair, list[Change]]:
    """What differs between the two fingerprints of each pair; without the pairs of which git has forgotten a tree."""
    trees = {pair: (tree_of(pair[0]), tree_of(pair[1])) for pair in pairs}
    asked = sorted({pair for pair in trees.values() if pair[0] != pair[1]})
    if not asked:
        return {pair: [] for pair in pairs}
    lines = "".join(f"{base} {now}\n" for base, now in asked).encode()
    words = (*DIFFED, "--stdin", "-z", "--raw", "--numstat", "--no-renames", "--", ":(top)", *GENERATED)
    try:
        found = _parsed(repository.git(*words, stdin=lines, env=no_index(repository)))
    except GitError:
        return {}
    return {pair: found.get(both, []) for pair, both in trees.items()}


def _parsed(output: bytes) -> dict[Pair, list[Change]]:
    found: dict[Pair, list[Change]] = {}
    changes: list[Change] = []
    statuses: dict[bytes, str] = {}
    parts = iter(output.split(b"\0"))
    for part in parts:
        while header := _HEADER.match(part):
            part = part[header.end() :]
            statuses, changes = {}, []
            found[header[1].decode(), header[2].decode()] = changes
        if part.startswith(b":"):
            statuses[next(parts)] = part[-1:].decode()
        elif part:
            added, deleted, path = part.split(b"\t", 2)
            changes.append(Change(statuses.get(path, "M"), shown(path), _count(added), _count(deleted)))
    return found


def _count(number: bytes) -> int | None:
    return int(number) if number.isdigit() else None
