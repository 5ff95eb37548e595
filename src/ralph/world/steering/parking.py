"""How does a run stand still until a person speaks? It looks into its mailbox now and then, and stops its own clock."""

import time
from collections.abc import Callable

from ralph.core import events
from ralph.world.site import Site
from ralph.world.steering.mailbox import Mail, Mailbox

GLANCE = 0.5


def park(site: Site, mailbox: Mailbox, reason: str, is_held: Callable[[Mail], bool]) -> None:
    """Returns when nothing in the mailbox holds the run any more, or when it is interrupted."""
    began = time.monotonic()
    tick = site.tick
    site.tell(events.Paused(reason))
    while not site.interrupt.wait(GLANCE, (lambda _: tick()) if tick else None) and is_held(mailbox.read()):
        pass
    seconds = time.monotonic() - began
    site.began += seconds
    if not site.interrupt.level:
        site.tell(events.Continued(seconds))
