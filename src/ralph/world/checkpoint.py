"""How is the state after each iteration kept, and brought back? As commits under `refs/ralph/<run>/`, beside the user's
branches; nothing that is saved nowhere is ever overwritten."""

import os

from msgspec import Struct

from ralph.errors import UserError
from ralph.world.git import RALPH, GitError, Repository
from ralph.world.index import PrivateIndex, head_of, tree_of

BEFORE_REWIND = "before-rewind-"


class Saved(Struct, frozen=True):
    """One checkpoint. `name` is the number of its iteration (0: before the first), or `before-rewind-<k>`."""

    name: str
    commit: str
    tree: str


class Rewound(Struct, frozen=True):
    """What a rewind did. `kept_as` is the ref under which the state before it is found."""

    files: int
    kept_as: str


class Checkpoints:
    """The saved states of one run."""

    def __init__(self, repository: Repository, run_id: str) -> None:
        self.repository = repository
        self.run_id = run_id
        self._last: tuple[str, str] | None = None  # fingerprint and commit of the latest one made here

    def save(self, number: int, fingerprint: str, message: str = "") -> str:
        """Keeps the state of a fingerprint as checkpoint `number`; an unchanged state is the same commit again."""
        commit = self._commit(fingerprint, message or f"iteration {number} of run {self.run_id}", first=number == 0)
        self._point(str(number), commit)
        self._last = (fingerprint, commit)
        return commit

    def all(self) -> list[Saved]:
        """Every checkpoint, oldest first."""
        out = self.repository.git(
            "for-each-ref", "--format=%(refname) %(objectname) %(tree)", f"refs/ralph/{self.run_id}/"
        )
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

    def rewind(self, number: int, index: PrivateIndex) -> Rewound:
        """Makes all files that git does not ignore what they were at checkpoint `number`. HEAD, branch and the user's
        index stay as they are. The present state is saved first; what cannot be saved is not overwritten."""
        target = self._find(number)
        index.tree(whole=True)
        index.take(self._ignored_now(target, index))
        now = index.tree(whole=True)
        kept_as = self._keep(now)
        changed = self.repository.git("diff-tree", "-r", "-z", "--name-only", tree_of(now), target.tree).count(b"\0")
        try:
            index.git("read-tree", "-m", "-u", tree_of(now), target.tree)
        except GitError as error:
            raise UserError(
                f"cannot rewind to checkpoint {number} of run {self.run_id}: {error.message}",
                f"move away what stands in the way; the present state is saved as {kept_as}",
            ) from None
        return Rewound(changed, kept_as)

    def _ignored_now(self, target: Saved, index: PrivateIndex) -> list[bytes]:
        """Files of the checkpoint that git has been told to ignore since: they must be saved like all others."""
        words = ("diff-index", "--cached", "-z", "--name-only", "--diff-filter=D", target.tree)
        missing = index.git(*words).split(b"\0")[:-1]
        return [path for path in missing if self._is_file(path)]

    def _is_file(self, path: bytes) -> bool:
        """Whether a file or a link is at this very place, and not behind a link."""
        place = os.path.join(os.fsencode(self.repository.root), path)
        folder = os.path.dirname(place)
        is_folder = os.path.isdir(place) and not os.path.islink(place)
        return os.path.lexists(place) and not is_folder and os.path.realpath(folder) == folder

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
        parents = [parent, head if head != head_of(known) else ""]
        words = [word for one in parents if one for word in ("-p", one)]
        text = message.encode("utf-8", "replace").replace(b"\0", b"")
        made = self.repository.git(
            "-c", "i18n.commitEncoding=UTF-8", "commit-tree", "--no-gpg-sign", tree_of(fingerprint), *words,
            stdin=text or b"\n", env=RALPH,
        )  # fmt: skip
        return made.decode().strip()

    def _point(self, name: str, commit: str) -> str:
        ref = f"refs/ralph/{self.run_id}/{name}"
        self.repository.git("-c", "core.logAllRefUpdates=false", "update-ref", ref, commit)
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
