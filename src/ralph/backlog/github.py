"""Which of a repository's issues are the backlog? Asked of GitHub through `gh`, which holds the token.

What an issue says is what an agent is asked to do. Nothing in it is ever run: no check, no agent, no command is taken
from its text. A landing says `Closes #12`, so that GitHub closes the issue when the work reaches its default branch.
"""

from collections.abc import Collection, Iterator
from typing import Any

from ralph.backlog.boxes import OWN
from ralph.backlog.lists import ListContent, title_of, with_own
from ralph.core.backlog import Item
from ralph.errors import UserError

PROGRAM = "gh"
HINT = "install gh from https://cli.github.com and log in with `gh auth login`"
HARMLESS = ("after", "touches")
ISSUES = "repos/{owner}/{repo}/issues"
"""gh itself fills in which repository the folder is a clone of."""


def command(wanted: str) -> tuple[str, ...]:
    """What is asked for `github:WANTED`, such as `label=ready` or the number of one issue."""
    if wanted.isascii() and wanted.isdigit():
        return (PROGRAM, "api", f"{ISSUES}/{wanted}")
    from urllib.parse import quote

    labels = []
    for part in filter(None, wanted.split(",")):
        name, _, value = part.partition("=")
        if name != "label" or not value:
            raise UserError(f"cannot understand github:{wanted}", "write github:, github:N or github:label=NAME")
        labels.append(quote(value, safe=""))
    labelled = f"&labels={','.join(labels)}" if labels else ""
    return (PROGRAM, "api", "--paginate", f"{ISSUES}?state=open&per_page=100{labelled}")


def read(said: bytes) -> ListContent:
    try:
        issues = [issue for issue in _told(said.decode()) if "pull_request" not in issue]
        items = [_item(issue) for issue in sorted(issues, key=lambda issue: int(issue["number"]))]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot understand what gh says: {error}", "is it a recent version?") from None
    known = {item.key for item in items}
    # An issue that is not open any more is done, or nobody waits for it.
    return ListContent(tuple(_with_after(item, known) for item in items))


def _told(said: str) -> Iterator[dict[str, Any]]:
    """One issue, or pages of them: an older gh prints each page as a list of its own, one after the other."""
    import json

    reader, rest = json.JSONDecoder(), said.lstrip()
    while rest:
        page, end = reader.raw_decode(rest)
        rest = rest[end:].lstrip()
        if isinstance(page, dict) and "pull_request" in page:
            raise UserError(f"#{page['number']} is a pull request, not an issue", "name the issue that it is about")
        yield from [page] if isinstance(page, dict) else page


def _with_after(item: Item, known: Collection[str]) -> Item:
    from msgspec.structs import replace

    return replace(item, after=tuple(key for key in item.after if key in known))


def _item(issue: dict[str, Any]) -> Item:
    from ralph.forge.issue import fenced, readable

    number, title, body = issue["number"], str(issue["title"]), str(issue.get("body") or "")
    place = f"#{number}"
    lines = body.replace("\r\n", "\n").split("\n")
    found = [(match[1].lower(), match[2], place) for line in lines if (match := OWN.fullmatch(line))]
    text = fenced(str(number), "this repository", f"{title}\n\n{body}".strip())
    item = Item(key=str(number), title=title_of(readable(title)), text=text, place=place)
    return with_own(item, [one for one in found if one[0] in HARMLESS and one[1].strip()], [])


def closing(key: str) -> str:
    """What a landing says about the item in its message."""
    return f"Closes #{key}"
