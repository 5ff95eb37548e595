"""System calls that Python doesn't wrap, made through ctypes. Everything here is for Linux.

The keeper imports this module, so it uses the standard library only.
"""

import ctypes
import errno
import os
import signal
import sys

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446  # the same numbers on every architecture
KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
KEYCTL_GET_KEYRING_ID, KEYCTL_JOIN_SESSION_KEYRING, KEY_SPEC_SESSION_KEYRING = 0, 1, -3
_LIBC = ctypes.CDLL(None)


def c_call(name: str, *values: int | bytes) -> int:
    """Call a function of the C library and return its result."""
    arguments = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    return int(getattr(_LIBC, name)(*arguments))


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it; return False if the system can't do that."""
    if sys.platform != "linux":
        return False
    return c_call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when `parent` dies; exit now if it already has."""
    if sys.platform == "linux":
        c_call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(127)


def set_process_name(name: str) -> None:
    """Set the name that `ps` and `pkill` see (at most 15 bytes)."""
    try:
        with open("/proc/self/comm", "wb", buffering=0) as comm:
            comm.write(name.encode())
    except OSError:  # no /proc
        pass


def leave_abstract_sockets() -> None:
    """Make sockets without a path that were created outside unreachable, by a Landlock scope (Linux 6.12).

    They belong to the network namespace, which a sandbox may share with the rest of the machine.
    """
    ruleset_attr = bytes(16) + (1).to_bytes(8, sys.byteorder)
    ruleset = c_call("syscall", LANDLOCK_CREATE_RULESET, ruleset_attr, len(ruleset_attr), 0)
    if ruleset >= 0:
        c_call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        c_call("syscall", LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def leave_session_keyring() -> None:
    """Join an empty keyring: the user's session keyring (Kerberos, for example) is open to all their processes."""
    keyctl = KEYCTL_NUMBERS.get(os.uname().machine, 0)
    if not keyctl or c_call("syscall", keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0) >= 0:
        return
    if c_call("syscall", keyctl, KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0) > 0:
        raise OSError(errno.EDQUOT, "cannot leave the keyring of the session")
