"""Does it land? Merges what is ready, checks exactly that, and moves the target to it: one landing from end to end."""

import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.backlog import Conflict, Red, Verdict
from ralph.errors import UserError
from ralph.repository import landing, worktrees
from ralph.repository.git import Repository, commit_of
from ralph.repository.landing import Branch, Candidate, Remote, Reserved, refused_because

LOCKED = (0.2, 0.5, 1.0, 2.0, 0.0)  # seconds to wait for a lock on the remote before it counts as left behind
RACES = 5  # so often somebody else may move the target while a candidate is checked

Check = Callable[[str], Red | None]
"""Runs one command in the gate's working tree; what went wrong, if it did."""


class LandingRequest(Struct, frozen=True, kw_only=True):
    """What is to land. `own` are the checks of single items; `conflicted` are files in which each had conflicts that
    its agent was to solve; `probed` are the branches of items at work."""

    branches: tuple[Branch, ...] = ()
    own: dict[str, tuple[str, ...]] = {}
    conflicted: dict[str, tuple[str, ...]] = {}
    probed: dict[str, str] = {}


class Gate(Struct, frozen=True, kw_only=True):
    """Where a work lands. `target` is a branch here, unless `remote` has it; `path` is the gate's own working tree, to
    be furnished when it is new; `branch_of` names the branch of an item; `await_charge` returns once the gate may push,
    where others might have taken it over meanwhile; `patience` is how long it waits for a remote that is away."""

    repository: Repository
    work: str
    target: str
    remote: Remote | None
    path: str
    checks: tuple[str, ...]
    kept: Reserved
    check: Check
    furnish: Callable[[], None]
    branch_of: Callable[[str], str]
    await_charge: Callable[[], None] = lambda: None
    patience: float = 1.0

    @property
    def ref(self) -> str:
        return self.remote.ref if self.remote else f"refs/heads/{self.target}"

    @property
    def shown(self) -> str:
        return f"{self.remote.name}/{self.remote.branch}" if self.remote else self.target

    def now(self) -> str:
        """The commit at which the target is."""
        if self.remote:
            self.remote.fetch(self.repository, self.branch_of(""), self.patience)
        found = commit_of(self.repository.root, self.ref)
        if not found:
            raise UserError(f"the target {self.shown} is gone", "put it back, then go on with `ralph resume`")
        return found

    def opened(self) -> Verdict:
        """Whether the target itself is green."""
        target = self.now()
        return Verdict(commit=target, red=self.tested(target, self.checks, tries=2))

    def land(self, request: LandingRequest) -> Verdict:
        """What came of it. May be repeated at any point, whatever an earlier one had done before it was killed."""
        asked = {branch.tip: branch for branch in request.branches}
        for _ in range(RACES):
            base = self.now()
            there = {*asked} - landing.unlanded(self.repository, base, asked)
            before = tuple(asked[tip].key for tip in there)
            wanted = [branch for branch in request.branches if branch.tip not in there]
            made = landing.candidate(self.repository, base, wanted, self.kept, self.work)
            tried = tuple(branch.key for branch in made.tried)
            seen = Verdict(tried=tried, landed=before, conflicts=made.conflicts, empty=made.empty)
            if not made.commit:
                return replace(seen, commit=base)
            red, stuck = self._judged(made, request)
            if red or stuck:
                return replace(seen, red=red, stuck=stuck)
            refused = self._moved(made)
            if refused:
                return replace(seen, stuck=refused)
            if refused is not None:
                probed = self._probed(made.commit, request.probed)
                return replace(seen, landed=(*before, *tried), commit=made.commit, probed=probed)
        return Verdict(stuck=f"{self.shown} was moved by somebody else {RACES} times while it was checked")

    def _judged(self, made: Candidate, request: LandingRequest) -> tuple[Red | None, str]:
        """What failed on the candidate; or that the target itself fails, which is the fault of nobody in it."""
        files = tuple({name for branch in made.tried for name in request.conflicted.get(branch.key, ())})
        if left := landing.markers_in(self.repository, made.commit, files):
            return Red("no marks of a conflict", f"they were left in {', '.join(left)}"), ""
        own = [command for branch in made.tried for command in request.own.get(branch.key, ())]
        red = self.tested(made.commit, (*self.checks, *own), tries=2 if len(made.tried) == 1 else 1)
        if red and len(made.tried) == 1 and red.check in self.checks:
            itself = self.tested(made.base, (red.check,), tries=1)
            if itself:
                return None, f"`{red.check}` fails on {self.shown} itself ({itself.ending})"
        return red, ""

    def tested(self, commit: str, commands: Sequence[str], tries: int) -> Red | None:
        """The first command that fails on this commit, each of them on exactly its files."""
        if worktrees.tree_at(self.repository, self.path, commit):
            self.furnish()
        for number, command in enumerate(dict.fromkeys(commands)):
            if number:
                worktrees.restore(self.path)
            for _ in range(tries):
                if not (red := self.check(command)):
                    break
                worktrees.restore(self.path)
            else:
                return red
        return None

    def _moved(self, made: Candidate) -> str | None:
        """Moves the target to what was checked: nothing where it is there, why it cannot be, None for a lost race."""
        if self.remote:
            return self._pushed(made, self.remote)
        if held := worktrees.holder_of(self.repository, self.target):
            return f"{self.target} is checked out in {held}, and a branch that is checked out is never moved"
        return "" if landing.advance(self.repository, self.ref, made.commit, made.base) == "moved" else None

    def _pushed(self, made: Candidate, remote: Remote) -> str | None:
        tips = {self.branch_of(branch.key): branch.tip for branch in made.tried}
        self.await_charge()
        items = remote.known(self.repository, tips)
        if foreign := [name for name, there in items.items() if not self._is_ours(there, tips[name])]:
            return f"{foreign[0]} on {remote.name} is not what was checked: somebody else works on it"
        for pause in LOCKED:
            answer = remote.push(self.repository, made.commit, made.base, items)
            now = self.now() if answer.code else made.commit
            if not landing.unlanded(self.repository, now, {made.commit}):  # the answer may have been lost on its way
                remote.drop(self.repository, dict.fromkeys(items, made.commit))
                return ""
            if now != made.base:
                return None
            if "lock" not in answer.error:
                break
            time.sleep(pause)  # somebody else is just pushing there, or was killed: they look alike
        return f"{remote.name} refuses {remote.branch}: {refused_because(answer)}"

    def _is_ours(self, there: str, tip: str) -> bool:
        """Whether an item's branch on the remote is what was checked. A push that was torn there may have moved it to
        a candidate of ours without moving the target."""
        return there in ("", tip) or landing.is_landing_of(self.repository, there, tip)

    def _probed(self, target: str, working: Mapping[str, str]) -> dict[str, Conflict]:
        """Which items at work will conflict with what has just landed."""
        places = ["refs/heads", *([f"refs/remotes/{self.remote.name}"] if self.remote else [])]
        refs = {f"{place}/{branch}": key for place in reversed(places) for key, branch in working.items()}
        tips = landing.tips_apart(self.repository, target, refs)
        own = {refs[ref]: tips[ref] for ref in refs if ref in tips}  # where there are both, what is here
        seen = {key: landing.merged(self.repository, target, tip).conflict for key, tip in own.items()}
        return {key: conflict for key, conflict in seen.items() if conflict}
