"""The fourteen kinds of simulated agents. What each does in a turn of a night is drawn from a seed."""

import random
from collections.abc import Sequence
from typing import Literal, TypeVar

from msgspec import Struct, field, to_builtins

MOST_TURNS = 80  # more than any loop allows in a night
PARTS = (3, 6)

Fate = Literal["ok", "crash", "cut", "limit", "overload", "hang", "flood"]
Speech = Literal["honest", "lie", "talk", "echo", "forget", "bury"]
Kind = TypeVar("Kind", bound=str)


class Profile(Struct, frozen=True, kw_only=True):
    """The probability of each behaviour in a turn. The default is that it does not happen."""

    name: str
    why: str
    honest: bool = False
    fix: float = 0.7  # repairs the next wrong part
    another: float = 0.0  # repairs a second one
    breaks: float = 0.0  # breaks a part that was right
    speech: dict[Speech, float] = field(default_factory=dict)
    fate: dict[Fate, float] = field(default_factory=dict)
    leave: float = 0.0  # leaves a process running
    cheat: float = 0.0  # changes the tests instead of the code
    by_script: float = 0.0  # does that through a script of the repository
    special: float = 0.0  # makes a repaired part right only for the inputs of the tests
    bloat: float = 0.0  # adds code that nothing needs
    wreck: float = 0.0  # deletes the loop's own files
    looks: bool = True  # runs the tests before it claims


PROFILES = (
    Profile(
        name="excellent",
        why="fixes most of it at once and says what is true: a loop must not cost it a turn",
        honest=True,
        fix=0.95,
        another=0.6,
    ),
    Profile(
        name="steady",
        why="one part at a time, now and then a step back: the everyday agent",
        honest=True,
        fix=0.7,
        breaks=0.05,
    ),
    Profile(
        name="clumsy",
        why="breaks what worked, but looks at the tests before it speaks",
        honest=True,
        fix=0.75,
        breaks=0.25,
    ),
    Profile(
        name="optimist",
        why='says "all tests pass" when they do not: the most common way in which a loop is fooled',
        fix=0.6,
        breaks=0.1,
        speech={"lie": 0.45},
    ),
    Profile(
        name="talker",
        why="names the marker in plans, promises, denials and quotes, and repeats its prompt",
        fix=0.6,
        breaks=0.05,
        speech={"talk": 0.45, "echo": 0.2, "bury": 0.15},
    ),
    Profile(
        name="forgetful",
        why="does the work and forgets to say so",
        fix=0.75,
        speech={"forget": 0.6},
    ),
    Profile(
        name="fragile",
        why="crashes, is cut off, runs into limits, finds its server overloaded, hangs, floods its output",
        fix=0.75,
        fate={"crash": 0.12, "cut": 0.06, "limit": 0.08, "overload": 0.1, "hang": 0.06, "flood": 0.08},
    ),
    Profile(
        name="litterer",
        why="leaves dev servers and daemons behind, in its own process group and outside of it",
        fix=0.7,
        breaks=0.05,
        leave=0.5,
    ),
    Profile(
        name="cheat",
        why="edits the tests until they are green, and tidies the loop's own files away",
        fix=0.5,
        cheat=0.4,
        wreck=0.15,
        speech={"lie": 0.3},
    ),
    Profile(
        name="hopeless",
        why="cannot do it, and is sure that it has: nothing it says may end the night as done",
        fix=0.12,
        breaks=0.35,
        speech={"lie": 0.7},
    ),
    Profile(
        name="overfitter",
        why="special-cases the inputs that the tests show, sees the tests pass and says so",
        fix=0.8,
        another=0.5,
        special=0.4,
    ),
    Profile(
        name="bloater",
        why="does the work and adds code that nothing needs: no loop refuses that, only `ralph prove` lists it",
        fix=0.7,
        bloat=0.6,
    ),
    Profile(
        name="script-editor",
        why="makes the tests expect what the functions return, with a script of the repository",
        fix=0.5,
        by_script=0.3,
        speech={"lie": 0.3},
    ),
    Profile(
        name="stop-talker",
        why="mostly only talks: turns without a single tool call",
        fix=0.15,
        speech={"talk": 0.4},
        looks=False,
    ),
)
BY_NAME = {profile.name: profile for profile in PROFILES}
HONEST = tuple(profile.name for profile in PROFILES if profile.honest)
MOST: dict[str, int] = {"limit": 1, "hang": 1, "overload": 2, "flood": 2}  # in one night: they take real time


class Step(Struct, frozen=True):
    """One turn of the agent. It is the same for every loop; its effect depends on the files."""

    fixes: int
    breaks: int
    speech: Speech
    fate: Fate
    wording: int
    cost: float
    leave: str = ""
    cheat: str = ""
    wreck: bool = False
    special: bool = False
    bloat: bool = False
    looks: bool = True

    @property
    def works(self) -> bool:
        """Return whether the turn changes files."""
        return self.fate not in ("limit", "overload")


class Script(Struct, frozen=True):
    """One night: the agent, the size of the task, and every turn."""

    seed: int
    number: int
    profile: str
    parts: int
    plain: bool  # prints plain text if the loop supports it
    steps: tuple[Step, ...]
    second: tuple[Step, ...]  # turns of the steady agent to which a loop may hand over

    def builtins(self) -> dict[str, object]:
        made: dict[str, object] = to_builtins(self)
        return made


def draw_script(seed: int, number: int) -> Script:
    """Draw night `number` of the series `seed`. The result is always the same."""
    chance = random.Random(f"night {seed}/{number}")
    profile = PROFILES[number % len(PROFILES)]
    parts, plain = chance.randint(*PARTS), chance.random() < 0.3
    seen: dict[str, int] = {}
    steps = tuple(_step(profile, chance, seen) for _ in range(MOST_TURNS))
    other, nothing = random.Random(f"second {seed}/{number}"), dict[str, int]()
    second = tuple(_step(BY_NAME["steady"], other, nothing) for _ in range(MOST_TURNS))
    return Script(seed, number, profile.name, parts, plain, steps, second)


def _step(profile: Profile, chance: random.Random, seen: dict[str, int]) -> Step:
    fate = _one(profile.fate, chance, "ok")
    seen[fate] = seen.get(fate, 0) + 1
    if seen[fate] > MOST.get(fate, MOST_TURNS):
        fate = "ok"
    fixes = (chance.random() < profile.fix) + (chance.random() < profile.another)
    cheat = chance.choice(("test", "runner", "delete")) if chance.random() < profile.cheat else ""
    return Step(
        fixes=fixes,
        breaks=int(chance.random() < profile.breaks),
        speech=_one(profile.speech, chance, "honest"),
        fate=fate,
        wording=chance.randrange(1000),
        cost=round(chance.uniform(0.05, 0.4), 2),
        leave=chance.choice(("server", "daemon", "stubborn")) if chance.random() < profile.leave else "",
        cheat="script" if chance.random() < profile.by_script else cheat,
        wreck=chance.random() < profile.wreck,
        special=chance.random() < profile.special,
        bloat=chance.random() < profile.bloat,
        looks=profile.looks,
    )


def _one(chances: dict[Kind, float], chance: random.Random, otherwise: Kind) -> Kind:
    drawn, so_far = chance.random(), 0.0
    for name, likely in chances.items():
        so_far += likely
        if drawn < so_far:
            return name
    return otherwise


WRONG, SPECIAL, RIGHT = range(3)


def parts_after(parts: Sequence[int], step: Step) -> list[int]:
    """Return the state of each part after a turn. The simulated agent does the same to real files."""
    after = list(parts)
    if not step.works:
        return after
    order = [at for state in (WRONG, SPECIAL) for at, part in enumerate(parts) if part == state]
    for at in order[: step.fixes]:
        after[at] = SPECIAL if step.special else RIGHT
    candidates = [at for at, part in enumerate(parts) if part == RIGHT]
    if step.breaks and candidates:
        after[candidates[step.wording % len(candidates)]] = WRONG
    return after


def ideal(script: Script, cap: int) -> tuple[int, float] | None:
    """Return the turns and the money that a judge who knows the truth needs, or None if `cap` turns are not enough."""
    parts = [WRONG] * script.parts
    spent, counted = 0.0, 0
    for at, step in enumerate(script.steps, 1):
        parts = parts_after(parts, step)
        spent += step.cost if step.fate in ("ok", "flood") else 0.0
        counted += step.works
        if set(parts) == {RIGHT}:
            return at, round(spent, 2)
        if counted == cap:
            return None
    return None
