"""Can bubblewrap make a box on this machine? And if it cannot: why, and what is to be done about it?"""

import os
import sys
from collections.abc import Mapping

from msgspec import Struct

from ralph.errors import UserError
from ralph.processes.box import is_inside

OLDEST = (0, 4, 0)
INSTALL = "install it: `apt-get install bubblewrap` (dnf, pacman, zypper and apk call it the same)"
GUIDE = "docs/guides/sandbox.md"


class Refusing(Struct, frozen=True):
    """What on a machine can keep programs from making namespaces."""

    is_container: bool = False
    has_apparmor: bool = False
    has_no_namespaces: bool = False


def find_bubblewrap(env: Mapping[str, str], workspace: str = "") -> str:
    """Its path; never one in the workspace, where an agent may have put it."""
    if sys.platform != "linux":
        raise UserError("a box needs Linux", f"use a container, or another user: {GUIDE}")
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, "bwrap")
        is_ours = not workspace or not is_inside(os.path.realpath(path), (os.path.realpath(workspace),))
        if is_ours and os.path.isabs(path) and os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise UserError("a box needs bubblewrap, which is not installed", INSTALL)


def version_in(text: str) -> tuple[int, ...]:
    """The numbers in what `bwrap --version` prints."""
    return tuple(int(part) for part in text.split()[-1].split(".") if part.isdecimal()) if text.split() else ()


def refusal(said: str, refusing: Refusing) -> UserError:
    """What it means that bubblewrap could not make a box, by what it `said` and what the machine is like."""
    reason = said.strip().partition("\n")[0].removeprefix("bwrap: ")
    if "nknown option" in reason:
        return UserError(f"bubblewrap is too old: {reason}", f"version {'.'.join(map(str, OLDEST))} or later is needed")
    if "No space left" in reason or "Disk quota" in reason:
        return UserError(
            f"a box has no room for its temporary files: {reason}", "free some space, or name another TMPDIR"
        )
    is_forbidden = any(word in reason for word in ("ermission", "not permitted", "amespace"))
    if is_forbidden and refusing.has_apparmor:
        return UserError(
            "AppArmor lets no program make namespaces without a profile, so there is no box",
            f"give bwrap one, as {GUIDE} shows; or `sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
        )
    if is_forbidden and refusing.is_container:
        return UserError(
            f"this container lets no program make namespaces, so there is no box ({reason})",
            f"the container is one: leave --sandbox out, or start it as {GUIDE} shows",
        )
    if is_forbidden and refusing.has_no_namespaces:
        return UserError(
            "the kernel lets nobody but root make namespaces, so there is no box",
            "`sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=15000`",
        )
    return UserError(f"bubblewrap could not make a box: {reason or 'it said nothing'}", f"see {GUIDE}")


def refusing(env: Mapping[str, str]) -> Refusing:
    """As this machine is."""
    return Refusing(
        is_container="container" in env
        or any(os.path.exists(mark) for mark in ("/.dockerenv", "/run/.containerenv"))
        or any(name in _text("/proc/1/cgroup") for name in ("docker", "kubepods", "containerd", "lxc")),
        has_apparmor=_text("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").strip() == "1",
        has_no_namespaces=_text("/proc/sys/kernel/unprivileged_userns_clone").strip() == "0"
        or _text("/proc/sys/user/max_user_namespaces").strip() == "0",
    )


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""
