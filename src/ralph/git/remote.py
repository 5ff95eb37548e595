"""A target branch on a remote: fetch it, and push to it with the user's own hooks and settings.

ralph notices when a run changes git's settings, hooks or attributes, and refuses to push if the push settings changed.
"""

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.files import Stamp, locked, read_given, remove_tree, stamp_of
from ralph.git.client import Git, GitResult, GitTimeout, git_error
from ralph.git.locks import REMOTE_AWAY, STALE_PACKED_REFS

# Fetch only the named refs: no tags, no submodules. Write no record for `git pull`, and don't repack during a run.
FETCH_OPTIONS = ("--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance", "--prune")

# Seconds to retry a fetch: two gits that update the same refs, or a worktree that is being made, get in its way.
RACE_TIMEOUT = 15.0

# Hooks run what is in the project: npm scripts, pre-commit, linters. A sandboxed agent may have changed that, and a
# push runs outside the sandbox, because it needs the user's keys.
NO_HOOKS = ("-c", f"core.hooksPath={os.devnull}")


def skipped_push_hook(git: Git) -> str:
    """Return the notice for a push without the user's pre-push hook; empty if there is no such hook."""
    if not git.has_hook("pre-push"):
        return ""
    return "the pre-push hook is skipped: it would run code that the agent can change outside the sandbox"


class Remote(Struct, frozen=True):
    """A branch of a remote. `ref` points to the branch's commit at the last fetch.

    `runs_hooks` is False for the work of sandboxed agents: see `NO_HOOKS`.
    """

    name: str
    branch: str
    runs_hooks: bool = True

    @property
    def ref(self) -> str:
        return f"refs/remotes/{self.name}/{self.branch}"

    def fetch(self, git: Git, below: str = "", timeout: float = 0.0) -> None:
        """Fetch the target, and the branches whose names begin with `below`.

        Races with other gits are retried. An unreachable remote is retried for `timeout` seconds.
        """
        specs = [f"+refs/heads/{self.branch}:{self.ref}"]
        specs += [f"+refs/heads/{below}*:refs/remotes/{self.name}/{below}*"] if below else []
        away = replace(REMOTE_AWAY, timeout=max(timeout, RACE_TIMEOUT))
        began = time.monotonic()
        for is_last in away.tries():
            with locked(Path(git.common_dir), git.time_left):
                result = _run(git, "fetch", "-q", *FETCH_OPTIONS, self.name, *specs)
            if not result.code:
                return
            if "couldn't find remote ref" in result.error:
                hint = f"push it there first: git push {self.name} HEAD:refs/heads/{self.branch}"
                raise UserError(f"{self.name} has no branch {self.branch}", hint)
            is_race = "cannot lock ref" in result.error or "bad object worktrees/" in result.error
            if is_last or not (is_race or time.monotonic() - began < timeout):
                break
            _remove_half_made_worktrees(git)
        raise git_error(("fetch",), result, f"cannot fetch {self.branch} from {self.name}")

    def branch_tips(self, git: Git, names: Collection[str], timeout: float = 0.0) -> dict[str, str]:
        """Ask the remote for the commits of these branches; empty for a branch that it does not have.

        An unreachable remote is retried for `timeout` seconds.
        """
        args = ("ls-remote", self.name, *(f"refs/heads/{name}" for name in names))
        for _ in replace(REMOTE_AWAY, timeout=timeout).tries():
            result = _run(git, *args)
            if not result.code:
                break
        if result.code:
            raise git_error(args, result, f"cannot ask {self.name} for its branches")
        tips = dict.fromkeys(names, "")
        for line in result.out.decode("utf-8", "replace").splitlines():
            commit, _, ref = line.partition("\t")
            tips[ref.removeprefix("refs/heads/")] = commit
        return {name: tips[name] for name in names}

    def last_known(self, git: Git, names: Collection[str]) -> dict[str, str]:
        """Return the commit that each of these branches had at the last fetch."""
        return {name: git.resolve(f"refs/remotes/{self.name}/{name}") for name in names}

    def push(self, git: Git, new: str, old: str, branches: Mapping[str, str], *, removes: bool = True) -> GitResult:
        """Move the target from `old` to `new` and remove the branches of its tasks, in one transaction.

        `branches` maps each branch to the commit that the remote should have, or "". Nothing changes if one of them has
        moved. Git checks that only for refs that the push changes, so if the server doesn't allow removing branches
        (`removes` is False), the push moves them to `new` instead.
        """
        expected = {self.branch: old, **branches}
        leases = [f"--force-with-lease=refs/heads/{name}:{commit}" for name, commit in expected.items()]
        to = {self.branch: new, **{name: "" if tip and removes else new for name, tip in branches.items()}}
        specs = [f"{commit}:refs/heads/{name}" for name, commit in to.items()]
        return self._push(git, "-q", "--atomic", *leases, self.name, *specs)

    def push_branch(self, git: Git, branch: str, new: str, old: str) -> GitResult:
        """Move one branch of the remote from `old` to `new`; `old` is empty for a new branch.

        Negotiation keeps git from sending the whole history of a new branch if the remote's target is not known here.
        """
        negotiate = () if old else ("-c", "push.negotiate=true")
        lease = f"--force-with-lease=refs/heads/{branch}:{old}"
        return self._push(git, "-q", lease, self.name, f"{new}:refs/heads/{branch}", options=negotiate)

    def delete(self, git: Git, branches: Mapping[str, str]) -> None:
        """Delete merged branches from the remote if they are still at these commits."""
        if branches:
            leases = [f"--force-with-lease=refs/heads/{name}:{commit}" for name, commit in branches.items()]
            self._push(git, "-q", *leases, self.name, *(f":refs/heads/{name}" for name in branches))

    def _push(self, git: Git, *args: str, options: tuple[str, ...] = ()) -> GitResult:
        return _run(git, *(() if self.runs_hooks else NO_HOOKS), *options, "push", *args)


def _run(git: Git, *args: str) -> GitResult:
    """Run git as the user would: hooks such as that of git-lfs must run. A timeout is returned as a failure."""
    try:
        return git.as_user().try_run(*args)
    except GitTimeout as error:
        return GitResult(1, b"", f"fatal: {error.message}")


def _remove_half_made_worktrees(git: Git) -> None:
    """Remove what a killed `git worktree add` left behind: it makes every fetch fail."""
    folder = os.path.join(git.common_dir, "worktrees")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        head = os.path.join(folder, name, "HEAD")
        with suppress(OSError):
            if time.time() - os.stat(head).st_mtime > STALE_PACKED_REFS and not read_given(head, 100).strip(b"0\n"):
                remove_tree(os.path.join(folder, name))


def push_refusal(result: GitResult) -> str:
    """Return why a remote refused a push: its own message if there is one."""
    lines = [line.strip() for line in result.error.splitlines()]
    remote = [line.removeprefix("remote:").strip() for line in lines if line.startswith("remote:")]
    remote = [line for line in remote if line] or [
        line.rpartition("(")[2].rstrip(")") for line in lines if line[:1] == "!"
    ]
    reason = " · ".join(dict.fromkeys(remote)) or git_error(("push",), result).message.partition(": ")[2]
    return one_line(clean(reason), 300)


# Settings that decide where git pushes, and through which program.
PUSH_SETTINGS = ("remote.", "url.", "branch.", "push.", "http.", "credential.", "core.sshcommand", "core.gitproxy")

GitSettings = dict[str, tuple[str, ...]]


class GitConfigWatch:
    """Compares git's settings, hooks and attributes with those at `begin`."""

    def __init__(self, git: Git) -> None:
        self._git = git
        self._first: GitSettings = {}
        self._settings: GitSettings = {}
        self._stamps: dict[str, Stamp] = {}

    def begin(self) -> None:
        self._first = self._settings = read_settings(self._git)
        self._stamps = self._take_stamps()

    def changes(self) -> list[str]:
        """Return the names of the settings, hooks and attributes files that changed since the last call."""
        settings, stamps = self._settings, self._stamps
        self._settings = read_settings(self._git)
        self._stamps = self._take_stamps()
        return sorted(_differing(settings, self._settings)) + sorted(_differing(stamps, self._stamps))

    def refuse_changed_push(self) -> None:
        """Raise if the settings that decide where, or through which program, git pushes have changed since `begin`."""
        refuse_changed_push(self._git, push_settings(self._first))

    def _take_stamps(self) -> dict[str, Stamp]:
        """Return the stamps of the hooks and attributes files, by their names in messages."""
        common = self._git.common_dir
        hooks = self._path_in("core.hookspath") or f"{common}/hooks"
        paths = {".gitattributes": f"{self._git.root}/.gitattributes", "info/attributes": f"{common}/info/attributes"}
        if attributes := self._path_in("core.attributesfile"):
            paths[attributes] = attributes
        with suppress(OSError):
            names = (name for name in os.listdir(hooks) if not name.endswith(".sample"))
            paths |= {f"hooks/{name}": os.path.join(hooks, name) for name in names}
        return {name: stamp_of(path) for name, path in paths.items()}

    def _path_in(self, setting: str) -> str:
        """Return the path that a setting names; empty if it is not set."""
        path = self._settings.get(setting, ("",))[-1]
        return os.path.join(self._git.root, os.path.expanduser(path)) if path else ""


def read_settings(git: Git) -> GitSettings:
    """Return the values of each of git's settings, as the user's commands see them."""
    listed = git.as_user().run("config", "--list", "-z").decode("utf-8", "surrogateescape")
    settings: dict[str, list[str]] = {}
    for entry in listed.split("\0")[:-1]:
        name, _, value = entry.partition("\n")
        settings.setdefault(name, []).append(value)
    return {name: tuple(values) for name, values in settings.items()}


def push_settings(settings: Mapping[str, tuple[str, ...]]) -> GitSettings:
    """Return the settings that decide where, and through which program, git pushes."""
    return {name: values for name, values in settings.items() if name.startswith(PUSH_SETTINGS)}


def refuse_changed_push(git: Git, before: GitSettings | None) -> None:
    """Raise if git's push settings differ from those `before`; None means unknown."""
    if before is None:
        return
    if changed := sorted(_differing(before, push_settings(read_settings(git)))):
        names = ", ".join(changed[:3])
        raise UserError(f"git's push settings changed during this run: {names}", "check them, then push")


def _differing(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    return [name for name in {*before, *now} if before.get(name) != now.get(name)]
