"""How is a branch on another machine moved? From where we know it to be, and with the user's own ways of pushing."""

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext

from msgspec import Struct

from ralph.core.text import clean, one_line
from ralph.files import hold
from ralph.processes.answers import AskedProgram, seconds_left
from ralph.repository.git import Answer, Repository, environment, refusal, settled
from ralph.repository.worktrees import common_folder

PUSH_PATIENCE = 300.0


class Remote(Struct, frozen=True):
    """A branch on another machine that is the target. `ref` is what we last knew of it."""

    name: str
    branch: str

    @property
    def ref(self) -> str:
        return f"refs/remotes/{self.name}/{self.branch}"

    def fetch(self, repository: Repository, below: str = "", patience: float = 1.0) -> None:
        """Learns what the target is there now, and the branches whose names begin with `below`. One at a time: two
        gits that move the same refs are in each other's way. A push may be, too, and a remote may be away: then it is
        tried again for `patience` seconds."""
        deadline, pause = time.monotonic() + patience, 0.1
        while (answer := self._fetched(repository, below)).code:
            is_race = "cannot lock ref" in answer.error
            if time.monotonic() > deadline or (patience <= 1.0 and not is_race):
                raise refusal(("fetch",), answer, f"cannot fetch {self.branch} from {self.name}")
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _fetched(self, repository: Repository, below: str) -> Answer:
        specs = [f"+refs/heads/{self.branch}:{self.ref}"]
        specs += [f"+refs/heads/{below}*:refs/remotes/{self.name}/{below}*"] if below else []
        with _fetching_alone(repository):
            return _with_the_users_own(repository, "fetch", "-q", "--no-tags", "--prune", self.name, *specs)

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

    def push(self, repository: Repository, new: str, old: str, items: Mapping[str, str]) -> Answer:
        """Moves the target, and the branch of each item with it, all or nothing, and only if all are what we think.
        A lease on a ref that does not move would only be compared with what the server said at the beginning: so the
        items' branches move too. `items`: branch, and the commit that it has there, or nothing."""
        refs = {self.branch: old, **items}
        leases = [f"--force-with-lease=refs/heads/{name}:{known}" for name, known in refs.items()]
        specs = [f"{new}:refs/heads/{name}" for name in refs]
        return _with_the_users_own(repository, "push", "-q", "--atomic", *leases, self.name, *specs)

    def push_branch(self, repository: Repository, branch: str, new: str, old: str) -> Answer:
        """Moves one branch there, only if it is what we think; `old` is nothing for one that is not there."""
        lease = f"--force-with-lease=refs/heads/{branch}:{old}"
        return _with_the_users_own(repository, "push", "-q", lease, self.name, f"{new}:refs/heads/{branch}")

    def drop(self, repository: Repository, items: Mapping[str, str]) -> None:
        """Removes branches of items that have landed, where they are what we left there."""
        if items:
            leases = [f"--force-with-lease=refs/heads/{name}:{known}" for name, known in items.items()]
            _with_the_users_own(repository, "push", "-q", *leases, self.name, *(f":refs/heads/{n}" for n in items))


@contextmanager
def _fetching_alone(repository: Repository) -> Iterator[None]:
    path = os.path.join(common_folder(repository.root), "ralph-fetch.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        hold(lock, path, left=seconds_left)
        yield
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
        AskedProgram.start(("git", "-C", repository.root, *words), told | own) as git,
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
    said = " · ".join(line for line in own if line) or refusal(("push",), answer).message.partition(": ")[2]
    return one_line(clean(said), 300)
