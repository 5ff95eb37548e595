"""Checkpoints: the state after each iteration as a commit under `refs/ralph/<run>/`, and how to restore one.

Nothing is overwritten that is saved nowhere. Also what changed between two states: a list of files, or a patch that is
read only as far as it is needed.
"""

import codecs
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ralph.core.model import FileChange
from ralph.core.proof import GIT_ATTRIBUTES
from ralph.core.text import listed, one_line
from ralph.errors import UserError
from ralph.files import open_file, temporary_folder, write_file
from ralph.git.client import RALPH_IDENTITY, Git, GitError, GitResult, git_error
from ralph.git.index import CACHES, LIBRARIES, PrivateIndex, display_path, files_below, head_of, tree_of
from ralph.git.locks import update_refs
from ralph.git.look import look_at_objects

MAX_READ_FOR_LINE_ENDS = 1 << 20  # bytes of a file
UNSAVED_TRAILER, MAX_UNSAVED = "Not-saved", 1000  # names in the message of a checkpoint
BEFORE_REWIND = "before-rewind-"
RESUMED = "resumed"


class Saved(Struct, frozen=True):
    """One checkpoint. `name` is the number of its iteration (0: before the first), or `before-rewind-<k>`."""

    name: str
    commit: str
    tree: str


class Rewound(Struct, frozen=True):
    """What a rewind did. `kept_as` is the ref of the state before it, `missed` what it could not restore."""

    files: int
    kept_as: str
    missed: tuple[str, ...] = ()


class FileBefore(Struct, frozen=True):
    """Mode and line ends of a file before a rewind, which git does not keep."""

    mode: int
    has_crlf: bool


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, git: Git, run_id: str) -> None:
        self.git = git
        self.run_id = run_id
        self._last: tuple[str, str] | None = None  # fingerprint and commit of the latest one made here

    def save(self, number: int, fingerprint: str, unsaved: Sequence[str] = ()) -> str:
        """Save the state of a fingerprint as checkpoint `number`; an unchanged state is the same commit again.

        The message names what is `unsaved` in it.
        """
        trailers = [f"{UNSAVED_TRAILER}: {one_line(name, 4096)}" for name in unsaved[:MAX_UNSAVED]]
        message = "\n".join((f"iteration {number} of run {self.run_id}", *(("", *trailers) if trailers else ())))
        commit = self._commit(fingerprint, message, first=number == 0)
        self._point(str(number), commit)
        self._last = (fingerprint, commit)
        return commit

    def hold(self, fingerprint: str, number: int) -> None:
        """Save the state in which a run resumes after iteration `number`, unless a checkpoint has it.

        Otherwise garbage collection could remove its objects. If a sudden end left iteration `number` without a
        checkpoint, this becomes it.
        """
        saved = self.all()
        if str(number) not in {one.name for one in saved}:
            self.save(number, fingerprint)
        elif tree_of(fingerprint) not in {one.tree for one in saved}:
            self._point(RESUMED, self._commit(fingerprint, f"run {self.run_id} resumes"))

    def all(self) -> list[Saved]:
        """Return every checkpoint, oldest first."""
        args = ("for-each-ref", "--format=%(refname) %(objectname) %(tree)", f"refs/ralph/{self.run_id}/")
        rows = [line.split(" ") for line in self.git.run(*args).decode().splitlines()]
        saved = [Saved(name.rpartition("/")[2], commit, tree) for name, commit, tree in rows]
        numbered = [one for one in saved if one.name.removeprefix(BEFORE_REWIND).isdigit()]
        return sorted(numbered, key=lambda one: (not one.name.isdigit(), int(one.name.removeprefix(BEFORE_REWIND))))

    def around(self, number: int) -> tuple[str, str]:
        """Return the commits before and after iteration `number`."""
        after = self._find(number)
        earlier = [one for one in self._iteration_checkpoints() if int(one.name) < number]
        if not earlier:
            raise UserError(f"there is no checkpoint before {number} in run {self.run_id}", "iterations begin at 1")
        return earlier[-1].commit, after.commit

    def ends(self) -> tuple[str, str]:
        """Return the commits before the first iteration and after the last."""
        numbered = self._iteration_checkpoints()
        if not numbered:
            raise UserError(f"run {self.run_id} has no checkpoints here", "were they made in another repository?")
        return numbered[0].commit, numbered[-1].commit

    def rewind(self, number: int, index: PrivateIndex) -> Rewound:
        """Restore all files that git does not ignore from checkpoint `number`.

        HEAD, branch and the user's index stay. The present state is saved first; files that cannot be saved are not
        overwritten.
        """
        target = self._find(number)
        index.tree(whole=True)
        # Ignored files in places that the checkpoint needs would be overwritten: they must be saved.
        missing = index.run("diff-index", "--cached", "-z", "--name-only", "--diff-filter=D", target.tree)
        index.take(sorted({found for path in missing.split(b"\0")[:-1] for found in self._in_the_way_of(path)}))
        now = index.tree(whole=True)
        if index.left_out:
            raise UserError(
                f"cannot rewind: git cannot save {index.left_out[0]} first",
                "make it readable, or tell git to ignore it",
            )
        changed = self._changes(now, target)
        before = self._read_before(changed)
        nested = index.nested
        kept_as = self._keep(now)
        try:
            index.check_out(tree_of(now), target.tree)
            if cleaned := self._find_cleaned(changed, index):
                index.smudge(cleaned)
        except GitError as error:
            raise UserError(
                f"cannot rewind to checkpoint {number} of run {self.run_id}: {error.message}",
                f"move away what is in the way; the present state is saved as {kept_as}",
            ) from None
        missed = [*self._not_in_checkpoint(target, nested), *self._not_byte_for_byte(changed)]
        missed += self._restore_modes(before, changed)
        return Rewound(len(changed), kept_as, tuple(missed))

    def _find_cleaned(self, files: Mapping[bytes, bytes], index: PrivateIndex) -> list[bytes]:
        """Return those of the files that have a filter, and whose objects it has made.

        A checkpoint has the real content of what the agent changed, and what git added of unchanged files.
        """
        attributes = self._attributes([path for path, name in files.items() if name], "filter")
        filtered = [path for (path, _), value in attributes.items() if value not in (b"unspecified", b"unset")]
        added = index.added_objects(filtered) if filtered else set()
        return [path for path in filtered if (path, files[path]) in added]

    def _not_in_checkpoint(self, target: Saved, nested: Sequence[str]) -> Iterator[str]:
        """Say what the checkpoint does not contain."""
        if nested:
            yield f"what is inside nested repositories: {listed(nested)}"
        trailers = f"--format=%(trailers:key={UNSAVED_TRAILER},valueonly)"
        _, *named = self.git.run("rev-list", "-1", "--encoding=UTF-8", trailers, target.commit).splitlines()
        if unsaved := [name for name in map(display_path, named) if name and name not in nested]:
            yield f"what was too large to be saved, unreadable or a nested repository: {listed(unsaved)}"

    def _read_before(self, files: Iterable[bytes]) -> dict[bytes, FileBefore]:
        """Return mode and line ends of those of the files that exist."""
        found = {}
        for path in files:
            with suppress(OSError), open(open_file(self._place(path)), "rb") as file:
                content = file.read(MAX_READ_FOR_LINE_ENDS)
                found[path] = FileBefore(os.fstat(file.fileno()).st_mode, b"\r\n" in content)
        return found

    def _restore_modes(self, before: Mapping[bytes, FileBefore], files: Mapping[bytes, bytes]) -> list[str]:
        """Give files the permissions back that they had until now; return what was lost of permissions, line ends."""
        restored = [path for path, name in files.items() if name]
        gone = [display_path(path) for path in restored if path not in before]
        may_differ = self._find_converted(restored) | {path for path, seen in before.items() if seen.has_crlf}
        other_ends = []
        for path in restored:
            with suppress(OSError), open(open_file(self._place(path)), "rb") as file:
                if path in before:
                    mode, kept = os.fstat(file.fileno()).st_mode, before[path].mode & 0o666
                    os.fchmod(file.fileno(), kept | (kept & 0o444) >> 2 if mode & 0o100 else kept)
                text = file.read(MAX_READ_FOR_LINE_ENDS) if path in may_differ else b""
                if b"\n" in text and b"\r\n" not in text:
                    other_ends.append(display_path(path))
        missed = [f"permissions, other than to be executable, of what was gone: {listed(gone)}"] if gone else []
        if other_ends:
            missed.append(f"line ends, which may have been CR LF until git changed them: {listed(other_ends)}")
        return missed

    def _find_converted(self, paths: list[bytes]) -> set[bytes]:
        """Return those of the files whose line ends git converts when it saves them."""
        if not paths:
            return set()
        values = self._attributes(paths, "text", "eol")
        setting = self.git.try_run("config", "--get", "core.autocrlf").out.strip().lower()
        default = b"auto" if setting not in (b"", b"false", b"no", b"off", b"0") else b"unset"

        def is_converted(path: bytes) -> bool:
            text, eol = (values.get((path, name), b"unspecified") for name in (b"text", b"eol"))
            if text == b"unspecified":
                text = default if eol == b"unspecified" else b"set"
            return text != b"unset"

        return {path for path in paths if is_converted(path)}

    def _attributes(self, paths: Sequence[bytes], *names: str) -> dict[tuple[bytes, bytes], bytes]:
        """Return the values of git's attributes by path and name."""
        rows = self.git.run("check-attr", "-z", "--stdin", *names, stdin=b"\0".join([*paths, b""])).split(b"\0")
        return {(path, name): value for path, name, value in zip(rows[::3], rows[1::3], rows[2::3], strict=False)}

    def _place(self, path: bytes) -> str:
        return os.path.join(self.git.root, os.fsdecode(path))

    def _not_byte_for_byte(self, files: Mapping[bytes, bytes]) -> Iterator[str]:
        """Say which of the files differ from their objects, because of line ends or filters."""
        root = os.fsencode(self.git.root)
        named = [(path, os.path.join(root, path)) for path, name in files.items() if name]
        there = [path for path, place in named if os.path.isfile(place) and not os.path.islink(place)]
        if not there:
            return
        # Relative, because the root's own name may contain a line end; quoted as git reads it.
        asked = b"".join(
            b'"./%b"\n' % re.sub(rb'["\\\r\n]', lambda one: b"\\%03o" % ord(one[0]), path) for path in there
        )
        hashes = self.git.run("hash-object", "--no-filters", "--stdin-paths", stdin=asked).split()
        others = [display_path(path) for path, name in zip(there, hashes, strict=True) if name != files[path]]
        if others:
            yield f"not byte for byte, but as git's attributes and filters write them: {listed(others)}"

    def _in_the_way_of(self, path: bytes) -> Iterator[bytes]:
        """Yield the file or link at this path or on the way to it, or all files of a folder there."""
        parts = path.split(b"/")
        root = os.fsencode(self.git.root)
        for depth in range(1, len(parts) + 1):
            here = b"/".join(parts[:depth])
            place = os.path.join(root, here)
            if not os.path.isdir(place) or os.path.islink(place):
                if os.path.lexists(place):
                    yield here
                return
        for below, _ in files_below(place, frozenset()):
            if b".git" in below.split(b"/"):
                raise _nested_repository(path)
            yield os.path.join(path, below)

    def _changes(self, now: str, target: Saved) -> dict[bytes, bytes]:
        """Return the files that will change, with the object of each that will be a file.

        A submodule in place of a file is refused: git would remove it completely.
        """
        out = self.git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", tree_of(now), target.tree)
        *parts, _ = out.split(b"\0")
        changes: dict[bytes, bytes] = {}
        for row, path in zip(parts[::2], parts[1::2], strict=True):
            if row.startswith(b":160000") and not row.startswith((b":160000 160000", b":160000 000000")):
                raise _nested_repository(path)
            _, mode, _, name, _ = row.split(b" ")
            changes[path] = name if mode.startswith(b"100") else b""
        return changes

    def _keep(self, fingerprint: str) -> str:
        """Return the ref that has this state: a checkpoint that equals it, or a new one."""
        saved = self.all()
        same = next((one for one in saved if one.tree == tree_of(fingerprint)), None)
        if same:
            return f"refs/ralph/{self.run_id}/{same.name}"
        count = sum(not one.name.isdigit() for one in saved)
        commit = self._commit(fingerprint, f"before a rewind of run {self.run_id}")
        return self._point(f"{BEFORE_REWIND}{count + 1}", commit)

    def _commit(self, fingerprint: str, message: str, first: bool = False) -> str:
        head = head_of(fingerprint)
        known, parent = self._last or ("", "")
        if known and (tree_of(known), head_of(known)) == (tree_of(fingerprint), head):
            return parent
        if not parent and not first:
            parent = next((one.commit for one in reversed(self._iteration_checkpoints())), "")
        # HEAD as a parent keeps the agent's own commits alive, even those that it drops later.
        parents = [one for one in (parent, head if head != head_of(known) else "") if one]
        text = message.encode("utf-8", "replace").replace(b"\0", b"")
        args = [word for one in dict.fromkeys(parents) for word in ("-p", one)]
        made = self.git.run("commit-tree", tree_of(fingerprint), *args, stdin=text or b"\n", env=RALPH_IDENTITY)
        return made.decode().strip()

    def _point(self, name: str, commit: str) -> str:
        ref = f"refs/ralph/{self.run_id}/{name}"
        update_refs(self.git, f"update {ref} {commit}")
        return ref

    def _iteration_checkpoints(self) -> list[Saved]:
        return [one for one in self.all() if one.name.isdigit()]

    def _find(self, number: int) -> Saved:
        saved = self._iteration_checkpoints()
        found = next((one for one in saved if one.name == str(number)), None)
        if found:
            return found
        if not saved:
            raise UserError(f"run {self.run_id} has no checkpoints here", "were they made in another repository?")
        raise UserError(f"run {self.run_id} has no checkpoint {number}", f"it has {saved[0].name} to {saved[-1].name}")


def _nested_repository(path: bytes) -> UserError:
    return UserError(f"cannot rewind: {display_path(path)} is a nested repository now", "move it away first")


# Git prints one line for a larger file ("Binary files differ") instead of reading it into memory.
DIFFED = ("-c", "core.bigFileThreshold=16m", "diff-tree", "-r", "--no-color", "--no-ext-diff", "--no-textconv")
PATCH = (*DIFFED, "--patch", "--find-renames", "--src-prefix=a/", "--dst-prefix=b/")
GENERATED = tuple(f":(top,exclude,glob)**/{folder}/**" for folder in sorted(CACHES | LIBRARIES))


def diff(git: Git, base: str, now: str, limit: int) -> str:
    """Return the patch from `base` to `now` (fingerprints, trees or commits), cut off after about `limit` characters.

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
    """Yield the whole patch, piece by piece. Git is stopped if the caller stops reading."""
    args = (*PATCH, tree_of(base), tree_of(now), "--", ":(top)", *without)
    with look_at_objects(git, tree_of(base)) as look, look.stream(*args) as process:
        while chunk := process.read():
            yield chunk
    if process.code > 0:
        raise git_error(("diff-tree",), GitResult(process.code, b"", process.error))


def diff_without_context(git: Git, base: str, now: str) -> str:
    """Return the patch without lines around the changes, each hunk with the function that git takes it to be in."""
    with look_at_objects(git, tree_of(base)) as look, temporary_folder() as folder:
        attributes = f"{folder}/attributes"
        write_file(attributes, GIT_ATTRIBUTES.encode())
        pinned = ("-c", f"core.attributesFile={attributes}", "-c", "core.quotePath=false", *PATCH, "-U0")
        return look.run(*pinned, tree_of(base), tree_of(now), "--", ":(top)", *GENERATED).decode(
            "utf-8", "surrogateescape"
        )


def changed_files(git: Git, base: str, now: str) -> list[FileChange]:
    """Return every file that differs between `base` and `now`; a moved one counts as deleted and added."""
    args = (*DIFFED, "-z", "--raw", "--numstat", "--no-renames", tree_of(base), tree_of(now), "--")
    with look_at_objects(git, tree_of(base)) as look:
        return _parse_changes(look.run(*args))["", ""]


EMPTY_TREES = {
    40: "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    64: "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}


def changed_paths(git: Git, base: str, now: str) -> list[bytes]:
    """Return the paths that differ between two fingerprints, trees or commits; an empty `base` is the empty tree."""
    before, after = tree_of(base), tree_of(now)
    args = (*DIFFED, "-z", "--name-only", "--no-renames", before or EMPTY_TREES[len(after)], after, "--")
    with look_at_objects(git, after) as look:
        return look.run(*args).split(b"\0")[:-1]


TWO_HASHES = rb"([0-9a-f]{40,64}) ([0-9a-f]{40,64})"
Pair = tuple[str, str]


def changes_between(git: Git, pairs: Sequence[Pair]) -> dict[Pair, list[FileChange]]:
    """Return what differs between the two fingerprints of each pair; nothing if git no longer has one of the trees."""
    trees, differing = _tree_pairs(pairs)
    if not differing:
        return {pair: [] for pair in pairs}
    args = (*DIFFED, "--stdin", "-z", "--raw", "--numstat", "--no-renames", "--", ":(top)", *GENERATED)
    try:
        with look_at_objects(git, differing[0][0]) as look:
            found = _parse_changes(look.run(*args, stdin=_pair_lines(differing)))
    except GitError:
        return {}
    return {pair: found.get(both, []) for pair, both in trees.items()}


MAX_PATCHES = 32 << 20  # bytes read for all pairs together


def patches_between(git: Git, pairs: Sequence[Pair], limit: int) -> dict[Pair, tuple[bytes, bool]]:
    """Return the first `limit` bytes of the patch of each pair, and whether there is more.

    One git for all of them: a run has many iterations. Nothing is returned if git no longer has one of the trees.
    """
    trees, differing = _tree_pairs(pairs)
    found: dict[Pair, tuple[bytes, bool]] = {}
    if differing:
        args = (*PATCH, "--stdin", "--", ":(top)", *GENERATED)
        try:
            with (
                look_at_objects(git, differing[0][0]) as look,
                look.stream(*args, stdin=_pair_lines(differing)) as process,
            ):
                found = _split_patches(iter(process.read, b""), limit)
        except GitError:
            return {}
    return {pair: found.get(both, (b"", False)) for pair, both in trees.items()}


def _tree_pairs(pairs: Sequence[Pair]) -> tuple[dict[Pair, Pair], list[Pair]]:
    """Return the trees of each pair of fingerprints, and the pairs of trees that differ."""
    trees = {pair: (tree_of(pair[0]), tree_of(pair[1])) for pair in pairs}
    return trees, sorted({pair for pair in trees.values() if pair[0] != pair[1]})


def _pair_lines(pairs: Sequence[Pair]) -> bytes:
    return "".join(f"{base} {now}\n" for base, now in pairs).encode()


def _split_patches(chunks: Iterator[bytes], limit: int) -> dict[Pair, tuple[bytes, bool]]:
    """Split the output of `diff-tree --stdin` at its headers: lines of two hashes, which no patch contains."""
    header, found = re.compile(TWO_HASHES), dict[Pair, tuple[bytes, bool]]()
    kept, size, read, pair = bytearray(), 0, 0, ("", "")
    begun: list[bytes] = []  # the pieces of an incomplete line
    for chunk in chunks:
        read += len(chunk)
        whole, ended, rest = chunk.rpartition(b"\n")
        lines = b"".join((*begun, whole)).split(b"\n") if ended else []
        begun = [] if ended else begun
        begun.append(rest)
        for line in lines:
            if header.fullmatch(line):
                found[pair] = bytes(kept), size > len(kept)
                base, now = line.decode().split(" ")
                pair, kept, size = (base, now), bytearray(), 0
                continue
            size += len(line) + 1
            if size <= limit:
                kept += line + b"\n"
        if read > MAX_PATCHES:
            size += 1
            break
    found[pair] = bytes(kept), size > len(kept)
    return found


def _parse_changes(output: bytes) -> dict[Pair, list[FileChange]]:
    """Parse `diff-tree --raw --numstat -z`: changes per pair of trees; ("", "") without `--stdin`."""
    changes: list[FileChange] = []
    found: dict[Pair, list[FileChange]] = {("", ""): changes}
    statuses: dict[bytes, str] = {}
    parts, names = iter(output.split(b"\0")), re.compile(TWO_HASHES + rb"\n")
    for part in parts:
        at = 0
        while header := names.match(part, at):
            at = header.end()
            statuses, changes = {}, []
            found[header[1].decode(), header[2].decode()] = changes
        part = part[at:]
        if part.startswith(b":"):
            statuses[next(parts)] = part[-1:].decode()
        elif part:
            *counts, path = part.split(b"\t", 2)
            lines = [int(count) if count.isdigit() else None for count in counts]  # none for a binary file
            changes.append(FileChange(statuses.get(path, "M"), display_path(path), *lines))
    return found
