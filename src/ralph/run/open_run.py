"""Open what the loop of a run needs: its policy, trees, tuning, publisher and parts."""

from contextlib import ExitStack

from msgspec import Struct

from ralph.core.judgement import results_so_far
from ralph.core.model import Run
from ralph.errors import UserError
from ralph.git.worktrees import Worktree
from ralph.loop import Agent, Parts
from ralph.process.descendants import kill_run
from ralph.run.agents import workers
from ralph.run.followups import clear_progress, tell_skipped_hook
from ralph.run.parts import make_parts
from ralph.run.plan import RunPlan
from ralph.run.policy import Policy, make_policy
from ralph.run.publish import PullRequestPublisher
from ralph.run.tuning import Tuning
from ralph.verdict.context import Context
from ralph.verdict.trees import GitTrees, Trees, make_trees


class OpenRun(Struct, frozen=True, kw_only=True):
    """What the steps of a run share. `tuning` measures the attempts of a run that optimises a number; `publisher` opens
    a pull request."""

    plan: RunPlan
    context: Context
    policy: Policy
    trees: Trees
    tuning: Tuning | None
    publisher: PullRequestPublisher | None


def begin_run(plan: RunPlan, context: Context, worktree: Worktree | None, stack: ExitStack) -> tuple[OpenRun, Run]:
    """Open what the loop needs. Return it with the new run; or with the resumed one, after killing what its earlier
    process left running."""
    request, story = plan.request, plan.story
    settings, trees = request.settings, make_trees(context, worktree, request.green_is_enough)
    policy = make_policy(settings, workers(plan.agents), request.one_shot, plan.rules, request.green_is_enough)
    if story is None or story.started is None:
        run = Run(id=plan.id, goal=request.title, base_tree=trees.begin())
    else:
        if not settings.keep_children:
            kill_run(plan.id, time_left=context.deadline.remaining)
        trees.begin(story.run.base_tree, story.run.last.number if story.run.last else 0)
        run = story.resumed()
    opened = OpenRun(
        plan=plan,
        context=context,
        policy=policy,
        trees=trees,
        tuning=_open_tuning(context, trees, stack) if settings.traits.measures else None,
        publisher=PullRequestPublisher(request, plan.publish_to, context, trees) if plan.publish_to else None,
    )
    return opened, run


def _open_tuning(context: Context, trees: Trees, stack: ExitStack) -> Tuning:
    """Return the `Tuning` that measures the attempts of a run that optimises a number."""
    if not isinstance(trees, GitTrees) or trees.worktree is None:
        raise UserError("ralph tune needs git and a worktree", "git init, and commit once")
    tuning = Tuning(context, trees, trees.worktree, stack)
    tuning.begin()
    return tuning


def make_run_parts(opened: OpenRun, agent: Agent) -> Parts:
    plan, context, trees, publisher = opened.plan, opened.context, opened.trees, opened.publisher
    request, story = plan.request, plan.story
    clear_progress(context)
    if publisher:
        tell_skipped_hook(context)
    finished = {*story.settled} if story else set()
    last = story.run.last if story else None
    if last and plan.accepts_files:  # what the person has changed since is committed as well
        finished = {(number, task) for number, task in finished if number != last.number}
    elif last and trees.has_moved(last):
        # The work was committed, but ralph was killed before it recorded that.
        finished.add((last.number, "commit"))
    parts = make_parts(
        request,
        opened.policy,
        context,
        agent=agent,
        trees=trees,
        earlier=results_so_far(story.run) if story else (),
        finished=frozenset(finished),
        referees=(publisher.await_host_checks,) if request.pr == "wait" and publisher else (),
        tuning=opened.tuning,
        is_resumed=story is not None,
        accepts_files=plan.accepts_files,
    )
    return plan.place.adapt(parts, context)
