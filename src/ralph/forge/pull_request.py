"""How does work become a pull request, and what does its host say of it? Opened or updated by its branch, so that
asking twice opens one; the checks of the host are read until none is at work."""

from typing import Any, Literal

from msgspec import Struct

from ralph.core.text import clean, tail
from ralph.errors import UserError
from ralph.forge.host import Hosted, HostError

LONGEST_BODY = 60_000  # of the 65,536 characters that GitHub takes
LONGEST_TITLE = 120
_PENDING = ("queued", "in_progress", "waiting", "requested", "pending")
_GREEN = ("success", "neutral", "skipped")
_READY = "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { clientMutationId } }"


class PullRequest(Struct, frozen=True, kw_only=True):
    """`sha` is the commit that the host knows as its newest."""

    number: int
    url: str
    node: str = ""
    sha: str = ""
    is_draft: bool = False
    is_open: bool = True
    is_merged: bool = False


class HostCheck(Struct, frozen=True):
    """A check that the host runs. `job` is where its log is, if it has one."""

    name: str
    state: Literal["pending", "green", "red"]
    conclusion: str = ""
    job: str = ""
    said: str = ""


class Draft(Struct, frozen=True):
    """What a pull request says, and what it merges into what."""

    branch: str
    base: str
    title: str
    body: str
    is_draft: bool = False


def published(hosted: Hosted, draft: Draft, known: PullRequest | None = None) -> PullRequest:
    """The pull request of a branch, made or brought up to date. One that somebody has closed stays closed."""
    found = looked_at(hosted, known.number) if known else _of_branch(hosted, draft.branch)
    said = {"title": draft.title[:LONGEST_TITLE], "body": draft.body[:LONGEST_BODY]}
    if found is None:
        asked = {**said, "head": draft.branch, "base": draft.base, "draft": draft.is_draft}
        return _read(hosted.api("pulls", "POST", asked))
    if not found.is_open:
        what = "merged" if found.is_merged else "closed"
        raise UserError(f"pull request #{found.number} was {what} meanwhile: {found.url}", _after(found, draft))
    changed = _read(hosted.api(f"pulls/{found.number}", "PATCH", said))
    if changed.is_draft and not draft.is_draft:
        hosted.api("/graphql", "POST", {"query": _READY, "variables": {"id": changed.node}})
    return changed


def _after(found: PullRequest, draft: Draft) -> str:
    if found.is_merged:
        return f"what came after it is on the branch {draft.branch}"
    return f"reopen it if it is wanted; the work is on the branch {draft.branch}"


def looked_at(hosted: Hosted, number: int) -> PullRequest:
    return _read(hosted.api(f"pulls/{number}"))


def _of_branch(hosted: Hosted, branch: str) -> PullRequest | None:
    """The newest one; a run has a branch of its own, so whatever is there is the run's."""
    found = hosted.api(f"pulls?state=all&head={hosted.owner}:{branch}&per_page=100")
    return max(map(_read, found), key=lambda one: one.number) if isinstance(found, list) and found else None


def checks_of(hosted: Hosted, sha: str) -> list[HostCheck]:
    """The checks of a commit: those of apps, and the older kind that only has a status."""
    runs = hosted.api(f"commits/{sha}/check-runs?per_page=100")
    found: dict[str, HostCheck] = {}
    for one in _list(runs, "check_runs"):
        found.setdefault(str(one.get("name", "")), _check(one))  # the latest of each name comes first
    for one in _list(hosted.api(f"commits/{sha}/status?per_page=100"), "statuses"):
        state = str(one.get("state", ""))
        name = str(one.get("context", "status"))
        what: Literal["pending", "green", "red"] = (
            "pending" if state == "pending" else "green" if state == "success" else "red"
        )
        found.setdefault(name, HostCheck(name, what, state, said=str(one.get("description") or "")))
    return list(found.values())


def log_of(hosted: Hosted, check: HostCheck, limit: int) -> str:
    """The end of what a check printed, as far as the host tells."""
    if check.job:
        try:
            lines = hosted.raw(f"actions/jobs/{check.job}/logs").decode("utf-8", "replace").splitlines()
            return tail(clean("\n".join(map(_without_time, lines))), limit)
        except HostError:
            pass  # it has no log, or it is gone: what else it said has to do
    return tail(clean(check.said or f"the host says: {check.conclusion}"), limit)


def _without_time(line: str) -> str:
    stamp, space, rest = line.lstrip("\ufeff").partition(" ")
    return rest if space and len(stamp) > 19 and stamp.endswith("Z") and stamp[4] == "-" else line


def _check(one: dict[str, Any]) -> HostCheck:
    conclusion = str(one.get("conclusion") or "")
    is_over = str(one.get("status", "")) not in _PENDING
    output = one.get("output") or {}
    said = "\n".join(str(output[key]) for key in ("title", "summary", "text") if output.get(key))
    state: Literal["pending", "green", "red"] = "pending" if not is_over else "green" if conclusion in _GREEN else "red"
    return HostCheck(str(one.get("name", "")), state, conclusion, str(one.get("id", "")), said)


def _list(told: Any, name: str) -> list[dict[str, Any]]:
    found = told.get(name) if isinstance(told, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _read(told: Any) -> PullRequest:
    try:
        return PullRequest(
            number=int(told["number"]),
            url=str(told["html_url"]),
            node=str(told.get("node_id", "")),
            sha=str(told.get("head", {}).get("sha", "")),
            is_draft=bool(told.get("draft")),
            is_open=told.get("state", "open") == "open",
            is_merged=bool(told.get("merged") or told.get("merged_at")),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise HostError("cannot understand what the host says about the pull request", "try again later") from None
