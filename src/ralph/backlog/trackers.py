"""Backlogs in a tracker: GitHub issues through `gh`, which has the token, and beads through `bd`.

The text of an issue becomes the agent's goal. ralph never takes a check, an agent or a command from it. A merge commit
says `Closes #12`, so that GitHub closes the issue when the commit reaches its default branch.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from ralph.backlog.backlog_content import OWN, BacklogContent, add_own_settings, key_of, title_of
from ralph.core.backlog import BacklogTask
from ralph.core.text import one_line
from ralph.errors import UNREADABLE, UserError
from ralph.files import MOST_BYTES
from ralph.forge.host import issue_goal, readable
from ralph.git.client import user_environment
from ralph.process.own_process import OwnProcess
from ralph.process.program import Command, own_program
from ralph.process.signals import Deadline

QUERY_TIMEOUT = 60.0  # seconds
HARMLESS = ("after", "touches")
ISSUES = "repos/{owner}/{repo}/issues"  # gh replaces the braces by the repository of the folder
BLOCKING = ("", "blocks", "conditional-blocks", "waits-for")
TEXTS = ("description", "design", "acceptance_criteria", "notes")


class Tracker(Struct, frozen=True):
    """A program that has a list of tasks: `command` returns the argv for a query, `read` parses the answer."""

    program: str
    hint: str
    command: Callable[[str], tuple[str, ...]]
    read: Callable[[bytes], BacklogContent]

    def list_tasks(self, query: str, workspace: str) -> BacklogContent:
        if not own_program(self.program):
            raise UserError(f"{self.program} is not installed", self.hint)
        try:
            command = Command(argv=self.command(query), env=user_environment(), cwd=workspace)
            with OwnProcess(command) as process:
                answer = process.output(QUERY_TIMEOUT, latest=MOST_BYTES)
        except TimeoutError:
            raise UserError(f"{self.program} did not answer within {QUERY_TIMEOUT:.0f} seconds", "try again") from None
        if process.code:
            raise UserError(f"{self.program} cannot list the tasks: {one_line(process.error, 300)}", self.hint)
        return self.read(answer)


def issues_command(query: str) -> tuple[str, ...]:
    """Return the arguments for `github:QUERY`, such as `label=ready` or an issue number."""
    if query.isascii() and query.isdigit():
        return ("gh", "api", f"{ISSUES}/{query}")

    labels = []
    for part in filter(None, query.split(",")):
        name, _, value = part.partition("=")
        if name != "label" or not value:
            raise UserError(f"github:{query}: invalid query", "write github:, github:N or github:label=NAME")
        labels.append(quote(value, safe=""))
    labelled = f"&labels={','.join(labels)}" if labels else ""
    return ("gh", "api", "--paginate", f"{ISSUES}?state=open&per_page=100{labelled}")


def read_issues(answer: bytes) -> BacklogContent:
    try:
        issues = [issue for issue in _pages(answer.decode()) if "pull_request" not in issue]
        tasks = [_issue(issue) for issue in sorted(issues, key=lambda issue: int(issue["number"]))]
    except (*UNREADABLE, KeyError, TypeError, OverflowError) as error:
        raise UserError(f"cannot parse the answer of gh: {error}", "is it a recent version?") from None
    return BacklogContent(_after_each_other(tasks))  # the query returns only open issues


def _pages(answer: str) -> Iterator[dict[str, Any]]:
    """Return the issues in one object or several pages. An older gh prints each page as a separate list."""
    reader, answer, at = json.JSONDecoder(), answer.strip(), 0
    while at < len(answer):
        page, at = reader.raw_decode(answer, at)
        while answer[at : at + 1].isspace():
            at += 1
        if isinstance(page, dict) and "pull_request" in page:
            raise UserError(f"#{page['number']} is a pull request, not an issue", "name the issue that it closes")
        yield from [page] if isinstance(page, dict) else page


def _issue(issue: dict[str, Any]) -> BacklogTask:
    number, title, body = issue["number"], str(issue["title"]), str(issue.get("body") or "")
    place = f"#{number}"
    lines = body.replace("\r\n", "\n").split("\n")
    settings = [(match[1].lower(), match[2], place) for line in lines if (match := OWN.fullmatch(line))]
    text = issue_goal(str(number), "this repository", f"{title}\n\n{body}".strip())
    task = BacklogTask(key=str(number), title=title_of(readable(title)), text=text, place=place)
    return add_own_settings(
        task, [setting for setting in settings if setting[0] in HARMLESS and setting[1].strip()], []
    )


def _after_each_other(tasks: list[BacklogTask]) -> tuple[BacklogTask, ...]:
    """Return the tasks without the dependencies that are not in the list."""
    keys = {task.key for task in tasks}
    return tuple(replace(task, after=tuple(key for key in task.after if key in keys)) for task in tasks)


def beads_command(query: str) -> tuple[str, ...]:
    if query:
        raise UserError(f"beads:{query}: invalid query", "write beads:")
    return ("bd", "list", "--json")


def read_beads(answer: bytes) -> BacklogContent:
    try:
        beads = [bead for bead in json.loads(answer or b"[]") or [] if bead.get("issue_type") != "epic"]
        problems: list[str] = []
        tasks = [_bead(bead, problems) for bead in beads]
    except (*UNREADABLE, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"cannot parse the answer of bd: {error}", "is it a recent version?") from None
    return BacklogContent(_after_each_other(tasks), problems=tuple(problems))


def _bead(bead: dict[str, Any], problems: list[str]) -> BacklogTask:
    title = str(bead["title"])
    texts = [title, *(str(bead[name]) for name in TEXTS if bead.get(name))]
    task = BacklogTask(
        key=key_of(str(bead["id"])),
        title=title_of(title),
        text="\n\n".join(texts),
        place=str(bead["id"]),
        done=bead.get("status") == "closed",
        priority=int(bead.get("priority") or 0),
    )
    blockers = []
    for dependency in bead.get("dependencies") or ():
        kind = str(dependency.get("type") or dependency.get("dependency_type") or "")
        name = dependency.get("depends_on_id") or dependency.get("id")
        if name and kind in BLOCKING and dependency.get("status") != "closed":
            blockers.append(("after", str(name), task.place))
    return add_own_settings(task, blockers, problems)


def close_bead(key: str, commit: str, workspace: str, deadline: Deadline | None = None) -> str:
    """Close a merged bead; return the error message if that fails."""
    try:
        words = ("bd", "close", key, "--reason", f"merged as {commit[:12]}")
        command = Command(argv=words, env=user_environment(), cwd=workspace)
        with OwnProcess(command, deadline=deadline) as process:
            process.output(QUERY_TIMEOUT, latest=MOST_BYTES)
    except OSError:  # bd is not installed, or does not answer
        return f"bd did not close {key}"
    return f"bd did not close {key}: {one_line(process.error, 200)}" if process.code else ""


PROGRAMS = {
    "github": Tracker(
        "gh", "install gh from https://cli.github.com and log in with `gh auth login`", issues_command, read_issues
    ),
    "beads": Tracker("bd", "install bd, and run `bd init` in the repository", beads_command, read_beads),
}
