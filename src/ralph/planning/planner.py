"""How does a goal become a plan? An agent that may only look is asked for one, in a run of its own; its answer is
believed once it is a plan that can be worked off."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import Note, Opinion, Outcome, Rule, Run, Stop
from ralph.planning.plan_file import SHAPE, Plan, plan_in
from ralph.settings import Settings

TURNS = 3
_LONGEST_QUOTE = 12_000

ASKED = """\
Plan the work below. Look at this repository as long as you need to, and change nothing: no file, no commit. Your \
final answer is the plan itself, in this shape and nothing else:

{shape}
Cut the work into tasks that can be done and verified one by one, in a fresh context each, by an agent that sees the \
task and the repository and nothing of this conversation. A task's title says what is true when it is done. Name what \
comes first with `after:`. Prefer checks that are red today: one that is green before anything was done proves \
nothing. Every check is a shell command that runs in the repository's top folder and needs no person. Write no task \
whose result nobody could check.
{project}{unattended}
{goal}"""
_PROJECT = "\nThis project's own checks are: {checks}.\n"
_UNATTENDED = "\nNobody can answer questions: decide them yourself, and write each decision under `## Assumptions`.\n"
_CHANGED = """\

This is the plan so far:

{plan}
Change it as this person says, and answer with the whole plan:

{words}"""


class PlanRequest(Struct, frozen=True):
    """What a plan is wanted for. `goal` is as it stands in the prompt; `checks` are the project's own."""

    goal: str
    checks: tuple[str, ...] = ()
    attended: bool = True

    def prompt(self, plan: Plan | None = None, words: str = "") -> str:
        project = _PROJECT.format(checks=", ".join(f"`{check}`" for check in self.checks)) if self.checks else ""
        asked = ASKED.format(
            shape=SHAPE,
            project=project,
            unattended="" if self.attended else _UNATTENDED,
            goal=f"# The work\n\n{self.goal}",
        )
        return asked + (_CHANGED.format(plan=plan.text, words=words) if plan else "")


def planning(settings: Settings) -> Settings:
    """The settings with which a plan is asked for: a prompt to the letter, nothing checked, nothing committed."""
    return replace(
        settings,
        preset="guardrails",
        until=(),
        guardrails=(),
        tasks="",
        spec="",
        maximum_iterations=TURNS,
        stall=0,
        min_tool_calls=0,
        session="fresh",
        worktree=False,
        scm=None,
        reviews=None,
        rules=(),
    )


def planned(name: str) -> Rule:
    """Ends the run once the last answer is a plan; says what is wrong with it until then."""

    def rule(run: Run) -> Iterator[Opinion]:
        last = run.last
        if last is None or last.turn.failure or not last.turn.text.strip():
            return
        plan = plan_in(last.turn.text, name)
        problems = plan.problems() if plan else ["it holds no plan"]
        if not problems:
            yield Stop(Outcome.DONE, "the plan can be worked off")
            return
        yield Note(_objection(last.turn.text, problems), "plan")

    return rule


def _objection(answer: str, problems: Sequence[str]) -> str:
    wrong = "\n".join(f"- {problem}" for problem in problems[:20])
    quoted = answer[:_LONGEST_QUOTE]
    return f"Your last answer cannot be used:\n{wrong}\n\nIt was:\n\n{quoted}\n\nAnswer with the whole plan, mended."
