"""Finding bubblewrap, and explaining why it cannot create a sandbox on this machine."""

import os
import sys
from collections.abc import Mapping

from msgspec import Struct

from ralph.errors import UserError
from ralph.sandbox.mounts import is_inside

OLDEST_VERSION = (0, 4, 0)
INSTALL = "install it: `apt-get install bubblewrap` (dnf, pacman, zypper and apk call it the same)"
GUIDE = "docs/guides/sandbox.md"


class Restrictions(Struct, frozen=True):
    """What on a machine can keep programs from creating namespaces."""

    is_container: bool = False
    has_apparmor: bool = False
    has_no_namespaces: bool = False


def find_bubblewrap(env: Mapping[str, str], workspace: str = "") -> str:
    """Return the path of bubblewrap; never one in the workspace, where an agent may have put it."""
    if sys.platform != "linux":
        raise UserError("a sandbox needs Linux", f"use a container, or another user: {GUIDE}")
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "bwrap")
        is_ours = not workspace or not is_inside(os.path.realpath(path), (os.path.realpath(workspace),))
        if is_ours and os.path.isabs(path) and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise UserError("a sandbox needs bubblewrap, which is not installed", INSTALL)


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers in the output of `bwrap --version`."""
    return tuple(int(part) for part in text.split()[-1].split(".") if part.isdecimal()) if text.split() else ()


def explain_failure(output: str, restrictions: Restrictions) -> UserError:
    """Return why bubblewrap could not create a sandbox, from its output and what the machine is like."""
    reason = output.strip().partition("\n")[0].removeprefix("bwrap: ")
    if "nknown option" in reason:
        oldest = ".".join(map(str, OLDEST_VERSION))
        return UserError(f"bubblewrap is too old: {reason}", f"version {oldest} or later is needed")
    if any(words in reason for words in ("No space left", "Disk quota", "I/O error")):  # the last is from a shell
        return UserError(
            f"the sandbox has no room for its temporary files: {reason}", "free some space, or name another TMPDIR"
        )
    is_forbidden = any(word in reason for word in ("ermission", "not permitted", "amespace"))
    if is_forbidden and restrictions.has_apparmor:
        return UserError(
            "AppArmor lets only programs with a profile create namespaces, so there is no sandbox",
            f"give bwrap one, as {GUIDE} shows; or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
        )
    if is_forbidden and restrictions.is_container:
        return UserError(
            f"this container does not allow namespaces, so there is no sandbox ({reason})",
            f"the container already isolates the run: leave --sandbox out, or start the container as {GUIDE} shows",
        )
    if is_forbidden and restrictions.has_no_namespaces:
        return UserError(
            "the kernel lets only root create namespaces, so there is no sandbox",
            "`sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000`",
        )
    return UserError(f"bubblewrap could not create a sandbox: {reason or 'it printed nothing'}", f"see {GUIDE}")


def find_restrictions(env: Mapping[str, str]) -> Restrictions:
    """Look at this machine."""
    return Restrictions(
        is_container="container" in env
        or any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv"))
        or any(name in _read("/proc/1/cgroup") for name in ("docker", "kubepods", "containerd", "lxc")),
        has_apparmor=_read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1",
        has_no_namespaces=_read("/proc/sys/kernel/unprivileged_userns_clone").strip() == "0"
        or _read("/proc/sys/user/max_user_namespaces").strip() == "0",
    )


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
