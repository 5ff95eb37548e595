"""Is this machine fit for a run? Each look finds one thing, and says what to do about it."""

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ralph.errors import UserError
from ralph.world.processes.keeper import Keeper

State = Literal["ok", "note", "warn", "fail"]

LITTLE_SPACE, NO_SPACE = 1 << 30, 64 << 20  # bytes
_GROUPS = "/sys/fs/cgroup"
_GET_CHILD_SUBREAPER = 37

# Leaves its parent, its session and its group, and tells its parent only then that it may end.
_RUNAWAY = """
import os, signal
reader, writer = os.pipe()
if os.fork():
    os.read(reader, 1)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
signal.alarm(30)
os.write(writer, b"away")
signal.pause()
"""


class Finding(Struct, frozen=True):
    """What one look found. `note`: all is well, and could be better; `warn`: something will not work as it could;
    `fail`: runs will fail. `advice` says what to do; `facts` are for programs."""

    name: str
    state: State
    detail: str
    advice: str = ""
    facts: dict[str, str] = {}


def workspace(folder: Path) -> Finding:
    """Whether a run can keep its things here. Nothing stays behind."""
    import tempfile

    own = folder / ".ralph"
    place = own if own.exists() else folder
    try:
        with tempfile.TemporaryFile(dir=place):
            return Finding("workspace", "ok", f"{folder} is writable")
    except OSError as error:
        advice = "make it writable, free some space, or name another workspace with -C DIR"
        return Finding("workspace", "fail", f"cannot write in {place}: {error.strerror}", advice)


def disk(folder: Path) -> Finding:
    """Whether there is room for logs and checkpoints."""
    facts = os.statvfs(folder)
    free = facts.f_bavail * facts.f_frsize
    state: State = "fail" if free < NO_SPACE else "warn" if free < LITTLE_SPACE else "ok"
    advice = "" if state == "ok" else "free some space: journals, logs and checkpoints need it"
    return Finding("disk", state, f"{free / (1 << 30):.1f} GiB free", advice)


def repository(folder: Path) -> Finding:
    """Whether git can help: it is what fingerprints, diffs, worktrees and rewinding are made of."""
    from ralph.world.repository import git

    if not git.is_installed():
        return Finding("git", "warn", "not installed", "install git: worktrees, diffs, rewinding and commits need it")
    try:
        version = git.run(str(folder), "version").decode(errors="replace").strip().removeprefix("git version ")
        found = git.find_repository(folder)
        has_commits = found is not None and bool(git.commit_of(found.root, "HEAD"))
    except UserError as error:
        return Finding("git", "warn", error.message, error.hint or "see what `git status` says")
    if found is None:
        advice = "`git init` and a first commit give you diffs, rewinding and worktrees"
        return Finding("git", "note", f"{version}; {folder} is in no repository", advice)
    if not has_commits:
        return Finding("git", "note", f"{version}; {found.root} has no commit yet", "worktrees need a first commit")
    return Finding("git", "ok", f"{version}; repository {found.root}", facts={"version": version, "root": found.root})


def processes(keeper: Keeper, folder: Path, env: Mapping[str, str]) -> Finding:
    """Whether a process that hides from the one that started it is found and ended: it is tried with a real one."""
    from ralph.world.processes.kin import MARK
    from ralph.world.processes.process import run_process
    from ralph.world.processes.program import Command
    from ralph.world.processes.watch import Limits

    began = time.monotonic()
    words = (sys.executable, "-I", "-S", "-c", _RUNAWAY)
    command = Command(words, str(folder), {**env, MARK: f"doctor-{os.getpid()}"})
    ended = run_process(keeper, command, on_lines=lambda lines: None, limits=Limits(turn=20.0, leftovers=0.5))
    taken = f"{1000 * (time.monotonic() - began):.0f} ms"
    kind = "supported" if _adopts() else "not supported"
    if ended.leftovers and not keeper.survivors:
        return Finding("subreaper", "ok", f"{kind}; a process that ran away was found and ended ({taken})")
    advice = "agents may leave processes behind here: look with `ps` after a run"
    return Finding("subreaper", "warn", f"{kind}; a process that ran away was not found", advice)


def _adopts() -> bool:
    """Whether the kernel can give a process the orphans below it."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(_GET_CHILD_SUBREAPER, ctypes.byref(ctypes.c_int()), 0, 0, 0) == 0)


def control_groups() -> Finding:
    """Whether control groups could be made here. ralph does without; its keeper adopts what an agent leaves."""
    try:
        with open("/proc/self/cgroup") as stream:
            own = next((line[3:].strip() for line in stream if line.startswith("0::")), None)
    except OSError:
        own = None
    if own is None or not os.path.exists(f"{_GROUPS}/cgroup.controllers"):
        return Finding("cgroup", "ok", "no version 2 (not needed)")
    may = "may be made" if os.access(_GROUPS + own, os.W_OK) else "may not be made"
    return Finding("cgroup", "ok", f"version 2, groups of our own {may} (not needed)")
