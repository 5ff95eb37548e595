"""Checkpoints: the state after each iteration as a commit under `refs/ralph/<run>/`, how to restore one, and diffs.

Restoring never overwrites a file that is not saved somewhere. A diff is between two states: fingerprints, trees or
commits. Nothing that the repository's settings name is run.
"""

import codecs
import os
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from ralph.core.model import FileChange, Fingerprint
from ralph.core.proof import GIT_ATTRIBUTES
from ralph.core.text import listed, one_line
from ralph.errors import UserError
from ralph.files import temporary_folder, write_file
from ralph.git.client import Git, GitError, GitResult, git_error, look_at_objects
from ralph.git.index import CACHES, LIBRARIES, PrivateIndex, display_path, files_below
from ralph.git.locks import update_refs

UNSAVED_TRAILER, MAX_UNSAVED = "Not-saved", 1000  # names in the message of a checkpoint
BEFORE_REWIND = "before-rewind-"
RESUMED = "resumed"


class Saved(Struct, frozen=True):
    """One checkpoint. `name` is the number of its iteration (0: before the first), or `before-rewind-<k>`."""

    name: str
    commit: str
    tree: str


class Rewound(Struct, frozen=True):
    """The result of a rewind. `kept_as` is the ref of the state before it, `missed` what could not be restored."""

    files: int
    kept_as: str
    missed: tuple[str, ...] = ()


class Checkpoints:
    def __init__(self, git: Git, run_id: str) -> None:
        self.git = git
        self.run_id = run_id
        self._last: tuple[Fingerprint, str] | None = None  # of the latest checkpoint made by this object

    def save(self, number: int, fingerprint: Fingerprint, unsaved: Sequence[str] = ()) -> str:
        """Save the state with this fingerprint as checkpoint `number`; an unchanged state gets the same commit again.

        The commit's message names the files that are not in it, `unsaved`.
        """
        trailers = [f"{UNSAVED_TRAILER}: {one_line(name, 4096)}" for name in unsaved[:MAX_UNSAVED]]
        message = "\n".join((f"iteration {number} of run {self.run_id}", *(("", *trailers) if trailers else ())))
        commit = self._commit(fingerprint, message, first=number == 0)
        self._point(str(number), commit)
        self._last = (fingerprint, commit)
        return commit

    def save_resumed(self, fingerprint: Fingerprint, number: int) -> str:
        """Save the state in which a run resumes after iteration `number`, unless a checkpoint already has it. Return
        the commit with this state.

        Otherwise garbage collection could remove its objects. If the run was killed before iteration `number` got its
        checkpoint, this state becomes that checkpoint.
        """
        saved = self.all()
        if str(number) not in {checkpoint.name for checkpoint in saved}:
            return self.save(number, fingerprint)
        if same := next((checkpoint for checkpoint in saved if checkpoint.tree == fingerprint.files), None):
            return same.commit
        commit = self._commit(fingerprint, f"run {self.run_id} resumes")
        self._point(RESUMED, commit)
        return commit

    def all(self) -> list[Saved]:
        """Return every checkpoint, oldest first."""
        args = ("for-each-ref", "--format=%(refname) %(objectname) %(tree)", f"refs/ralph/{self.run_id}/")
        rows = [line.split(" ") for line in self.git.run(*args).decode().splitlines()]
        saved = [Saved(name.rpartition("/")[2], commit, tree) for name, commit, tree in rows]
        numbered = [checkpoint for checkpoint in saved if checkpoint.name.removeprefix(BEFORE_REWIND).isdigit()]
        return sorted(
            numbered,
            key=lambda checkpoint: (not checkpoint.name.isdigit(), int(checkpoint.name.removeprefix(BEFORE_REWIND))),
        )

    def around(self, number: int) -> tuple[str, str]:
        """Return the commits before and after iteration `number`."""
        after = self._find(number)
        earlier = [checkpoint for checkpoint in self._iterations() if int(checkpoint.name) < number]
        if not earlier:
            raise UserError(f"there is no checkpoint before {number} in run {self.run_id}", "iterations begin at 1")
        return earlier[-1].commit, after.commit

    def ends(self) -> tuple[str, str]:
        """Return the commits before the first iteration and after the last."""
        saved = self._iterations()
        return saved[0].commit, saved[-1].commit

    def rewind(self, number: int, index: PrivateIndex) -> Rewound:
        """Restore all files that git does not ignore from checkpoint `number`.

        HEAD, the branch and the user's index stay. The present state is saved first; if a file cannot be saved, nothing
        is restored. As with `git checkout`, the only permission that is restored is whether a file is executable.
        """
        target = self._find(number)
        index.tree(whole=True)
        # Ignored files in places that the checkpoint needs would be overwritten: they must be saved.
        missing = index.run("diff-index", "--cached", "-z", "--name-only", "--diff-filter=D", target.tree)
        index.add(sorted({obstacle for path in missing.split(b"\0")[:-1] for obstacle in self._in_the_way_of(path)}))
        index.add_setup_files(target.tree)
        now = index.tree(whole=True)
        if index.left_out:
            raise UserError(
                f"cannot rewind: git cannot save {index.left_out[0]} first",
                "make it readable, or tell git to ignore it",
            )
        changed = self._changes(now, target)
        nested = index.nested
        kept_as = self._keep(now)
        try:
            index.check_out(now.files, target.tree)
            if cleaned := self._find_cleaned(changed, index):
                index.smudge(cleaned)
        except GitError as error:
            raise UserError(
                f"cannot rewind to checkpoint {number} of run {self.run_id}: {error.message}",
                f"move away what is in the way; the present state is saved as {kept_as}",
            ) from None
        return Rewound(len(changed), kept_as, tuple(self._not_in_checkpoint(target, nested)))

    def _find_cleaned(self, files: Mapping[bytes, bytes], index: PrivateIndex) -> list[bytes]:
        """Return the files whose objects were written by a filter, such as that of git-lfs.

        For files that changed during the run a checkpoint has the real content. For other files it has the object that
        the user's git made, perhaps with a filter.
        """
        paths = b"\0".join([*(path for path, name in files.items() if name), b""])
        rows = self.git.run("check-attr", "-z", "--stdin", "filter", stdin=paths).split(b"\0")
        values = zip(rows[::3], rows[2::3], strict=False)
        filtered = [path for path, value in values if value not in (b"unspecified", b"unset")]
        added = index.added_objects(filtered) if filtered else set()
        return [path for path in filtered if (path, files[path]) in added]

    def _not_in_checkpoint(self, target: Saved, nested: Sequence[str]) -> Iterator[str]:
        """Yield reports of files and repositories that the checkpoint does not contain."""
        if nested:
            yield f"what is inside nested repositories: {listed(nested)}"
        trailers = f"--format=%(trailers:key={UNSAVED_TRAILER},valueonly)"
        _, *named = self.git.run("rev-list", "-1", "--encoding=UTF-8", trailers, target.commit).splitlines()
        if unsaved := [name for name in map(display_path, named) if name and name not in nested]:
            yield f"what was too large to be saved, unreadable or a nested repository: {listed(unsaved)}"

    def _in_the_way_of(self, path: bytes) -> Iterator[bytes]:
        """Yield the files that a file at this path would replace: the one at or above this path, or all files of a
        folder."""
        parts = path.split(b"/")
        for depth in range(1, len(parts) + 1):
            here = b"/".join(parts[:depth])
            place = self.git.place(here)
            if not os.path.isdir(place) or os.path.islink(place):
                if os.path.lexists(place):
                    yield here
                return
        for below, _ in files_below(place, frozenset()):
            if b".git" in below.split(b"/"):
                raise _nested_repository(path)
            yield os.path.join(path, below)

    def _changes(self, now: Fingerprint, target: Saved) -> dict[bytes, bytes]:
        """Return the paths that will change, each with the object that will be its content; b"" if it won't be a file.

        A submodule in the place of a file is an error: git would remove it completely.
        """
        out = self.git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", now.files, target.tree)
        *parts, _ = out.split(b"\0")
        changes: dict[bytes, bytes] = {}
        for row, path in zip(parts[::2], parts[1::2], strict=True):
            if row.startswith(b":160000") and not row.startswith((b":160000 160000", b":160000 000000")):
                raise _nested_repository(path)
            _, mode, _, name, _ = row.split(b" ")
            changes[path] = name if mode.startswith(b"100") else b""
        return changes

    def _keep(self, fingerprint: Fingerprint) -> str:
        """Return a ref that keeps this state: a checkpoint that equals it, or a new one."""
        saved = self.all()
        same = next((checkpoint for checkpoint in saved if checkpoint.tree == fingerprint.files), None)
        if same:
            return f"refs/ralph/{self.run_id}/{same.name}"
        count = sum(not checkpoint.name.isdigit() for checkpoint in saved)
        commit = self._commit(fingerprint, f"before a rewind of run {self.run_id}")
        return self._point(f"{BEFORE_REWIND}{count + 1}", commit)

    def _commit(self, fingerprint: Fingerprint, message: str, first: bool = False) -> str:
        head = fingerprint.head
        before, parent = self._last or (Fingerprint(), "")
        if parent and (before.files, before.head) == (fingerprint.files, head):
            return parent
        if not parent and not first:
            parent = next((checkpoint.commit for checkpoint in reversed(self.all()) if checkpoint.name.isdigit()), "")
        # HEAD as a parent keeps the agent's own commits alive, even those that it drops later.
        parents = [commit for commit in (parent, head if head != before.head else "") if commit]
        return self.git.commit_tree(fingerprint.files, parents, message)

    def _point(self, name: str, commit: str) -> str:
        ref = f"refs/ralph/{self.run_id}/{name}"
        update_refs(self.git, f"update {ref} {commit}")
        return ref

    def _iterations(self) -> list[Saved]:
        """Return the checkpoints of iterations, oldest first; an error if there are none."""
        saved = [checkpoint for checkpoint in self.all() if checkpoint.name.isdigit()]
        if not saved:
            raise UserError(
                f"run {self.run_id} has no checkpoints here", "run this in the repository in which the run worked"
            )
        return saved

    def _find(self, number: int) -> Saved:
        saved = self._iterations()
        for checkpoint in saved:
            if checkpoint.name == str(number):
                return checkpoint
        raise UserError(f"run {self.run_id} has no checkpoint {number}", f"it has {saved[0].name} to {saved[-1].name}")


def _nested_repository(path: bytes) -> UserError:
    return UserError(f"cannot rewind: {display_path(path)} is a nested repository now", "move it away first")


# Git prints one line for a larger file ("Binary files differ") instead of reading it into memory.
DIFFED = ("-c", "core.bigFileThreshold=16m", "diff-tree", "-r", "--no-color", "--no-ext-diff", "--no-textconv")
PATCH = (*DIFFED, "--patch", "--find-renames", "--src-prefix=a/", "--dst-prefix=b/")
GENERATED = tuple(f":(top,exclude,glob)**/{folder}/**" for folder in sorted(CACHES | LIBRARIES))
MAX_PATCHES = 32 << 20  # bytes read for all pairs together

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
    args = (*PATCH, base, now, "--", ":(top)", *without)
    with look_at_objects(git, base) as look, look.stream(*args) as process:
        while chunk := process.read():
            yield chunk
    if process.code > 0:
        raise git_error(("diff-tree",), GitResult(process.code, b"", process.error))


def diff_without_context(git: Git, base: str, now: str) -> str:
    """Return the patch without unchanged lines around the changes. Each hunk names the function it is in."""
    with look_at_objects(git, base) as look, temporary_folder() as folder:
        attributes = f"{folder}/attributes"
        write_file(attributes, GIT_ATTRIBUTES.encode())
        pinned = ("-c", f"core.attributesFile={attributes}", "-c", "core.quotePath=false", *PATCH, "-U0")
        out = look.run(*pinned, base, now, "--", ":(top)", *GENERATED)
        return out.decode("utf-8", "surrogateescape")


def changed_files(git: Git, base: str, now: str) -> list[FileChange]:
    """Return every file that differs between `base` and `now`; a moved file counts as deleted and added."""
    args = (*DIFFED, "-z", "--raw", "--numstat", "--no-renames", base, now, "--")
    with look_at_objects(git, base) as look:
        return _parse_changes(look.run(*args))


def changed_paths(git: Git, base: str, now: str) -> list[bytes]:
    """Return the paths that differ between `base` and `now`, or all paths if `base` is empty."""
    command = (*DIFFED, "--no-renames", base) if base else ("ls-tree", "-r", "--full-tree")
    with look_at_objects(git, now) as look:
        return look.run(*command, "-z", "--name-only", now).split(b"\0")[:-1]


def changes_between(git: Git, pairs: Sequence[Pair]) -> dict[Pair, list[FileChange]]:
    """Return what differs between the two states of each pair; empty if git no longer has one of the trees."""
    parts = _diff_pairs(git, pairs, *DIFFED, "-z", "--raw", "--numstat", "--no-renames")
    return {pair: _parse_changes(part) for pair, part in parts.items()}


def patches_between(git: Git, pairs: Sequence[Pair], limit: int) -> dict[Pair, tuple[bytes, bool]]:
    """Return the first `limit` bytes of the patch of each pair, and whether there is more.

    The result is empty if git no longer has one of the trees.
    """
    texts = _diff_pairs(git, pairs, *PATCH)
    ends = {pair: text.rfind(b"\n", 0, limit) + 1 if len(text) > limit else len(text) for pair, text in texts.items()}
    return {pair: (text[: ends[pair]], ends[pair] < len(text)) for pair, text in texts.items()}


_HEADER = re.compile(rb"(?:^|\0)([0-9a-f]{40,64}) ([0-9a-f]{40,64})\n", re.MULTILINE)


def _diff_pairs(git: Git, pairs: Sequence[Pair], *args: str) -> dict[Pair, bytes]:
    """Run one `git diff-tree` for all pairs: a run has many iterations.

    Return what git printed for each pair; nothing at all if git no longer has one of the trees.
    """
    same = dict.fromkeys(pairs, b"")
    differing = sorted({pair for pair in pairs if pair[0] != pair[1]})
    if not differing:
        return same
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
        return {}
    return {} if process.code > 0 else same | _split_pairs(bytes(output))


def _split_pairs(output: bytes) -> dict[Pair, bytes]:
    """Split the output of `diff-tree --stdin` at its headers: lines of two hashes, which no patch contains."""
    _, *parts = _HEADER.split(output)
    rows = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {(base.decode(), now.decode()): text for base, now, text in rows}


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
