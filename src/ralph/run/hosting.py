"""How does the work of a run reach its host? Pushed as the branch of its worktree, and a pull request made from the
report; with `wait`, the checks of the host are checks of the iteration, and red ones come back as notes like any."""

from pathlib import Path

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Check, Iteration, Outcome, Run, Stop
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.rules import interruption
from ralph.core.text import clean, one_line, tail
from ralph.errors import UserError
from ralph.forge.host import (
    Draft,
    HostCheck,
    Hosted,
    HostError,
    PullRequest,
    find_hosted,
    list_checks,
    load_log,
    load_pull_request,
    publish_pull_request,
)
from ralph.git.client import Git, user_environment
from ralph.git.worktrees import Worktree
from ralph.history.feed import history_of
from ralph.loop import Parts, ending, judge
from ralph.run.checks import finished
from ralph.run.context import Context
from ralph.run.followups import keep_in_branch, kept_runner, tell_skipped_hook
from ralph.run.order import Order
from ralph.run.workspace import Trees
from ralph.show.report import for_review

POLL = 15.0  # seconds between two looks at the host's checks
PATIENCE = 4  # looks until a host that shows no check is taken to have none
TROUBLES = 5  # looks in a row at which the host cannot be reached
TASK = "pull request"
NOT_WAITED = "the checks of the host"
_UNPUBLISHED = (Outcome.INTERRUPTED, Outcome.FATAL)


def prepared(order: "Order", repository: Git) -> "Publishing":
    """What is known of the host before anything is made or spent; whatever is in the way is said now."""
    settings = order.settings
    if order.pr != "draft" and not settings.verifies:
        hint = 'add a check, --check "CMD", or publish it as a draft: --pr=draft'
        raise UserError("--pr needs something that verifies the work", hint)
    hosted = find_hosted(repository)
    default = _default_branch(hosted)
    if not default and order.pr == "wait":
        raise UserError(
            f"--pr=wait needs GitHub, and {hosted.host or hosted.remote} is none", "use --pr, without waiting"
        )
    head = repository.try_run("symbolic-ref", "--short", "-q", "HEAD").out.decode("utf-8", "replace").strip()
    is_there = head and repository.resolve(f"refs/remotes/{hosted.remote}/{head}")
    return Publishing(order, hosted, head if is_there else default or "main", is_github=bool(default))


def _default_branch(hosted: Hosted) -> str:
    """The branch that GitHub merges into unless it is told; none where the host is another one."""
    if not hosted.host:
        return ""
    try:
        told = hosted.api("")
    except HostError as error:
        if hosted.is_surely_github or error.status not in (0, 401):
            raise
        return ""
    if not isinstance(told, dict) or told.get("permissions", {}).get("push") is False:
        raise UserError(f"you may not push to {hosted.path} on {hosted.host}", "fork it, and clone the fork")
    return str(told.get("default_branch") or "main")


class Publishing:
    """What a run does at its host. `base` is the branch that the work shall be merged into."""

    _context: Context  # known once the run is open
    _trees: Trees
    _worktree: "Worktree"

    def __init__(self, order: "Order", hosted: Hosted, base: str, is_github: bool) -> None:
        self._order, self._hosted, self._base, self._is_github = order, hosted, base, is_github
        self._known: PullRequest | None = None
        self._pushed = ""
        self._said_by_host: list[str] = []

    def equip(self, parts: Parts, context: Context, trees: Trees) -> None:
        """From here on it knows where the work is. With `wait`, no claim is believed before the host's checks pass."""
        assert trees.worktree is not None
        self._context, self._trees, self._worktree = context, trees, trees.worktree
        tell_skipped_hook(context)
        if self._order.pr == "wait":
            parts.reviews = (*parts.reviews, self._review)

    def _review(self, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        seen = run.plus(replace(iteration, tree=parts.workspace.tree(iteration.number)))
        verdict = judge(seen.seeing(parts.workspace.look(seen)), parts.rules)
        if not isinstance(verdict, Stop) or verdict.outcome is not Outcome.DONE or self._trees.is_untouched():
            return iteration
        return replace(iteration, checks=(*iteration.checks, *self._host_checks(run, iteration)))

    def _host_checks(self, run: Run, iteration: Iteration) -> tuple[Check, ...]:
        """What the host says of the work as it is now."""
        keep_in_branch(self._worktree, self._context, self._trees)(run, iteration)
        request = self._publish(iteration.number, run, None)
        found = self._awaited(request)
        if isinstance(found, str):
            return (Check(name=NOT_WAITED, passed=False, exit_code=1, tail=found, head=found),)
        checks = tuple(self._check(one) for one in found)
        for check in checks:
            self._context.tell(events.CheckStarted(check.name), finished(check))
        return checks

    def _check(self, one: HostCheck) -> Check:
        name = f"{self._hosted.host}: {one_line(clean(one.name), 100)}"
        if one.state == "green":
            return Check(name=name, passed=True)
        said = self._context.redact.text(load_log(self._hosted, one, ERROR_LIMIT))
        return Check(name=name, passed=False, exit_code=1, head=said, tail=said)

    def _awaited(self, request: PullRequest) -> list[HostCheck] | str:
        """The host's checks once none is at work any more; or why they are not waited for."""
        context = self._context
        context.tell(events.Notice(f"waiting for the checks of {request.url}", "info"))
        looks = troubles = 0
        tick, poll = context.tick, self._order.settings.poll_interval or POLL
        while True:
            try:
                checks, now = list_checks(self._hosted, self._pushed), load_pull_request(self._hosted, request.number)
                looks, troubles = looks + 1, 0
                if not now.is_open and not now.is_merged:
                    hint = "reopen it if it is wanted, then `ralph resume`"
                    raise UserError(f"pull request #{now.number} was closed meanwhile: {now.url}", hint)
                if now.is_merged or (checks and all(one.state != "pending" for one in checks)):
                    return [one for one in checks if one.state != "pending"]
                if not checks and looks >= PATIENCE:
                    context.tell(events.Notice(f"{self._hosted.host} shows no checks for {request.url}", "info"))
                    return []
            except HostError as error:
                troubles += 1
                if troubles >= TROUBLES or 400 <= error.status < 500:
                    raise
            if context.interrupt.wait(min(poll, context.time_left()), (lambda _: tick()) if tick else None):
                return "not waited for: the run was interrupted"
            if context.time_left() <= 0:
                return "not finished when the time of the run was over"

    def finish(self, run: Run, stop: Stop, verified: bool) -> Stop:
        """Publishes what the run came to, if that is wanted. The end is another one where it cannot be."""
        is_done = stop.outcome is Outcome.DONE and verified
        wanted = is_done or (self._order.pr == "draft" and stop.outcome not in _UNPUBLISHED)
        context = self._context
        if not wanted:
            return stop
        number = len(run.iterations)
        if self._trees.is_untouched():
            context.tell(events.Notice("nothing was changed, so there is nothing to publish", "info"))
            return stop
        try:
            self._publish(number, run, stop, is_draft=not is_done)
        except UserError as error:
            context.tell(events.ScmFinished(number, TASK, False, error.advice))
            where = f"the work is on the branch {self._worktree.branch}"
            if context.interrupt.level:
                return interruption(context.interrupt.reason)
            why = f"{stop.outcome.value}, but not published: {error.advice}; {where}"
            return Stop(Outcome.FATAL, why)
        return stop

    def _publish(self, number: int, run: Run, stop: Stop | None, is_draft: bool = False) -> PullRequest:
        """Pushes the branch, and opens or updates its pull request."""
        context, branch = self._context, self._worktree.branch
        self._push()
        if not self._is_github:  # a person opens it, by the link that the host gave or a command
            words = [word for line in self._said_by_host for word in line.split()]
            links = [one_line(clean(word), 300) for word in words if word.startswith(("https://", "http://"))]
            command = f"git request-pull {self._base} {self._hosted.remote} {branch}"
            if "gitlab" in self._hosted.host:
                command = f"glab mr create --source-branch {branch} --target-branch {self._base}"
            said = links[0] if links else command
            context.tell(events.ScmFinished(number, TASK, True, f"to open one: {said}"))
            return PullRequest(number=0, url="")
        body = self._body(run, stop)
        title = context.redact.text(one_line(clean(self._order.title), 72))
        draft = Draft(branch, self._base, title, body, is_draft)
        self._known = publish_pull_request(self._hosted, draft, self._known)
        context.tell(events.ScmFinished(number, TASK, True, self._known.url))
        return self._known

    def _push(self) -> None:
        context, branch = self._context, self._worktree.branch
        tip = self._worktree.home.resolve(self._worktree.ref)
        if not tip or tip == self._pushed:
            return
        lease = f"--force-with-lease=refs/heads/{branch}:{self._pushed}"  # the agent may have written history anew
        words = ("git", "push", *((lease,) if self._pushed else ()), self._hosted.remote, f"{tip}:refs/heads/{branch}")
        done = kept_runner(context, self._trees.config_watch)(words, Path(self._worktree.path), user_environment())
        if done.code:
            raise UserError(f"cannot push {branch}: {_reason(done.output)}", "mend it, then `ralph resume`")
        self._pushed = tip
        self._said_by_host = [one.removeprefix("remote:").strip() for one in done.output.splitlines() if "://" in one]

    def _body(self, run: Run, stop: Stop | None) -> str:

        context = self._context
        verified = stop is not None and stop.outcome is Outcome.DONE
        then = ending(run, stop, context.elapsed(), 0, verified) if stop else []
        history = replace(history_of(context.folder, then=then), goal=clean(self._order.title))
        report = for_review(history, run.last.turn.text if run.last else "")
        # By these words the host closes the issue once the work is merged.
        path, mark, issue = self._order.issue.partition("#")
        closing = f"Closes {'' if path == self._hosted.path else path}#{issue}" if mark else ""
        return context.redact.text("\n\n".join(filter(None, (closing, report))))


def _reason(output: str) -> str:
    """Why a push was refused, in a line: what the host says comes before what git makes of it."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    told = [line.removeprefix("remote:").strip() for line in lines if line.startswith("remote: error")]
    told = told or [line for line in lines if line.startswith(("error:", "fatal:", "!"))]
    return one_line(told[0], 300) if told else tail(" ".join(lines), 300) or "git push failed"
