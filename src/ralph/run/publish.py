"""Publish the work of a run (`--pr`): push the branch of its worktree and open a pull request with the report as its
text. With `--pr=wait` the host's checks count as checks of the iteration."""

import re

from msgspec.structs import replace

from ralph.core import events
from ralph.core.model import Check, Iteration, Outcome, Run, Stop
from ralph.core.prompts import ERROR_LIMIT
from ralph.core.rules import interruption
from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.forge import host
from ralph.forge.host import HostCheck, HostError, PullRequest
from ralph.git.client import GitResult, user_environment
from ralph.git.remote import push_refusal
from ralph.history.feed import history_of
from ralph.loop import Parts
from ralph.process.program import Command
from ralph.run.followups import commit_to_branch, make_runner
from ralph.run.publish_target import PublishTarget
from ralph.run.request import RunRequest
from ralph.verdict.checks import check_finished
from ralph.verdict.context import Context
from ralph.verdict.trees import Trees

POLL_INTERVAL = 15.0  # seconds between two looks at the host's checks
MAX_EMPTY_LOOKS = 4  # after this many looks without any check, ralph assumes that the host has none
MAX_HOST_ERRORS = 5  # failed looks in a row
TASK = "pull request"
HOST_CHECKS = "the checks of the host"
UNPUBLISHED = (Outcome.INTERRUPTED, Outcome.FATAL)


class PullRequestPublisher:
    """Publishes what a run does in its worktree."""

    def __init__(self, request: RunRequest, target: PublishTarget, context: Context, trees: Trees) -> None:
        assert trees.worktree is not None
        self._request, self._base, self._is_github = request, target.base, target.is_github
        self._describe = target.describe
        self._hosted = replace(target.hosted, deadline=context.deadline)
        self._context, self._trees, self._worktree = context, trees, trees.worktree
        self._known: PullRequest | None = None
        self._pushed = self._link = ""  # what was pushed, and where the host says how to continue

    def await_host_checks(self, run: Run, iteration: Iteration, parts: Parts) -> Iteration:
        """The referee of `--pr=wait`: publish the work as it is, and add the results of the host's checks to the
        iteration."""
        if self._trees.is_untouched():
            return iteration
        commit_to_branch(self._worktree, self._context)(run, iteration)
        request = self._publish(iteration.number, run, None)
        checks, results = [*iteration.checks], self._wait_for_checks(request)
        if isinstance(results, str):
            checks.append(Check(name=HOST_CHECKS, passed=False, exit_code=1, tail=results, head=results))
            results = []
        for result in results:
            check = Check(
                name=f"{self._hosted.host}: {one_line(clean(result.name), 100)}", passed=result.state == "green"
            )
            if not check.passed:
                log = self._context.redact.text(host.load_log(self._hosted, result, ERROR_LIMIT))
                check = replace(check, exit_code=1, head=log, tail=log)
            self._context.tell(events.CheckStarted(check.name), check_finished(check))
            checks.append(check)
        tree = parts.workspace.tree(iteration.number)  # the commit has moved HEAD
        return replace(iteration, checks=tuple(checks), tree=tree)

    def _wait_for_checks(self, request: PullRequest) -> list[HostCheck] | str:
        """Return the host's checks once all have ended, or why the run stopped waiting."""
        context = self._context
        context.tell(events.Notice(f"waiting for the checks of {request.url}", "info"))
        looks = errors = 0
        poll = context.settings.poll_interval or POLL_INTERVAL
        while True:
            try:
                checks = host.list_checks(self._hosted, self._pushed)
                now = host.load_pull_request(self._hosted, request.number)
                looks, errors = looks + 1, 0
                if not now.is_open and not now.is_merged:
                    hint = "reopen it if it is wanted, then `ralph resume`"
                    raise UserError(f"pull request #{now.number} was closed: {now.url}", hint)
                if now.is_merged or (checks and all(check.state != "pending" for check in checks)):
                    return [check for check in checks if check.state != "pending"]
                if not checks and looks >= MAX_EMPTY_LOOKS:
                    context.tell(events.Notice(f"{self._hosted.host} shows no checks for {request.url}", "info"))
                    return []
            except HostError as error:
                errors += 1
                if errors >= MAX_HOST_ERRORS or 400 <= error.status < 500:
                    raise
            if context.wait(min(poll, context.clock.time_left())):
                return "not waited for: the run was interrupted"
            if context.clock.time_left() <= 0:
                return "not finished when the time of the run was over"

    def finish(self, run: Run, stop: Stop) -> Stop:
        """Publish the result, if the outcome allows it. Return how the run ended: failed if that was impossible."""
        is_done = stop.outcome is Outcome.DONE and self._request.settings.verifies
        wanted = is_done or (self._request.pr == "draft" and stop.outcome not in UNPUBLISHED)
        context, number = self._context, len(run.iterations)
        if not wanted:
            return stop
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
        """Push the branch, and open or update its pull request."""
        context, branch = self._context, self._worktree.branch
        self._push()
        if not self._is_github:  # the user opens the pull request, with a link from the host or a command
            command = f"git request-pull {self._base} {self._hosted.remote} {branch}"
            context.tell(events.ScmFinished(number, TASK, True, f"to open one: {self._link or command}"))
            return PullRequest(number=0, url="")
        body = self._body(run, stop)
        title = context.redact.text(one_line(clean(self._request.title), 72))
        self._known = host.publish_pull_request(
            self._hosted, self._known, branch=branch, base=self._base, title=title, body=body, is_draft=is_draft
        )
        context.tell(events.ScmFinished(number, TASK, True, self._known.url))
        return self._known

    def _push(self) -> None:
        context, branch = self._context, self._worktree.branch
        tip = self._worktree.repository.resolve(self._worktree.ref)
        if not tip or tip == self._pushed:
            return
        lease = f"--force-with-lease=refs/heads/{branch}:{self._pushed}"  # the agent may have rewritten history
        words = ("git", "push", *((lease,) if self._pushed else ()), self._hosted.remote, f"{tip}:refs/heads/{branch}")
        push = Command(argv=words, env=user_environment(context.deadline), cwd=self._worktree.path)
        result = make_runner(context, self._trees.config_watch)(push)
        if result.code:
            reason = push_refusal(GitResult(result.code, b"", result.output))
            raise UserError(f"cannot push {branch}: {reason}", "fix it, then `ralph resume`")
        self._pushed = tip
        links = re.findall(r"(?m)^remote:.*?(https?://\S+)", result.output)
        self._link = one_line(clean(links[0]), 300) if links else ""

    def _body(self, run: Run, stop: Stop | None) -> str:
        context = self._context
        verified = stop is not None and stop.outcome is Outcome.DONE
        then = events.closing_events(run, stop, context.clock.elapsed(), 0, verified) if stop else []
        history = replace(history_of(context.folder, then=then), goal=clean(self._request.title))
        report = self._describe(history, run.last.turn.text if run.last else "")
        # The host closes the issue when a pull request with these words is merged.
        path, mark, issue = self._request.issue.partition("#")
        closing = f"Closes {'' if path == self._hosted.path else path}#{issue}" if mark else ""
        return context.redact.text("\n\n".join(filter(None, (closing, report))))
