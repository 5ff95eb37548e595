"""What changed between two states of a workspace: a list of files, or a patch that is read only as far as needed.

A state is a fingerprint, a tree or a commit. Nothing that the repository's settings name is run.
"""

import codecs
import re
from collections.abc import Iterator, Sequence

from ralph.core.model import FileChange
from ralph.core.proof import GIT_ATTRIBUTES
from ralph.files import temporary_folder, write_file
from ralph.git.client import Git, GitError, GitResult, git_error
from ralph.git.index import CACHES, LIBRARIES, display_path, tree_of
from ralph.git.look import look_at_objects

# Git prints one line for a larger file ("Binary files differ") instead of reading it into memory.
DIFFED = ("-c", "core.bigFileThreshold=16m", "diff-tree", "-r", "--no-color", "--no-ext-diff", "--no-textconv")
PATCH = (*DIFFED, "--patch", "--find-renames", "--src-prefix=a/", "--dst-prefix=b/")
GENERATED = tuple(f":(top,exclude,glob)**/{folder}/**" for folder in sorted(CACHES | LIBRARIES))
MAX_PATCHES = 32 << 20  # bytes read for all pairs together
EMPTY_TREES = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}

Pair = tuple[str, str]


def diff(git: Git, base: str, now: str, limit: int) -> str:
    """Return the patch from `base` to `now`, cut off after about `limit` characters.

    Caches and libraries are left out: they are not the work.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = ""
    for chunk in patch(git, base, now, GENERATED):
        text += decoder.decode(chunk)
        if len(text) >= limit:
            break
    return text


def patch(git: Git, base: str, now: str, without: tuple[str, ...] = ()) -> Iterator[bytes]:
    """Yield the whole patch in pieces. Git is stopped if the caller stops reading."""
    args = (*PATCH, tree_of(base), tree_of(now), "--", ":(top)", *without)
    with look_at_objects(git, tree_of(base)) as look, look.stream(*args) as process:
        while chunk := process.read():
            yield chunk
    if process.code > 0:
        raise git_error(("diff-tree",), GitResult(process.code, b"", process.error))


def diff_without_context(git: Git, base: str, now: str) -> str:
    """Return the patch without unchanged lines around the changes. Each hunk names the function it is in."""
    with look_at_objects(git, tree_of(base)) as look, temporary_folder() as folder:
        attributes = f"{folder}/attributes"
        write_file(attributes, GIT_ATTRIBUTES.encode())
        pinned = ("-c", f"core.attributesFile={attributes}", "-c", "core.quotePath=false", *PATCH, "-U0")
        out = look.run(*pinned, tree_of(base), tree_of(now), "--", ":(top)", *GENERATED)
        return out.decode("utf-8", "surrogateescape")


def changed_files(git: Git, base: str, now: str) -> list[FileChange]:
    """Return every file that differs between `base` and `now`; a moved file counts as deleted and added."""
    args = (*DIFFED, "-z", "--raw", "--numstat", "--no-renames", tree_of(base), tree_of(now), "--")
    with look_at_objects(git, tree_of(base)) as look:
        return _parse_changes(look.run(*args))


def changed_paths(git: Git, base: str, now: str) -> list[bytes]:
    """Return the paths that differ between `base` and `now`; an empty `base` is the empty tree."""
    before, after = tree_of(base), tree_of(now)
    args = (*DIFFED, "-z", "--name-only", "--no-renames", before or EMPTY_TREES[len(after)], after, "--")
    with look_at_objects(git, after) as look:
        return look.run(*args).split(b"\0")[:-1]


def changes_between(git: Git, pairs: Sequence[Pair]) -> dict[Pair, list[FileChange]]:
    """Return what differs between the two states of each pair; empty if git no longer has one of the trees."""
    trees, parts = _diff_pairs(git, pairs, *DIFFED, "-z", "--raw", "--numstat", "--no-renames")
    return {pair: _parse_changes(parts.get(both, b"")) for pair, both in trees.items()}


def patches_between(git: Git, pairs: Sequence[Pair], limit: int) -> dict[Pair, tuple[bytes, bool]]:
    """Return the first `limit` bytes of the patch of each pair, and whether there is more.

    The result is empty if git no longer has one of the trees.
    """
    trees, parts = _diff_pairs(git, pairs, *PATCH)
    return {pair: _cut_lines(parts.get(both, b""), limit) for pair, both in trees.items()}


_HEADER = re.compile(rb"(?:^|\0)([0-9a-f]{40,64}) ([0-9a-f]{40,64})\n", re.MULTILINE)


def _diff_pairs(git: Git, pairs: Sequence[Pair], *args: str) -> tuple[dict[Pair, Pair], dict[Pair, bytes]]:
    """Run one `git diff-tree` for all pairs: a run has many iterations.

    Return the trees of each pair, and what git printed for each pair of trees that differ. Both are empty if git no
    longer has one of the trees.
    """
    trees = {pair: (tree_of(pair[0]), tree_of(pair[1])) for pair in pairs}
    differing = sorted({both for both in trees.values() if both[0] != both[1]})
    if not differing:
        return trees, {}
    stdin = "".join(f"{base} {now}\n" for base, now in differing).encode()
    output = bytearray()
    try:
        with (
            look_at_objects(git, differing[0][0]) as look,
            look.stream(*args, "--stdin", "--", ":(top)", *GENERATED, stdin=stdin) as process,
        ):
            while len(output) < MAX_PATCHES and (chunk := process.read()):
                output += chunk
    except GitError:
        return {}, {}
    if process.code > 0:
        return {}, {}
    return trees, _split_pairs(bytes(output))


def _split_pairs(output: bytes) -> dict[Pair, bytes]:
    """Split the output of `diff-tree --stdin` at its headers: lines of two hashes, which no patch contains."""
    _, *parts = _HEADER.split(output)
    rows = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {(base.decode(), now.decode()): text for base, now, text in rows}


def _cut_lines(text: bytes, limit: int) -> tuple[bytes, bool]:
    """Return the whole lines within the first `limit` bytes, and whether there is more."""
    if len(text) <= limit:
        return text, False
    return text[: text.rfind(b"\n", 0, limit) + 1], True


def _parse_changes(output: bytes) -> list[FileChange]:
    """Parse the output of `diff-tree --raw --numstat -z` for one pair of trees."""
    changes: list[FileChange] = []
    statuses: dict[bytes, str] = {}
    parts = iter(output.split(b"\0"))
    for part in parts:
        if part.startswith(b":"):
            statuses[next(parts, b"")] = part[-1:].decode()
        elif part:
            *counts, path = part.split(b"\t", 2)
            lines = [int(count) if count.isdigit() else None for count in counts]  # None for a binary file
            changes.append(FileChange(statuses.get(path, "M"), display_path(path), *lines))
    return changes
