"""The identity of this machine, which stays when its name changes."""

import os
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256

from ralph.files import read_head

FILES = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@cache
def machine_id() -> str:
    """Return what identifies this machine.

    Without an id, as in most containers, this is its name: machines that share a home must be told apart.
    """
    identity = _read_id() or os.uname().nodename
    # machine-id(5) asks programs to hash it before others see it, and agents read the records of runs.
    return sha256(f"ralph {identity}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _read_id() -> str:
    if sys.platform == "darwin":
        with os.popen("ioreg -rd1 -c IOPlatformExpertDevice 2>/dev/null") as ioreg:
            return next((line for line in ioreg if "IOPlatformUUID" in line), "").strip()
    for path in FILES:
        with suppress(OSError):
            identity = read_head(path, 64).decode(errors="replace").strip()
            if identity and identity != "uninitialized":  # systemd writes that into images
                return identity
    return ""
