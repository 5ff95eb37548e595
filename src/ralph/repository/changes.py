"""What changed between two moments of the workspace? A list of files, or a patch, read no further than it is wanted."""

import codecs
import re
from collections.abc import Iterator, Sequence

from ralph.core.model import FileChange
from ralph.processes.answers import CutOff
from ralph.repository.git import Answer, GitError, Repository, objects_of, refusal, started
from ralph.repository.index import CACHES, LIBRARIES, shown, tree_of

# A file beyond this size is one line ("Binary files differ"), and git need not hold it in memory.
DIFFED = ("-c", "core.bigFileThreshold=16m", "diff-tree", "-r", "--no-color", "--no-ext-diff", "--no-textconv")
PATCH = (*DIFFED, "--patch", "--find-renames", "--src-prefix=a/", "--dst-prefix=b/")
GENERATED = tuple(f":(top,exclude,glob)**/{folder}/**" for folder in sorted(CACHES | LIBRARIES))


def diff(repository: Repository, base: str, now: str, limit: int) -> str:
    """The beginning of the patch from `base` to `now` (fingerprints, trees or commits): at least `limit` characters,
    if there are so many. What caches and libraries hold is left out: it is not the work."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for chunk in patch(repository, base, now, GENERATED):
        text += decoder.decode(chunk)
        if len(text) >= limit:
            break
    return text


def patch(repository: Repository, base: str, now: str, without: tuple[str, ...] = ()) -> Iterator[bytes]:
    """The whole patch, piece by piece. Git is stopped when nobody reads on."""
    words = (*PATCH, tree_of(base), tree_of(now), "--", ":(top)", *without)
    with objects_of(repository, tree_of(base)) as env, started(repository.root, *words, env=env) as git:
        try:
            while chunk := git.read():
                yield chunk
        except CutOff as cut:
            raise GitError(f"git diff-tree was cut off: {cut}") from None
    if git.code > 0:
        raise refusal(("diff-tree",), Answer(git.code, b"", git.error))


def changed_files(repository: Repository, base: str, now: str) -> list[FileChange]:
    """Every file that differs between `base` and `now`; a moved one is deleted here and added there."""
    words = (*DIFFED, "-z", "--raw", "--numstat", "--no-renames", tree_of(base), tree_of(now), "--")
    with objects_of(repository, tree_of(base)) as env:
        parts = iter(repository.git(*words, env=env).split(b"\0"))
    statuses: dict[bytes, str] = {}
    changes = []
    for part in parts:
        if part.startswith(b":"):
            statuses[next(parts)] = part[-1:].decode()
        elif part:
            added, deleted, path = part.split(b"\t", 2)
            changes.append(FileChange(statuses[path], shown(path), _count(added), _count(deleted)))
    return changes


_EMPTY = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}


def changed_paths(repository: Repository, base: str, now: str) -> list[bytes]:
    """The paths of what differs between two fingerprints, trees or commits; the first may be nothing at all."""
    before, after = tree_of(base), tree_of(now)
    words = (*DIFFED, "-z", "--name-only", "--no-renames", before or _EMPTY[len(after)], after, "--")
    with objects_of(repository, after) as env:
        return repository.git(*words, env=env).split(b"\0")[:-1]


def _count(number: bytes) -> int | None:
    return int(number) if number.isdigit() else None


_HEADER = re.compile(rb"([0-9a-f]{40,64}) ([0-9a-f]{40,64})\n")
Pair = tuple[str, str]


def changes_between(repository: Repository, pairs: Sequence[Pair]) -> dict[Pair, list[FileChange]]:
    """What differs between the two fingerprints of each pair; without the pairs of which git has forgotten a tree."""
    trees = {pair: (tree_of(pair[0]), tree_of(pair[1])) for pair in pairs}
    asked = sorted({pair for pair in trees.values() if pair[0] != pair[1]})
    if not asked:
        return {pair: [] for pair in pairs}
    lines = "".join(f"{base} {now}\n" for base, now in asked).encode()
    words = (*DIFFED, "--stdin", "-z", "--raw", "--numstat", "--no-renames", "--", ":(top)", *GENERATED)
    try:
        with objects_of(repository, asked[0][0]) as env:
            found = _parsed(repository.git(*words, stdin=lines, env=env))
    except GitError:
        return {}
    return {pair: found.get(both, []) for pair, both in trees.items()}


_HEAD_LINE = re.compile(rb"[0-9a-f]{40,64} [0-9a-f]{40,64}")
_MOST_READ = 32 << 20


def patches_between(repository: Repository, pairs: Sequence[Pair], most: int) -> dict[Pair, tuple[bytes, bool]]:
    """The patch of each pair up to `most` bytes, and whether there is more; without the pairs that git knows no more
    of, and all by one git: a run has many iterations."""
    trees = {pair: (tree_of(pair[0]), tree_of(pair[1])) for pair in pairs}
    asked = sorted({pair for pair in trees.values() if pair[0] != pair[1]})
    found: dict[Pair, tuple[bytes, bool]] = {}
    if asked:
        lines = "".join(f"{base} {now}\n" for base, now in asked).encode()
        words = (*PATCH, "--stdin", "--", ":(top)", *GENERATED)
        try:
            with (
                objects_of(repository, asked[0][0]) as env,
                started(repository.root, *words, stdin=lines, env=env) as git,
            ):
                found = _parted(iter(git.read, b""), most)
        except (GitError, CutOff):
            return {}
    return {pair: found.get(both, (b"", False)) for pair, both in trees.items()}


def _parted(chunks: Iterator[bytes], most: int) -> dict[Pair, tuple[bytes, bool]]:
    """A line of two names is a header: in a patch every line begins with a sign or a word of git's."""
    found: dict[Pair, tuple[bytes, bool]] = {}
    kept, size, read, rest, pair = bytearray(), 0, 0, b"", ("", "")
    for chunk in chunks:
        read += len(chunk)
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if _HEAD_LINE.fullmatch(line):
                found[pair] = bytes(kept), size > len(kept)
                base, now = line.decode().split(" ")
                pair, kept, size = (base, now), bytearray(), 0
                continue
            size += len(line) + 1
            if size <= most:
                kept += line + b"\n"
        if read > _MOST_READ:
            size += 1
            break
    found[pair] = bytes(kept), size > len(kept)
    return found


def _parsed(output: bytes) -> dict[Pair, list[FileChange]]:
    found: dict[Pair, list[FileChange]] = {}
    changes: list[FileChange] = []
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
            changes.append(FileChange(statuses.get(path, "M"), shown(path), _count(added), _count(deleted)))
    return found
