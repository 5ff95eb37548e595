"""Measure the memory and time of a program. A small process starts it, because the kernel counts the memory of the
parent as well: python -I -S launch.py RESULT PROGRAM [ARGUMENTS]"""

import os
import sys
import time

began = time.monotonic()
pid = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, used = os.wait4(pid, 0)
with open(sys.argv[1], "w") as file:
    file.write(f"{os.waitstatus_to_exitcode(status)} {time.monotonic() - began} {used.ru_maxrss / 1024}")
