"""Where does a run stand? The few facts of its journal that a list of runs shows, so that it need not be read whole."""

from msgspec import Struct

AWAITING = "waiting for an answer"
"""How the reason of a pause begins that a person's answer ends."""


class Standing(Struct, frozen=True, omit_defaults=True):
    """`pid`, `start` and `host` say which process plays the run; it is `deaf` if signals are none of the run's
    business there. Times are epoch seconds. `iterations` are finished ones; `checks` and `passed` are those of the
    last, `shares` the percentages that passed in the latest ones. `waits` is what it waits for until `until`; `parked`
    is why it stands still until a person speaks; `stopping`: it was asked to end, and finishes what it does; `given`
    are the person's notes in the prompt at work; `doing` is what it does since the moment `since`. No `outcome`: the
    run goes on, or its process died."""

    id: str
    pid: int = 0
    start: str = ""
    host: str = ""
    deaf: bool = False
    workspace: str = ""
    goal: str = ""
    agent: str = ""
    preset: str = ""
    branch: str = ""
    task: str = ""
    version: str = ""
    began: float = 0.0
    changed: float = 0.0
    cap: int | None = None
    iterations: int = 0
    checks: int = 0
    passed: int = 0
    shares: tuple[int, ...] = ()
    cost_usd: float | None = None
    tokens: int = 0
    waits: str = ""
    until: float = 0.0
    parked: str = ""
    stopping: bool = False
    given: int = 0
    doing: str = ""
    since: float = 0.0
    outcome: str = ""
    reason: str = ""
    verified: bool = True
    duration_s: float = 0.0
    exit_code: int | None = None
