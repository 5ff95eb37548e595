"""Find out where a run is published, and whether it can be."""

from collections.abc import Callable

from msgspec import Struct

from ralph.errors import UserError
from ralph.forge import host
from ralph.forge.host import Hosted, HostError
from ralph.git.client import Git
from ralph.history.run_history import RunHistory
from ralph.run.request import RunRequest

Describe = Callable[[RunHistory, str], str]
"""Returns the text of a pull request, as Markdown, from the history of the run and the agent's last answer."""


def last_answer(history: RunHistory, answer: str) -> str:
    """Return the agent's last answer: what the pull request of a caller without a report says."""
    return answer


class PublishTarget(Struct, frozen=True):
    """Where a run is published. `base` is the branch that its pull request is for."""

    hosted: Hosted
    base: str
    is_github: bool
    describe: Describe


def find_publish_target(request: RunRequest, repository: Git, describe: Describe) -> PublishTarget:
    """Return where the run will be published. Raise a UserError if it cannot be published."""
    if request.pr != "draft" and not request.settings.verifies:
        hint = 'add a check, --check "CMD", or publish it as a draft: --pr=draft'
        raise UserError("--pr needs something that verifies the work", hint)
    hosted = host.find_hosted(repository)
    default = _default_branch(hosted)
    if not default and request.pr == "wait":
        raise UserError(
            f"--pr=wait needs GitHub, and {hosted.host or hosted.remote} isn't", "use --pr, without waiting"
        )
    head = repository.try_run("symbolic-ref", "--short", "-q", "HEAD").out.decode("utf-8", "replace").strip()
    exists = head and repository.resolve(f"refs/remotes/{hosted.remote}/{head}")
    return PublishTarget(hosted, head if exists else default or "main", is_github=bool(default), describe=describe)


def _default_branch(hosted: Hosted) -> str:
    """Return the default branch of a repository on GitHub; "" for another host."""
    if not hosted.host:
        return ""
    try:
        answer = hosted.api("")
    except HostError as error:
        if hosted.is_surely_github or error.status not in (0, 401):
            raise
        return ""
    if not isinstance(answer, dict) or answer.get("permissions", {}).get("push") is False:
        raise UserError(f"you may not push to {hosted.path} on {hosted.host}", "fork it, and clone the fork")
    return str(answer.get("default_branch") or "main")
