"""How is the state after each iteration kept, and brought back? As commits under `refs/ralph/<run>/`, beside the user's
branches; nothing that is saved nowhere is ever overwritten. And what changed between two of them? A list of files, or a
patch, read no further than it is wanted."""

import codecs
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ralph.core.model import FileChange
from ralph.core.text import listed, one_line
from ralph.errors import UserError
from ralph.files import open_file
from ralph.repository.git import CLOSED, RALPH, Answer, GitError, Repository, objects_of, refusal, started
from ralph.repository.index import CACHES, LIBRARIES, PrivateIndex, files_below, head_of, shown, tree_of

_LOOKED_AT = 1 << 20  # bytes of a file, for its line ends
_UNSAVED, _MOST_UNSAVED = "Not-saved", 1000  # trailers, which git itself reads back
BEFORE_REWIND = "before-rewind-"
RESUMED = "resumed"


class Saved(Struct, frozen=True):
    """One checkpoint. `name` is the number of its iteration (0: before the first), or `before-rewind-<k>`."""

    name: str
    commit: str
    tree: str


class Rewound(Struct, frozen=True):
    """What a rewind did. `kept_as` is the ref of the state before it, `missed` what could not be made as it was."""

    files: int
    kept_as: str
    missed: tuple[str, ...] = ()


class FileBefore(Struct, frozen=True):
    """What a file was like before a rewind, as far as git does not keep it."""

    mode: int
    has_crlf: bool


class Checkpoints:
    """The saved states of one run."""

    def __init__(self, repository: Repository, run_id: str) -> None:
        self.repository = repository
        self.run_id = run_id
        self._last: tuple[str, str] | None = None  # fingerprint and commit of the latest one made here

    def save(self, number: int, fingerprint: str, unsaved: Sequence[str] = ()) -> str:
        """Keeps the state of a fingerprint as checkpoint `number`; an unchanged state is the same commit again. What is
        `unsaved` in it is named there, for one who rewinds to it."""
        trailers = [f"{_UNSAVED}: {one_line(name, 4096)}" for name in unsaved[:_MOST_UNSAVED]]
        said = "\n".join((f"iteration {number} of run {self.run_id}", *(("", *trailers) if trailers else ())))
        commit = self._commit(fingerprint, said, first=number == 0)
        self._point(str(number), commit)
        self._last = (fingerprint, commit)
        return commit

    def hold(self, fingerprint: str, number: int) -> None:
        """Keeps the state in which a run goes on after iteration `number`, unless a checkpoint does: the next one will
        be made of its objects, and an agent may tidy the repository before that. It is that iteration's own checkpoint
        where a sudden end has left none."""
        saved = self.all()
        if str(number) not in {one.name for one in saved}:
            self.save(number, fingerprint)
        elif tree_of(fingerprint) not in {one.tree for one in saved}:
            self._point(RESUMED, self._commit(fingerprint, f"run {self.run_id} goes on"))

    def all(self) -> list[Saved]:
        """Every checkpoint, oldest first."""
        words = ("for-each-ref", "--format=%(refname) %(objectname) %(tree)", f"refs/ralph/{self.run_id}/")
        out = self.repository.git(*words, env=CLOSED)
        rows = [line.split(" ") for line in out.decode().splitlines()]
        saved = [Saved(name.rpartition("/")[2], commit, tree) for name, commit, tree in rows]
        numbered = [one for one in saved if one.name.removeprefix(BEFORE_REWIND).isdigit()]
        return sorted(numbered, key=lambda one: (not one.name.isdigit(), int(one.name.removeprefix(BEFORE_REWIND))))

    def around(self, number: int) -> tuple[str, str]:
        """The commits before and after iteration `number`: what lies between them is what it changed."""
        after = self._find(number)
        earlier = [one for one in self._numbered() if int(one.name) < number]
        if not earlier:
            raise UserError(f"there is no checkpoint before {number} in run {self.run_id}", "iterations begin at 1")
        return earlier[-1].commit, after.commit

    def ends(self) -> tuple[str, str]:
        """The commits before the first iteration and after the last."""
        numbered = self._numbered()
        if not numbered:
            raise UserError(f"run {self.run_id} has no checkpoints here", "were they made in another repository?")
        return numbered[0].commit, numbered[-1].commit

    def rewind(self, number: int, index: PrivateIndex, by_filters: bool = True) -> Rewound:
        """Makes all files that git does not ignore what they were at checkpoint `number`. HEAD, branch and the user's
        index stay as they are. The present state is saved first; what cannot be saved is not overwritten."""
        target = self._find(number)
        index.tree(whole=True)
        # Files that git ignores, in places that the checkpoint needs, it would overwrite: they must be saved.
        words = ("diff-index", "--cached", "-z", "--name-only", "--diff-filter=D", target.tree)
        missing = index.git(*words).split(b"\0")[:-1]
        index.take(sorted({found for path in missing for found in self._in_the_way_of(path)}))
        now = index.tree(whole=True)
        if index.left_out:
            raise UserError(
                f"cannot rewind: git cannot save {index.left_out[0]} first",
                "make it readable, or tell git to ignore it",
            )
        changed = self._changes(now, target)
        before = self._as_they_are(changed)
        nested = index.nested
        kept_as = self._keep(now)
        try:
            index.check_out(tree_of(now), target.tree, by_filters)
        except GitError as error:
            raise UserError(
                f"cannot rewind to checkpoint {number} of run {self.run_id}: {error.message}",
                f"move away what stands in the way; the present state is saved as {kept_as}",
            ) from None
        missed = [f"what is inside repositories of their own: {listed(nested)}"] if nested else []
        trailers = f"--format=%(trailers:key={_UNSAVED},valueonly)"
        asked = ("rev-list", "-1", "--encoding=UTF-8", trailers, target.commit)
        _, *named = self.repository.git(*asked, env=CLOSED).splitlines()
        if unsaved := [name for name in map(shown, named) if name and name not in nested]:
            missed.append(f"what was too large to be saved, unreadable or a repository of its own: {listed(unsaved)}")
        if others := self._written_otherwise(changed):
            missed.append(f"not byte for byte, but as git's attributes and filters write them: {listed(others)}")
        missed += self._what_git_does_not_keep(before, changed)
        if not by_filters:
            missed.append("git's settings at the start of this run are not known, so filters were not applied")
        return Rewound(len(changed), kept_as, tuple(missed))

    def _as_they_are(self, files: Iterable[bytes]) -> dict[bytes, FileBefore]:
        """Those of the files that are there now."""
        found = {}
        for path in files:
            with suppress(OSError), open(open_file(self._place(path)), "rb") as file:
                found[path] = FileBefore(os.fstat(file.fileno()).st_mode, b"\r\n" in file.read(_LOOKED_AT))
        return found

    def _what_git_does_not_keep(self, before: Mapping[bytes, FileBefore], files: Mapping[bytes, bytes]) -> list[str]:
        """Gives files the permissions back that they had until now, and says what they or their line ends were not."""
        back = [path for path, name in files.items() if name]
        gone = [path for path in back if path not in before]
        may_differ = self._converted(back) | {path for path, seen in before.items() if seen.has_crlf}
        other_ends = []
        for path in back:
            with suppress(OSError), open(open_file(self._place(path)), "rb") as file:
                if path in before:
                    mode, kept = os.fstat(file.fileno()).st_mode, before[path].mode & 0o666
                    os.fchmod(file.fileno(), kept | (kept & 0o444) >> 2 if mode & 0o100 else kept)
                if path in may_differ and b"\r\n" not in (text := file.read(_LOOKED_AT)) and b"\n" in text:
                    other_ends.append(shown(path))
        names = [shown(path) for path in gone]
        missed = [f"permissions, other than to be executable, of what was gone: {listed(names)}"] if names else []
        if other_ends:
            missed.append(f"line ends, which may have been CR LF until git changed them: {listed(other_ends)}")
        return missed

    def _converted(self, paths: list[bytes]) -> set[bytes]:
        """Those of the files whose line ends git changes when it takes them: nobody knows any more what they were."""
        if not paths:
            return set()
        words = ("check-attr", "-z", "--stdin", "text", "eol")
        said = self.repository.git(*words, stdin=b"\0".join([*paths, b""]), env=CLOSED).split(b"\0")
        told = {(path, name): value for path, name, value in zip(said[::3], said[1::3], said[2::3], strict=False)}
        setting = self.repository.ask("config", "--get", "core.autocrlf", env=CLOSED).out.strip().lower()
        unsaid = b"auto" if setting not in (b"", b"false", b"no", b"off", b"0") else b"unset"

        def is_converted(path: bytes) -> bool:
            text, eol = (told.get((path, name), b"unspecified") for name in (b"text", b"eol"))
            if text == b"unspecified":
                text = unsaid if eol == b"unspecified" else b"set"
            return text != b"unset"

        return {path for path in paths if is_converted(path)}

    def _place(self, path: bytes) -> str:
        return os.path.join(self.repository.root, os.fsdecode(path))

    def _written_otherwise(self, files: Mapping[bytes, bytes]) -> tuple[str, ...]:
        """Those of the files that are not what their objects are. A line end may have been changed, or more."""
        root = os.fsencode(self.repository.root)
        named = [(path, os.path.join(root, path)) for path, name in files.items() if name]
        there = [path for path, place in named if os.path.isfile(place) and not os.path.islink(place)]
        if not there:
            return ()
        # From the root on, whose own name may have a line end in it. In quotes, which git reads as C does.
        asked = b"".join(
            b'"./%b"\n' % re.sub(rb'["\\\r\n]', lambda one: b"\\%03o" % ord(one[0]), path) for path in there
        )
        names = self.repository.git("hash-object", "--no-filters", "--stdin-paths", stdin=asked, env=CLOSED).split()
        return tuple(shown(path) for path, name in zip(there, names, strict=True) if name != files[path])

    def _in_the_way_of(self, path: bytes) -> Iterator[bytes]:
        """The file or link at this place or on the way to it, or all files of a folder there."""
        parts = path.split(b"/")
        root = os.fsencode(self.repository.root)
        for depth in range(1, len(parts) + 1):
            here = b"/".join(parts[:depth])
            place = os.path.join(root, here)
            if not os.path.isdir(place) or os.path.islink(place):
                if os.path.lexists(place):
                    yield here
                return
        for below, _ in files_below(place, frozenset()):
            if b".git" in below.split(b"/"):
                raise _own_repository(path)
            yield os.path.join(path, below)

    def _changes(self, now: str, target: Saved) -> dict[bytes, bytes]:
        """The files that will change, and the object of each that will be one. None may be a submodule that gives way
        to a file: git would remove it whole."""
        words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", tree_of(now), target.tree)
        out = self.repository.git(*words, env=CLOSED)
        *parts, _ = out.split(b"\0")
        changes: dict[bytes, bytes] = {}
        for row, path in zip(parts[::2], parts[1::2], strict=True):
            if row.startswith(b":160000") and not row.startswith((b":160000 160000", b":160000 000000")):
                raise _own_repository(path)
            _, mode, _, name, _ = row.split(b" ")
            changes[path] = name if mode.startswith(b"100") else b""
        return changes

    def _keep(self, fingerprint: str) -> str:
        """The ref that holds this state: a checkpoint that equals it, or a new one."""
        saved = self.all()
        tree = tree_of(fingerprint)
        same = next((one for one in saved if one.tree == tree), None)
        if same:
            return f"refs/ralph/{self.run_id}/{same.name}"
        count = sum(not one.name.isdigit() for one in saved)
        name = f"{BEFORE_REWIND}{count + 1}"
        return self._point(name, self._commit(fingerprint, f"before a rewind of run {self.run_id}"))

    def _commit(self, fingerprint: str, message: str, first: bool = False) -> str:
        head = head_of(fingerprint)
        known, parent = self._last or ("", "")
        if known and (tree_of(known), head_of(known)) == (tree_of(fingerprint), head):
            return parent
        if not parent and not first:
            parent = next((one.commit for one in reversed(self._numbered())), "")
        # HEAD as a parent keeps the agent's own commits alive, even those that it drops later.
        parents = [one for one in (parent, head if head != head_of(known) else "") if one]
        text = message.encode("utf-8", "replace").replace(b"\0", b"")
        words = [word for one in dict.fromkeys(parents) for word in ("-p", one)]
        made = self.repository.git("commit-tree", tree_of(fingerprint), *words, stdin=text or b"\n", env=RALPH | CLOSED)
        return made.decode().strip()

    def _point(self, name: str, commit: str) -> str:
        ref = f"refs/ralph/{self.run_id}/{name}"
        words = ("-c", "core.logAllRefUpdates=false", "update-ref", "--no-deref", ref, commit)
        try:
            self.repository.git(*words, env=CLOSED)
        except GitError as error:
            if "File exists" not in error.message:
                raise
            from ralph.repository.worktrees import heal_refs

            heal_refs(self.repository.root, ref)  # of a git that was killed: no other process writes this ref
            self.repository.git(*words, env=CLOSED)
        return ref

    def _numbered(self) -> list[Saved]:
        return [one for one in self.all() if one.name.isdigit()]

    def _find(self, number: int) -> Saved:
        saved = self._numbered()
        found = next((one for one in saved if one.name == str(number)), None)
        if found:
            return found
        if not saved:
            raise UserError(f"run {self.run_id} has no checkpoints here", "were they made in another repository?")
        raise UserError(f"run {self.run_id} has no checkpoint {number}", f"it has {saved[0].name} to {saved[-1].name}")


def _own_repository(path: bytes) -> UserError:
    return UserError(f"cannot rewind: {shown(path)} is a repository of its own now", "move it away first")


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
        while chunk := git.read():
            yield chunk
    if git.code > 0:
        raise refusal(("diff-tree",), Answer(git.code, b"", git.error))


def changed_files(repository: Repository, base: str, now: str) -> list[FileChange]:
    """Every file that differs between `base` and `now`; a moved one is deleted here and added there."""
    words = (*DIFFED, "-z", "--raw", "--numstat", "--no-renames", tree_of(base), tree_of(now), "--")
    with objects_of(repository, tree_of(base)) as env:
        return _parsed(repository.git(*words, env=env))["", ""]


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


_TWO_NAMES = rb"([0-9a-f]{40,64}) ([0-9a-f]{40,64})"
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
        except GitError:
            return {}
    return {pair: found.get(both, (b"", False)) for pair, both in trees.items()}


def _parted(chunks: Iterator[bytes], most: int) -> dict[Pair, tuple[bytes, bool]]:
    """A line of two names is a header: in a patch every line begins with a sign or a word of git's."""
    header, found = re.compile(_TWO_NAMES), dict[Pair, tuple[bytes, bool]]()
    kept, size, read, pair = bytearray(), 0, 0, ("", "")
    begun: list[bytes] = []  # the pieces of a line that is not whole yet
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
            if size <= most:
                kept += line + b"\n"
        if read > _MOST_READ:
            size += 1
            break
    found[pair] = bytes(kept), size > len(kept)
    return found


def _parsed(output: bytes) -> dict[Pair, list[FileChange]]:
    """What was told of each pair; before the first of them, of the only one."""
    changes: list[FileChange] = []
    found: dict[Pair, list[FileChange]] = {("", ""): changes}
    statuses: dict[bytes, str] = {}
    parts, names = iter(output.split(b"\0")), re.compile(_TWO_NAMES + rb"\n")
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
            lines = [int(count) if count.isdigit() else None for count in counts]  # of a binary file there are none
            changes.append(FileChange(statuses.get(path, "M"), shown(path), *lines))
    return found
