"""What may land? The candidate is the merge of target and branches as one commit, made without any working tree; once
it has passed, the target moves to exactly that commit, and only if nobody has moved it since. A branch on another
machine moves in the same way, from where we know it to be, with the user's own ways of pushing.

Every step may be repeated and none has to be remembered: whatever was killed half-way, *landed* means that a branch is
in the history of the target, and that is asked of git.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Literal

from msgspec import Struct

from ralph.core.backlog import Conflict
from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.files import hold, read_given, remove_tree
from ralph.processes.program import AskedProgram, seconds_left
from ralph.repository.git import (
    RALPH,
    Answer,
    Repository,
    commit_of,
    environment,
    git_version,
    is_killed,
    refusal,
    settled,
    shared_folder,
)
from ralph.repository.index import Leaf, shown, tree_with
from ralph.repository.worktrees import PACKING, STALE, heal_refs, unlock

OLDEST = (2, 38)
MOST_FILES = 2000
MOST_SAID = 2000

TickList = Callable[[Mapping[str, bytes], Collection[str]], Mapping[str, bytes]]


class Branch(Struct, frozen=True):
    """An item's work, as it is to land. `files` are those that it changes; `closing` is said of it in the message."""

    key: str
    tip: str
    title: str
    files: tuple[str, ...] = ()
    closing: str = ""


class Merge(Struct, frozen=True):
    """What comes of two commits: a tree, and where they conflict, if they do."""

    tree: str
    conflict: Conflict | None = None


class Candidate(Struct, frozen=True, kw_only=True):
    """What would land on `base`. `conflicts` cannot be merged with it, `empty` change nothing; whoever conflicts only
    with another one that is tried is named nowhere, and comes the next time."""

    base: str
    commit: str = ""
    tried: tuple[Branch, ...] = ()
    conflicts: dict[str, Conflict] = {}
    empty: tuple[str, ...] = ()


class Reserved(Struct, frozen=True):
    """What no branch may change: the list, whose ticks are made here from the target's own copy, and the settings.
    `lists` are files or folders, `settings` files."""

    lists: tuple[str, ...]
    settings: tuple[str, ...]
    tick: TickList


def refuse_old_git(folder: str) -> None:
    if (version := git_version(folder)) < OLDEST:
        wanted, found = (".".join(map(str, numbers)) for numbers in (OLDEST, version))
        raise UserError(f"this needs git {wanted} or newer; here is git {found or '?'}", "upgrade git")


def unlanded(repository: Repository, target: str, tips: Collection[str]) -> set[str]:
    """Those of the commits that are not in the history of the target."""
    if not tips:
        return set()
    asked = "".join(f"{tip}\n" for tip in tips) + f"^{target}\n"
    out = repository.git("rev-list", "--stdin", stdin=asked.encode())
    return {*tips} & {*out.decode().split()}


def tips_apart(repository: Repository, target: str, refs: Collection[str]) -> dict[str, str]:
    """Those of the refs that have something which is not in the history of the target, and where they are."""
    if not refs:
        return {}
    words = ("for-each-ref", f"--no-merged={target}", "--format=%(objectname) %(refname)", "--", *refs)
    lines = os.fsdecode(repository.git(*words)).splitlines()
    return {name: tip for tip, _, name in (line.partition(" ") for line in lines) if name in refs}


def changed_files(repository: Repository, target: str, tip: str) -> tuple[str, ...]:
    """The files that a branch changes, since it left the target; `**` where they are too many to name."""
    out = repository.git("diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", f"{target}...{tip}")
    names = tuple(os.fsdecode(name) for name in out.split(b"\0") if name)
    return names if len(names) <= MOST_FILES else ("**",)


def is_landing_of(repository: Repository, commit: str, tip: str) -> bool:
    """Whether a commit is a candidate that brings this branch, tip and all."""
    answer = repository.ask("rev-list", "--parents", "--max-count=1", commit, "--")
    return not answer.code and tip in answer.out.decode().split()[2:]


def contribution(repository: Repository, tip: str, landed: str) -> tuple[str, str] | None:
    """What a branch brought that landed as a commit, alone or with others: where it had left the target, and its tip.
    None where the commits are not here."""
    answer = repository.ask("merge-base", f"{landed}^1", tip)
    return (answer.out.decode().strip(), tip) if not answer.code else None


def merged(repository: Repository, ours: str, theirs: str) -> Merge:
    """The merge of two commits, which touches no file and no index."""
    words = ("merge-tree", "--write-tree", "--name-only", "--messages", "-z", ours, theirs)
    answer = repository.ask(*words)
    if answer.code not in (0, 1):
        raise refusal(words, answer)
    tree, *parts = answer.out.split(b"\0")
    if answer.code == 0:
        return Merge(tree.decode())
    end = parts.index(b"") if b"" in parts else len(parts)
    said = b"".join(part for part in parts[end + 1 :] if part.endswith(b"\n"))
    files = tuple(dict.fromkeys(os.fsdecode(name) for name in parts[:end]))
    return Merge(tree.decode(), Conflict(files[:MOST_FILES], clean(said.decode("utf-8", "replace"))[:MOST_SAID]))


def candidate(repository: Repository, base: str, branches: Sequence[Branch], kept: Reserved, work: str) -> Candidate:
    """The one commit that brings as many of the branches as go together, in their order."""
    ours, tree = base, _tree_of(repository, base)
    own = _leaves(repository, base, (*kept.lists, *kept.settings))
    last = branches[-1].key if branches else ""
    tried: list[Branch] = []
    conflicts: dict[str, Conflict] = {}
    empty: list[str] = []
    for branch in branches:
        theirs = _undone(repository, branch, own, kept)
        merge = merged(repository, ours, theirs)
        if merge.conflict:
            alone = merged(repository, base, theirs) if tried else merge
            if alone.conflict:
                conflicts[branch.key] = alone.conflict
        elif merge.tree == tree:
            empty.append(branch.key)
        else:
            tried.append(branch)
            tree = merge.tree
            ours = _commit(repository, tree, (ours, theirs)) if branch.key != last else ours
    if not tried:
        return Candidate(base=base, conflicts=conflicts, empty=tuple(empty))
    tree = _ticked(repository, tree, own, kept, [branch.key for branch in tried])
    parents = (base, *(branch.tip for branch in tried))
    commit = joined(repository, tree, parents, _message(tried, work))
    return Candidate(base=base, commit=commit, tried=tuple(tried), conflicts=conflicts, empty=tuple(empty))


def _undone(repository: Repository, branch: Branch, own: Mapping[bytes, Leaf], kept: Reserved) -> str:
    """The branch without its changes of the list and the settings: they count for nothing, and must not conflict."""
    roots = (*kept.lists, *kept.settings)
    if not any(_is_below(name, roots) for name in branch.files):
        return branch.tip
    theirs = _leaves(repository, branch.tip, roots)
    leaves = {path: own.get(path) for path in {*theirs, *own} if theirs.get(path) != own.get(path)}
    tree = tree_with(repository, branch.tip, leaves)
    return _commit(repository, tree, (branch.tip,))


def _is_below(name: str, roots: Sequence[str]) -> bool:
    return name == "**" or any(name == root or name.startswith(f"{root}/") for root in roots)


def _ticked(repository: Repository, tree: str, own: Mapping[bytes, Leaf], kept: Reserved, keys: Sequence[str]) -> str:
    lists = {path: leaf for path, leaf in own.items() if _is_below(os.fsdecode(path), kept.lists)}
    if not lists:
        return tree
    contents = {os.fsdecode(path): repository.git("cat-file", "blob", leaf[1]) for path, leaf in lists.items()}
    leaves: dict[bytes, Leaf | None] = {}
    for name, data in kept.tick(contents, keys).items():
        path = os.fsencode(name)
        blob = repository.git("hash-object", "-w", "--stdin", stdin=data).decode().strip()
        leaves[path] = (lists[path][0], blob)
    return tree_with(repository, tree, leaves) if leaves else tree


def _leaves(repository: Repository, commit: str, roots: Sequence[str]) -> dict[bytes, Leaf]:
    """The files at or below these paths, as a commit has them."""
    if not roots:
        return {}
    out = repository.git("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", commit, "--", *roots)
    found: dict[bytes, Leaf] = {}
    for line in out.split(b"\0")[:-1]:
        about, _, path = line.partition(b"\t")
        mode, _, name = about.split()
        found[path] = (mode, name.decode())
    return found


def _tree_of(repository: Repository, commit: str) -> str:
    return repository.git("rev-parse", f"{commit}^{{tree}}").decode().strip()


def _commit(repository: Repository, tree: str, parents: Sequence[str], message: str = "a step on the way") -> str:
    words, data = _committing(tree, parents, message)
    return repository.git(*words, stdin=data, env=RALPH).decode().strip()


def _committing(tree: str, parents: Sequence[str], message: str) -> tuple[list[str], bytes]:
    words = [word for parent in dict.fromkeys(parents) for word in ("-p", parent)]
    return ["commit-tree", tree, *words], message.encode("utf-8", "replace").replace(b"\0", b"")


def _message(tried: Sequence[Branch], work: str) -> str:
    if len(tried) == 1:
        lines = [one_line(tried[0].title, 100), ""]
    else:
        keys = one_line(", ".join(branch.key for branch in tried), 60)
        lines = [f"Land {len(tried)} items: {keys}", "", *(f"- {one_line(branch.title, 100)}" for branch in tried), ""]
    closing = [branch.closing for branch in tried if branch.closing]
    items = [f"Ralph-Item: {branch.key}" for branch in tried]
    # In a paragraph of its own: beside it git would not take the last one for trailers.
    return "\n".join([*lines, *([*closing, ""] if closing else []), *items, f"Ralph-Work: {work}", ""])


Moved = Literal["moved", "lost"]


def advance(repository: Repository, ref: str, new: str, old: str) -> Moved:
    """Compare and swap. `lost`: somebody else has moved the target. A lock that a killed git has left looks like that
    by its exit code, so the target itself is asked, and the lock is removed once nobody can be holding it."""
    deadline = time.monotonic() + 5 * STALE
    words = ("update-ref", "--no-deref", "--create-reflog", "-m", "ralph: land", ref, new, old)
    while True:
        answer = repository.ask(*words)
        if not answer.code:
            return "moved"
        now = commit_of(repository.root, ref)
        if now == new:
            return "moved"
        if now != old:
            return "lost"
        was_locked = "File exists" in answer.error  # by a lock that may just have been taken away
        is_locked = unlock(os.path.join(shared_folder(repository), f"{ref}.lock")) or was_locked
        if time.monotonic() > deadline or not (is_killed(answer) or is_locked):
            raise refusal(words, answer, f"cannot move {ref}")
        time.sleep(0.01)


def on_top_of(repository: Repository, tip: str, message: str) -> str:
    """A commit that changes nothing: a branch that has moved to it is no longer what others think it is."""
    return _commit(repository, _tree_of(repository, tip), (tip,), message)


def drop_branches(repository: Repository, tips: Mapping[str, str]) -> None:
    """Removes branches that are still at these commits. Nobody else writes them: a lock is what a killed git left."""
    here = {name: tip for name, tip in tips.items() if commit_of(repository.root, f"refs/heads/{name}") == tip}
    if here and not _dropped(repository, here):
        heal_refs(repository.root, *(f"refs/heads/{name}" for name in here))
        for name, tip in here.items():  # one of them may have moved, or be gone: the others go all the same
            _dropped(repository, {name: tip})


def _dropped(repository: Repository, tips: Mapping[str, str]) -> bool:
    lines = "".join(f"delete refs/heads/{name} {tip}\n" for name, tip in tips.items())
    return not repository.ask("update-ref", "--no-deref", "--stdin", stdin=lines.encode()).code


def markers_in(repository: Repository, commit: str, files: Sequence[str]) -> tuple[str, ...]:
    """Those of the files in which marks of a conflict were left."""
    if not files:
        return ()
    words = ("grep", "-l", "-z", "--full-name", "-I", "-E", "^(<<<<<<<|>>>>>>>) ", commit, "--", *files)
    answer = repository.ask("--literal-pathspecs", *words)
    names = [name.partition(b":")[2] for name in answer.out.split(b"\0") if name]
    return tuple(shown(name) for name in names)


def joined(repository: Repository, tree: str, parents: Sequence[str], message: str) -> str:
    """A merge of commits whose tree is known, in the user's name, if git knows it without guessing; else in ralph's."""
    words, data = _committing(tree, parents, message)
    answer = repository.ask("-c", "user.useConfigOnly=true", *words, stdin=data)
    return _commit(repository, tree, parents, message) if answer.code else answer.out.decode().strip()


PUSH_PATIENCE = 300.0


class Remote(Struct, frozen=True):
    """A branch on another machine that is the target. `ref` is what we last knew of it."""

    name: str
    branch: str

    @property
    def ref(self) -> str:
        return f"refs/remotes/{self.name}/{self.branch}"

    def fetch(self, repository: Repository, below: str = "", patience: float = 1.0, age: float = 0.0) -> None:
        """Learns what the target is there now, and the branches whose names begin with `below`. One at a time: two
        gits that move the same refs are in each other's way. A push may be, too, and a worktree that is just being
        made; and a remote may be away: then it is tried again for `patience` seconds. Where somebody here has asked for
        the target within the last `age` seconds, that will do."""
        specs = [f"+refs/heads/{self.branch}:{self.ref}"]
        specs += [f"+refs/heads/{below}*:refs/remotes/{self.name}/{below}*"] if below else []
        began, pause = time.monotonic(), 0.1
        while True:
            with _fetching_alone(repository) as last:
                if age and last.is_of(self.ref, age):
                    return
                answer = _with_the_users_own(repository, "fetch", "-q", *_ONLY_THESE, "--prune", self.name, *specs)
                if not answer.code:
                    last.note(self.ref)
                    return
            if "couldn't find remote ref" in answer.error:
                hint = f"push it there first: git push {self.name} HEAD:refs/heads/{self.branch}"
                raise UserError(f"{self.name} has no branch {self.branch}", hint)
            is_race = "cannot lock ref" in answer.error or "bad object worktrees/" in answer.error
            if time.monotonic() - began > max(patience, _LONGEST_RACE * is_race) or (patience <= 1.0 and not is_race):
                raise refusal(("fetch",), answer, f"cannot fetch {self.branch} from {self.name}")
            _remove_half_made_worktrees(repository)
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def known(self, repository: Repository, names: Collection[str]) -> dict[str, str]:
        """What these branches are there; nothing for those that are not."""
        words = ("ls-remote", self.name, *(f"refs/heads/{name}" for name in names))
        answer = _with_the_users_own(repository, *words)
        if answer.code:
            raise refusal(words, answer, f"cannot ask {self.name} for its branches")
        found = dict.fromkeys(names, "")
        for line in answer.out.decode("utf-8", "replace").splitlines():
            commit, _, ref = line.partition("\t")
            found[ref.removeprefix("refs/heads/")] = commit
        return {name: found[name] for name in names}

    def last_known(self, repository: Repository, names: Collection[str]) -> dict[str, str]:
        """What these branches were there when somebody here last asked."""
        return {name: commit_of(repository.root, f"refs/remotes/{self.name}/{name}") for name in names}

    def push(
        self, repository: Repository, new: str, old: str, items: Mapping[str, str], *, removes: bool = True
    ) -> Answer:
        """Moves the target and removes the branch of each item with it, all or nothing, and only if all are what we
        think. A lease on a ref that stays as it is would only be compared with what the server said at the beginning:
        so the items' branches go, or, where the server `removes` none or has none, move too. `items`: branch, and the
        commit that it has there, or nothing."""
        leases = [
            f"--force-with-lease=refs/heads/{name}:{known}" for name, known in {self.branch: old, **items}.items()
        ]
        to = {self.branch: new, **{name: "" if known and removes else new for name, known in items.items()}}
        specs = [f"{commit}:refs/heads/{name}" for name, commit in to.items()]
        return _with_the_users_own(repository, "push", "-q", "--atomic", *leases, self.name, *specs)

    def push_branch(self, repository: Repository, branch: str, new: str, old: str) -> Answer:
        """Moves one branch there, only if it is what we think; `old` is nothing for one that is not there. Git takes
        for known there what the other side's branches are now: where the target has moved on to what is not here, and
        the branch is new, it would send all that was ever committed, unless it asks what they have in common."""
        asks = () if old else ("-c", "push.negotiate=true")
        lease = f"--force-with-lease=refs/heads/{branch}:{old}"
        return _with_the_users_own(repository, *asks, "push", "-q", lease, self.name, f"{new}:refs/heads/{branch}")

    def drop(self, repository: Repository, items: Mapping[str, str]) -> None:
        """Removes branches of items that have landed, where they are what we left there."""
        if items:
            leases = [f"--force-with-lease=refs/heads/{name}:{known}" for name, known in items.items()]
            _with_the_users_own(repository, "push", "-q", *leases, self.name, *(f":refs/heads/{n}" for n in items))


# Nothing but the refs that are named: no tags, no submodules, no record for `git pull`, and no packing beside a loop.
_ONLY_THESE = ("--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance")


_LONGEST_RACE = 15.0  # seconds


def _remove_half_made_worktrees(repository: Repository) -> None:
    """What a git has left that was killed while it made one: until it is gone nothing can be fetched."""
    place = os.path.join(shared_folder(repository), "worktrees")
    for name in os.listdir(place) if os.path.isdir(place) else ():
        head = os.path.join(place, name, "HEAD")
        with suppress(OSError):
            if time.time() - os.stat(head).st_mtime > PACKING and not read_given(head, 100).strip(b"0\n"):
                remove_tree(os.path.join(place, name))


class LastFetch(Struct, frozen=True):
    """Which target was last asked for in a clone, and when: in the file by which one waits for the other."""

    fd: int

    def is_of(self, ref: str, age: float) -> bool:
        since = time.time() - os.fstat(self.fd).st_mtime
        return 0 <= since < age and os.pread(self.fd, 4096, 0) == os.fsencode(ref)

    def note(self, ref: str) -> None:
        with suppress(OSError):  # the disk is full: then the next one asks
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, os.fsencode(ref), 0)


@contextmanager
def _fetching_alone(repository: Repository) -> Iterator[LastFetch]:
    path = os.path.join(shared_folder(repository), "ralph-fetch.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        hold(lock, path, left=seconds_left)
        yield LastFetch(lock)
    finally:
        os.close(lock)


def _with_the_users_own(repository: Repository, *words: str) -> Answer:
    """Git with the user's hooks: what they keep elsewhere (large files) must reach the remote, too."""
    fixed = settled()
    if fixed:
        fixed.refuse_other_ways()
    told = environment() | {"LC_ALL": "C.UTF-8"}
    with (
        fixed.as_it_was() if fixed else nullcontext({}) as own,
        AskedProgram(("git", "-C", repository.root, *words), told | own) as git,
    ):
        try:
            out = git.output(PUSH_PATIENCE)
        except TimeoutError:
            return Answer(1, b"", f"fatal: no answer within {PUSH_PATIENCE:.0f} seconds")
        return Answer(git.code, out, git.error)


def refused_because(answer: Answer) -> str:
    """Why a remote did not take a push, in its own words where it has some."""
    lines = [line.strip() for line in answer.error.splitlines()]
    own = [line.removeprefix("remote:").strip() for line in lines if line.startswith("remote:")]
    own = [line for line in own if line] or [line.rpartition("(")[2].rstrip(")") for line in lines if line[:1] == "!"]
    said = " · ".join(dict.fromkeys(own)) or refusal(("push",), answer).message.partition(": ")[2]
    return one_line(clean(said), 300)
