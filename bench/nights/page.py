"""What does the documentation say of the nights? The page with the tables, and the picture for the README."""

import platform
from collections.abc import Iterator, Sequence
from html import escape

from msgspec import Struct, json

from bench.lab import ROOT
from bench.nights import chaos, table
from bench.nights.contenders import AGAIN, BARE, CAP, CAREFUL, GATED, UNPROTECTED
from bench.nights.measures import Number, Standing, numbers, standing
from bench.nights.night import Played
from bench.nights.population import PROFILES, drawn, ideal

LAST = ROOT / ".cache" / "nights" / "last.json"
PAGE = ROOT / "docs" / "reference" / "comparison.md"
PICTURE = ROOT / "docs" / "pictures" / "nights.svg"
GREP = "bash: while, grep"


class Results(Struct, frozen=True, kw_only=True):
    """All that was played. `gates`: those that verify themselves; `fairness`: what is to be said of each."""

    date: str
    version: str
    seed: int
    nights: int
    gates: list[str]
    fairness: dict[str, str]
    missing: dict[str, str]
    played: dict[str, list[Played]]
    chaotic: dict[str, list[Played]]
    stories: list[Played] = []

    def tables(self) -> Iterator[str]:
        yield from (table.fooled(self.played), table.spent(self.played))
        if GATED in self.played:
            yield table.by_profile(self.played[GATED])
        if self.chaotic:
            yield from (table.fooled(self.chaotic), table.spent(self.chaotic))

    def numbers(self) -> list[Number]:
        gated = [one for name, nights in self.chaotic.items() if name.endswith(f": {GATED}") for one in nights]
        bare, again = self.played[BARE], self.played.get(AGAIN, [])
        return numbers(self.played[GATED], bare, again or bare, self.ungated(), gated)

    def ungated(self) -> dict[str, Sequence[Played]]:
        """The other loops that verify nothing themselves."""
        return {name: nights for name, nights in self.played.items() if name not in (BARE, AGAIN, *self.gates)}


def followed(seed: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Which nights are told line by line, and with whom: short ones."""
    for profile, names in (("optimist", (GATED, GREP)), ("cheat", (GATED, CAREFUL)), ("fragile", (GATED,))):
        at = next(number for number, one in enumerate(PROFILES) if one.name == profile)
        for number in range(at, 1000, len(PROFILES)):
            script = drawn(seed, number)
            best = ideal(script, CAP)
            begun = script.steps[: best[0]] if best else ()
            if 4 <= len(begun) <= 7 and TELLING[profile](begun):
                yield number, names
                break


TELLING = {
    "optimist": lambda steps: any(step.speech == "lie" for step in steps[:-1]),
    "cheat": lambda steps: any(step.cheat and step.speech == "lie" for step in steps[:-1]),
    "fragile": lambda steps: len({step.fate for step in steps} & {"crash", "limit", "overload", "hang"}) > 1,
}


def keep(results: Results) -> None:
    """So that they can be told again without being played again."""
    LAST.parent.mkdir(parents=True, exist_ok=True)
    LAST.write_bytes(json.encode(results))


def last() -> Results:
    return json.decode(LAST.read_bytes(), type=Results)


def write(results: Results) -> None:
    PAGE.write_text(_text(results))
    PICTURE.write_text(_picture(results))


def _text(results: Results) -> str:
    fooled, spent, by_profile, *chaotic = results.tables()
    held = table.held(results.numbers())
    parts = [
        HEAD.format(
            date=results.date,
            nights=results.nights,
            seed=results.seed,
            machine=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
            version=results.version,
        ),
        fooled,
        SPENT,
        spent,
        PROFILE,
        by_profile,
        CHANCES,
        table.chances(),
        NUMBERS,
        held,
        _fewer(results),
        CHAOS.format(troubles="; ".join(f"*{one.name}*: {one.why}" for one in chaos.ALL)),
        *chaotic,
        FAIRNESS,
        table.markdown([("loop", "what is to be said"), *results.fairness.items()]),
        "Not played:",
        "\n".join(f"- {name}: {why}" for name, why in results.missing.items()),
        NIGHTS.format(seed=results.seed),
        *(f"```\n{table.story(story)}\n```" for story in results.stories),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


HEAD = """
# Beside other loops

A loop says at the end that the work is done. Is it? This page is written by a measurement that you can repeat:

```sh
make nights                    # 200 nights of ralph and of the loop that one writes in bash
make nights PEERS=1            # … and of every other loop that the package registries have
make nights N=1000 SEED=7      # more of them, others
make nights NIGHT=17           # one of them, line by line
```

A *night* is a small repository with tests that fail, an agent, and a loop that runs the agent until it says that it
is done, at most {cap} times. The repository, the tests and all processes are real; the agent is a program that
speaks as Claude Code does, and everything it does is drawn from a seed: what it fixes and breaks in a turn, whether
it lies, talks, forgets, crashes, hangs, leaves a server behind, edits the tests. Every loop meets the same agents.
Afterwards the tests as they were in the beginning say what is true. Time is short: a limit of hours lasts a second,
and whoever waits in vain is ended after a minute.

*False done*: it said done, or exited with 0, and the tests are red. *Missed done*: the tests were green after some
turn, and the loop did not end with that. In brackets: where the true share lies, with 95 % confidence.

Written on {date}, ralph {version}, {nights} nights of seed {seed} ({machine}). Rows with more nights begin with the
same ones.

## Is it fooled?
""".replace("{cap}", str(CAP))

SPENT = """
## What does it take, and what does it leave?

The ideal is a judge who knows the truth and ends a night the moment the work is done. The last three columns count
nights: in which a process was left running; in which something of the user's was lost or changed (files, the index,
stashes, branches, or work of theirs put into a commit); and which had to be ended from outside.
"""

PROFILE = """
## By agent

ralph with a check and protected tests. Nobody but the forgetful one costs it turns that matter; `--until checks`
asks that one nothing.
"""

CHANCES = """
Each is there for one thing that happens to people who leave a loop alone, and has little else in it, so that a row says
what that one thing does. How likely it is was chosen, not measured on real agents: so that the work takes three to
eight turns (a loop must go on, and must end), and so that thirty nights meet nearly every trouble and two hundred meet
each at least six times. A night has at most one limit and one agent that hangs: both cost real seconds. The hopeless
one can finish about one night in seventeen even with a judge who knows the truth: it is there to be sure of itself.
"""

NUMBERS = """
## The numbers that ralph is held to

CI plays thirty of these nights for every change. Done that was missed is the fragile agent's, which crashed three times
in a row after its work was done.
"""


def _fewer(results: Results) -> str:
    """How a loop that verifies nothing can have fewer false dones than ralph by default, with what that costs."""
    bare, again = (standing(name, results.played[name]) for name in (BARE, AGAIN))
    found = [standing(name, nights) for name, nights in results.ungated().items()]
    fewer = [one for one in found if one.false_done.value < bare.false_done.value]
    if not fewer:
        return FEWER + "No other loop had fewer."
    verdict = (
        "some had fewer" if any(one.false_done.value < again.false_done.value for one in fewer) else "none had fewer"
    )
    said = "\n".join(f"- {one.contender}: {_priced(one)}; {results.fairness[one.contender]}." for one in fewer)
    ours = f"- ralph: {_priced(bare)}.\n- ralph, asked again: {_priced(again)}."
    told = f"Beside it asked three times (`--claims 3`) {verdict}:\n\n{ours}\n{said}"
    return f"{FEWER}{told}\n\n{FEWER_THEN.strip()}"


def _priced(one: Standing) -> str:
    told = f"{one.false_done.count} of {one.nights}, {one.in_words.count} of them called done without reserve"
    turns = f"{one.turns.value:.2f} × the ideal turns" if one.turns else "never finished"
    return f"{told}; {turns}" + (f", ${one.dollars:.2f} a finished task" if one.dollars is not None else "")


FEWER = """
Without a gate a plain lie cannot be seen by anybody: a loop can only ask again, or not ask at all. ralph believes the
first unmistakable claim, calls it *unverified*, and is held to "no other loop has fewer" beside those that verify
nothing either. """
FEWER_THEN = """
Whoever asks the agent three times is fooled by those that lie three times running, and whoever never asks pays for
every turn of every night: both buy fewer false ends with turns. A check costs less than either and lets none through:
that is the first row of this page. Where there can be none, `--claims 3` is worth its turns.
"""

CHAOS = """
## When something gets in the way

The same nights, with a trouble in the middle. {troubles}.

What a kill meets is the machine's doing: these nights replay in all that is drawn, not to the letter.
"""

FAIRNESS = """
## What is unfair, and to whom

The agents do not read: a loop that feeds errors back, as ralph and some others do, gains nothing by it here. They
are no model of how often real agents lie or fail, only of the ways in which they do; so read who is fooled by what,
not how often. A loop with long pauses looks worse than over a real night. The measurement was made by the authors
of ralph, who knew what it would measure.
"""

NIGHTS = """
## Three nights, line by line

Each is what `python -m bench.nights --seed {seed} --night NUMBER --only NAME` prints.
"""


WIDTH, LEFT, TOP, ROW = 760, 320, 64, 34


def _picture(results: Results) -> str:
    """Draw the share of nights that ended as done with red tests: ralph, two bash loops, the best other loop."""
    found = {name: standing(name, nights) for name, nights in results.played.items()}
    peers = [one for name, one in found.items() if name not in LABELS and not name.startswith(("ralph, ", "bash: "))]
    bars = [(found[name], label) for name, label in LABELS.items() if name in found]
    if peers:
        best = min(peers, key=lambda one: one.false_done.value)
        bars.append((best, f"best of {len(peers)} other loops: {best.contender.split(' (')[0]}"))
    return draw_chart(bars)


def draw_chart(bars: Sequence[tuple[Standing, str]]) -> str:
    height = TOP + ROW * len(bars) + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{TITLE}">\n'
        f"<style>{STYLE}</style>\n"
        f'<text class="title" x="16" y="30">{TITLE}</text>\n'
        f'<text class="dim" x="16" y="48">simulated agents that lie, talk, crash, cheat and litter</text>\n'
        f"{_axis(height)}\n" + "\n".join(_bar(at, *bar) for at, bar in enumerate(bars)) + "\n</svg>\n"
    )


TITLE = "Runs that ended as done while the tests were red"
LABELS = {
    GATED: "ralph loop --check … --protect 'tests/**'",
    UNPROTECTED: "ralph loop --check …",
    CAREFUL: "bash: until the tests pass",
    GREP: "bash: until the agent says done",
}
STYLE = (
    "text{font:14px system-ui,sans-serif;fill:#1f2328}.title{font-weight:600;font-size:17px}"
    ".dim{fill:#59636e;font-size:12px}"
    ".ours{fill:#1a7f37}.bare{fill:#9a6700}.other{fill:#cf222e}line{stroke:#d1d9e0}"
    "@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.dim{fill:#9198a1}line{stroke:#3d444d}.ours{fill:#3fb950}"
    ".bare{fill:#d29922}.other{fill:#f85149}}"
)


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - 150)


def _axis(height: int) -> str:
    marks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _x(share)
        marks.append(f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{height - 28}"/>')
        marks.append(f'<text class="dim" x="{x:.0f}" y="{height - 12}" text-anchor="middle">{share:.0%}</text>')
    return "\n".join(marks)


def _bar(at: int, one: Standing, label: str) -> str:
    y, share = TOP + ROW * at, one.false_done.value
    kind = {GATED: "ours", UNPROTECTED: "bare"}.get(one.contender, "other")
    return (
        f'<text x="16" y="{y + 21}">{escape(label)}</text>'
        f'<rect class="{kind}" x="{LEFT}" y="{y + 7}" width="{max(3.0, _x(share) - LEFT):.0f}" height="20" rx="3"/>'
        f'<text x="{_x(share) + 10:.0f}" y="{y + 22}">{one.false_done.count} of {one.false_done.total}</text>'
    )
