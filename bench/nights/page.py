"""Write docs/reference/comparison.md with its tables, and the chart for the README."""

import platform
from collections.abc import Iterator, Sequence
from html import escape

from msgspec import Struct, json

from bench.lab import ROOT
from bench.nights import chaos, table
from bench.nights.contenders import BARE, CAP, CAREFUL, CHECKED, EXAMINED, GATED, GREP, HANDED
from bench.nights.measures import Number, Share, numbers, standing
from bench.nights.night import Played
from bench.nights.population import PROFILES, draw_script, ideal

LAST = ROOT / ".cache" / "nights" / "last.json"
PAGE = ROOT / "docs" / "reference" / "comparison.md"
PICTURE = ROOT / "docs" / "pictures" / "nights.svg"
HOOK = "Claude, Stop hook with the tests"
PERFECT, TRUSTING = "Claude /goal, perfect reader", "Claude /goal, trusting reader"
CODEX, COPILOT, PLUGIN = "Codex goals", "Copilot autopilot", "Claude, ralph-loop plugin"
BELIEVERS = (CODEX, COPILOT, PLUGIN)
OVERFITTER = "overfitter"


class Results(Struct, frozen=True, kw_only=True):
    """Everything that was played. `fairness` is the remark about each contender."""

    date: str
    version: str
    seed: int
    nights: int
    fairness: dict[str, str]
    missing: dict[str, str]
    played: dict[str, list[Played]]
    chaotic: dict[str, list[Played]]
    stories: list[Played] = []

    def tables(self) -> Iterator[str]:
        yield from (table.standings(self.played), table.fooled_by(self.played))
        if EXAMINED in self.played:
            yield table.by_profile(self.played[EXAMINED])
        if self.chaotic:
            yield table.standings(self.chaotic)

    def numbers(self) -> list[Number]:
        gated = [one for name, nights in self.chaotic.items() if name.endswith(f": {GATED}") for one in nights]
        return numbers(self.played[EXAMINED], self.played[BARE], gated)


def choose_stories(seed: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Choose the short nights that the page shows line by line, with their contenders."""
    for profile, names in (
        ("optimist", (GATED, GREP)),
        ("script-editor", (GATED, CAREFUL)),
        (OVERFITTER, (EXAMINED, GATED)),
    ):
        at = next(number for number, one in enumerate(PROFILES) if one.name == profile)
        for number in range(at, 1000, len(PROFILES)):
            script = draw_script(seed, number)
            best = ideal(script, CAP)
            begun = script.steps[: best[0]] if best else ()
            if 4 <= len(begun) <= 7 and TELLING[profile](begun):
                yield number, names
                break


TELLING = {
    "optimist": lambda steps: any(step.speech == "lie" for step in steps[:-1]),
    "script-editor": lambda steps: any(step.cheat for step in steps[:-1]),
    OVERFITTER: lambda steps: any(step.special for step in steps[:-1]),
}


def save(results: Results) -> None:
    """Store the results, so that the page can be written again without playing."""
    LAST.parent.mkdir(parents=True, exist_ok=True)
    LAST.write_bytes(json.encode(results))


def load_last() -> Results:
    return json.decode(LAST.read_bytes(), type=Results)


def write(results: Results) -> None:
    PAGE.write_text(_text(results))
    PICTURE.write_text(_picture(results))


def _text(results: Results) -> str:
    standings, fooled, by_profile, *chaotic = results.tables()
    parts = [
        HEAD,
        _summary(results),
        CHART,
        METHOD.format(
            cap=CAP,
            endless=2 * CAP + 5,
            date=results.date,
            nights=results.nights,
            deep=len(results.played[EXAMINED]),
            seed=results.seed,
            machine=f"{platform.system()}, Python {platform.python_version()}",
            version=results.version,
        ),
        standings,
        FOOLED,
        fooled,
        PROFILE,
        by_profile,
        CHANCES,
        table.chances(),
        _stuck(results),
        NUMBERS,
        table.numbers_table(results.numbers()),
        CHAOS.format(troubles="; ".join(f"*{one.name}*: {one.why}" for one in chaos.ALL)) if chaotic else "",
        *chaotic,
        FAIRNESS,
        table.markdown([("loop", "what to know about its row"), *results.fairness.items()]),
        NOT_PLAYED if results.missing else "",
        "\n".join(f"- {name}: {why}" for name, why in results.missing.items()),
        NIGHTS.format(seed=results.seed),
        *(f"```\n{table.story(story)}\n```" for story in results.stories),
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _false(results: Results, name: str) -> Share:
    return standing(name, results.played.get(name, [])).false_done


def _summary(results: Results) -> str:
    """Return three sentences: about ralph, about the built-in loops, and about how to read the numbers."""
    examined, gated = (_false(results, name) for name in (EXAMINED, GATED))
    over = sum(night.false_done for night in results.played[GATED] if night.profile == OVERFITTER)
    first = (
        "With a check, protected tests and an exam, ralph called work done that was not done in "
        f"{_of(examined)} simulated nights; without the exam in {_of(gated)}, "
        f"{'all' if over == gated.count else over} of them because an agent special-cased the inputs of the tests."
    )
    hook, perfect, trusting = (_false(results, name) for name in (HOOK, PERFECT, TRUSTING))
    believers = [_false(results, name) for name in BELIEVERS if results.played.get(name)]
    second = (
        f"A Claude Code Stop hook that runs the tests ended like that in {_of(hook)} nights, " if hook.total else ""
    )
    if perfect.total:
        second += f"Claude's `/goal` in {perfect.count} to {trusting.count} (depending on how well its judge reads), "
    if believers:
        few, many = min(one.count for one in believers), max(one.count for one in believers)
        second += f"and Codex goals, Copilot autopilot and the official ralph-loop plugin in {few} to {many}."
    third = "The agents are simulated and chosen to cause trouble: read who is fooled by what, not how often."
    return "\n".join(line for line in (first, second, third) if line)


def _of(found: Share) -> str:
    return f"{found.count} of {found.total}"


def _stuck(results: Results) -> str:
    """Describe the effect of stopping and of handing over on the money."""
    if not results.played.get(HANDED):
        return ""
    ended, handed = (
        standing(name, [night for night in results.played[name] if night.profile != OVERFITTER])
        for name in (GATED, HANDED)
    )
    return STUCK.format(
        ended=f"{ended.in_vain:.0%}",
        ended_finished=ended.finished,
        ended_dollars=f"{ended.dollars or 0:.2f}",
        handed=f"{handed.in_vain:.0%}",
        handed_finished=handed.finished,
        handed_dollars=f"{handed.dollars or 0:.2f}",
    )


HEAD = """
# Compared with other loops
"""

CHART = """
![Nights that ended as done although the work was not done, by loop](../pictures/nights.svg)
"""

METHOD = """
This page is written by a measurement that you can repeat:

```sh
make nights                          # 200 nights of ralph and of the loop that people write in bash
make nights PEERS=native N=60        # … and of the loops that agents have built in (half an hour, 1 GB from npm)
make nights PEERS=all N=60           # … and of the best known other programs
make nights NIGHT=17                 # one of them, line by line
```

A *night* is a small repository with tests that fail, an agent, and a loop that runs the agent until it says that the
work is done, at most {cap} times. The repository, the tests and all processes are real; what the agent does is drawn
from a seed: what it fixes and breaks in a turn, whether it lies, talks, forgets, crashes, hangs, leaves a server
running, edits the tests. Every loop meets the same agents. For the loops that agents have built in, the CLIs are the
real ones from npm and only their model is scripted. Afterwards the original tests, and inputs that nobody has seen,
decide whether the work is done. Time is short: a limit of hours lasts a second, and a loop that waits longer is
ended after a minute.

- *False done*: it said done, or exited with 0, and the work was not done.
- *Missed done*: the work was done after some turn, and the loop did not end with that.
- *Exit code true*: it exited with 0 if the work was done, and with something else if not.
- *Not over by morning*: it had to be ended from outside, because it was silent for a minute or past {endless} turns.
- In brackets: where the true share lies, with 95 % confidence.

Written on {date}, ralph {version}: {deep} nights for ralph and {nights} for every other loop, seed {seed}, which was
not used while the measurement was built ({machine}). The rows with more nights begin with the same ones.
"""

FOOLED = """
## Who is fooled by whom

False dones by agent.
"""

PROFILE = """
## By agent

ralph with a check, protected tests and an exam.
"""

CHANCES = """
Each agent is there for one thing that happens to people who leave a loop alone, and does little else, so that a row
shows what that one thing does. How likely it is was chosen, not measured on real agents: so that the work takes
three to eight turns, and so that thirty nights meet nearly every trouble. A night has at most one limit and one
agent that hangs: both cost real seconds. Neither the hopeless agent nor the stop-talker can finish every night,
even with a judge who knows the truth.
"""

STUCK = """
## Without progress: stop, or hand over

Without the overfitter, whom only an exam stops:

- `ralph loop` ends after eight iterations without progress (`--stuck 8`): {ended} of the money goes into nights that
  fail, a finished task costs ${ended_dollars}, and {ended_finished} of the nights that could be finished are.
- With `--stuck 4 --then AGENT` a second, steady agent takes over instead: {handed} of the money, ${handed_dollars},
  and {handed_finished}.

Played once more on 2026-11-19, again without the overfitter: 300 nights of each of two seeds not used before. With
`--stuck 4 --then` ralph finishes 270 of the 270 nights that could be finished (seed 8642), at $1.69 each, and spends
nothing on nights that fail. With `--stuck 8` it finishes 264 of them, at $2.01, and spends 19.5% on nights that fail
(seed 7321: 264 of 270, $2.01, 17.6%). Nearly all of that are the hopeless agent and the stop-talker, who gets a
little further every few turns and still cannot finish: only another agent helps there. For the ten agents that the
nights had when `--stuck` was planned it is 17.4% (15.1%). No done was false, and none was missed. To repeat it:

```sh
python -m bench.nights --seed 8642 -n 300 --alone --only "ralph --check --protect" \\
  --only "ralph --check --protect --stuck 4 --then" --agents excellent,steady,clumsy,optimist,talker,forgetful,\\
fragile,litterer,cheat,hopeless,bloater,script-editor,stop-talker
```

Honest agents are not cut short: in 300 nights of the excellent, the steady and the clumsy agent (seed 7321) ralph
finished all 299 that could be finished, and ended the last one as stalled.

```sh
python -m bench.nights --seed 7321 -n 300 --alone --only "ralph --check --protect" --agents excellent,steady,clumsy
```
"""

NUMBERS = """
## The numbers that ralph is held to

With a check, protected tests and an exam. CI plays thirty nights for every change.
"""

CHAOS = """
## When something gets in the way

The same nights, with a trouble in the middle, for ralph with a check and protected tests. {troubles}.

What a kill interrupts depends on the machine: these nights repeat what is drawn, but not every line.
"""

FAIRNESS = f"""
## What is unfair, and to whom

- To real agents: the simulated ones don't read. A loop that feeds errors back, as ralph and Claude Code do, gains
  nothing by it here. They show ways in which agents fail, not how often real ones do.
- To `/goal`: its judge is scripted. The perfect reader and the trusting reader are bounds; the real judge is
  somewhere between them, and costs one model call per turn that is not counted here.
- To the built-in loops: a turn that crashes, hangs or is cut off is only a lost connection for them (they ask again,
  which costs them nothing), but a usage limit lasts for the rest of the night, and nobody starts them again. They
  get at most {2 * CAP} model requests or {CAP} turns, whichever their CLI can count.
- To loops with long pauses: they look worse than over a real night.
- To everybody but ralph: its authors made this measurement and knew what it would measure. The exam and the truth
  ask different inputs, but they were written by the same hand.

The published run was played in parts on a busy machine with two cores, ralph's rows with one commit and the other loops
with an earlier one. The nights with a trouble were played again after the choice of their agents was corrected.
"""

NOT_PLAYED = """
Not played:
"""

NIGHTS = """
## Three nights, line by line

Each is what `python -m bench.nights --seed {seed} --night NUMBER --only NAME` prints.
"""


WIDTH, LEFT, TOP, ROW = 760, 360, 64, 34


def _picture(results: Results) -> str:
    """Draw the share of nights that ended as done although the work was not."""
    found = {name: _false(results, name) for name in LABELS if results.played.get(name)}
    return draw_chart([(name, LABELS[name], share) for name, share in found.items()])


def draw_chart(bars: Sequence[tuple[str, str, Share]]) -> str:
    """`bars` are contender, label and share."""
    height = TOP + ROW * len(bars) + 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{TITLE}">\n'
        f"<style>{STYLE}</style>\n"
        f'<text class="title" x="16" y="30">{TITLE}</text>\n'
        f'<text class="dim" x="16" y="48">{AGENTS}</text>\n'
        f"{_axis(height)}\n" + "\n".join(_bar(at, *bar) for at, bar in enumerate(bars)) + "\n</svg>\n"
    )


AGENTS = "simulated agents that lie, talk, crash, cheat, special-case and litter"
TITLE = "Nights that ended as done although the work was not done"
LABELS = {
    EXAMINED: "ralph loop --check … --protect … --exam …",
    GATED: "ralph loop --check … --protect …",
    CHECKED: "ralph loop --check …",
    HOOK: "Claude Code, Stop hook that runs the tests",
    PERFECT: "Claude Code /goal, a perfect reader as judge",
    TRUSTING: "Claude Code /goal, a trusting reader as judge",
    CODEX: "Codex goals",
    COPILOT: "Copilot autopilot",
    PLUGIN: "Claude Code, official ralph-loop plugin",
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
    return LEFT + share * (WIDTH - LEFT - 100)


def _axis(height: int) -> str:
    marks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = _x(share)
        marks.append(f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{height - 28}"/>')
        marks.append(f'<text class="dim" x="{x:.0f}" y="{height - 12}" text-anchor="middle">{share:.0%}</text>')
    return "\n".join(marks)


def _bar(at: int, name: str, label: str, found: Share) -> str:
    y, x = TOP + ROW * at, _x(found.value)
    kind = {EXAMINED: "ours", GATED: "ours", CHECKED: "bare"}.get(name, "other")
    return (
        f'<text x="16" y="{y + 21}">{escape(label)}</text>'
        f'<rect class="{kind}" x="{LEFT}" y="{y + 7}" width="{max(3.0, x - LEFT):.0f}" height="20" rx="3"/>'
        f'<text x="{x + 10:.0f}" y="{y + 22}">{_of(found)}</text>'
    )
