"""What happened while nobody looked, and what is there to do? One HTML page that needs nothing but itself: no script,
no network, readable on paper, in light and dark. All that an agent wrote is text on it, and nothing else."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from ralph.core.text import head
from ralph.history.account import Account
from ralph.history.needs import Need, needs
from ralph.records.folder import RunFolder
from ralph.show import report_tables as tables
from ralph.show.plots import Html, element, joined
from ralph.show.words import count, duration, money, plural

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_TONES = {"done": "good", "paused": "warn", "asking": "warn"}
_TONES |= dict.fromkeys(("stopped", "running", "stopping", "waiting"), "calm")


def html(accounts: Sequence[Account]) -> str:
    """The page about one run or several."""
    title = f"ralph: {accounts[0].state}" if len(accounts) == 1 else f"ralph: {plural(len(accounts), 'run')}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(stylesheet())),
    )
    body = element("main", report_body(accounts))
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def stylesheet() -> str:
    return Path(__file__).with_name("report.css").read_text("utf-8")


def report_body(accounts: Sequence[Account]) -> Html:
    """What stands on the page, without its frame."""
    return joined(_overview(accounts), [_article(account) for account in accounts], _footer(accounts))


def _overview(accounts: Sequence[Account]) -> Html | None:
    if len(accounts) < 2:
        return None
    columns = [
        tables.Column("Run", [element("a", one.run, href=f"#{one.run}", class_="mono") for one in accounts]),
        tables.Column("Outcome", [_badge(one) for one in accounts]),
        tables.Column("Iterations", [str(len(one.chapters)) for one in accounts], kind="num"),
        tables.Column("Cost", [tables.cost(one.cost_usd) for one in accounts], kind="num"),
        tables.Column("Time", [duration(one.seconds) for one in accounts], kind="num"),
        tables.Column("Goal", [head(one.goal, 160, "…") for one in accounts], kind="wrap"),
    ]
    return joined(element("h1", plural(len(accounts), "run")), tables.table(columns))


def _article(account: Account) -> Html:
    return element(
        "article",
        _header(account),
        _needs(needs(account), account),
        _tiles(account),
        _section("Timeline", tables.timeline(account)),
        _section("Iterations", tables.iterations(account)),
        _section("Over the iterations", tables.drawings(account)),
        _section("Claims that were refused", tables.refusals(account)),
        _section("Questions and notes", tables.talk(account)),
        _section("Files changed", tables.files(account)),
        _section("Each iteration", [tables.details(account.run, chapter) for chapter in account.chapters]),
        id=account.run,
    )


def _section(title: str, body: Html | list[Html] | None) -> Html | None:
    return element("section", element("h2", title), body) if body else None


def _header(account: Account) -> list[Html]:
    cap = f", at most {account.max_iterations}" if account.max_iterations is not None else ""
    facts = [
        account.agent,
        f"preset {account.preset}",
        f"{_moment(account.began)} to {_moment(account.ended)}",
        f"{plural(len(account.chapters), 'iteration')}{cap}",
        f"resumed {plural(account.resumed, 'time')}" if account.resumed else "",
        f"branch {account.branch}" if account.branch else "",
    ]
    return [
        element(
            "div",
            element("span", f"{account.run} in {account.workspace}", class_="wrap"),
            _badge(account),
            class_="top",
        ),
        element("h1", account.sentence.removeprefix("ralph: ")),
        element("div", head(account.goal, 4000, "…"), class_="goal"),
        element("p", [element("span", fact) for fact in facts if fact], class_="facts"),
    ]


def _badge(account: Account) -> Html:
    unverified = account.outcome == "done" and not account.verified
    tone = "warn" if unverified else _TONES.get(account.state, "bad")
    return element("span", account.state + (" (unverified)" if unverified else ""), class_=f"badge {tone}")


def _needs(wanted: list[Need], account: Account) -> Html:
    if not wanted:
        said = "Nothing needs you." if account.outcome else "Nothing needs you now: the run goes on by itself."
        return element("div", element("h2", said), class_="card needs calmly")
    items = [element("li", need.text, _command(need.command)) for need in wanted]
    return element("div", element("h2", "What needs you"), element("ul", items), class_="card needs")


def _command(command: str) -> Html | None:
    return joined(" ", element("code", command)) if command else None


def _tiles(account: Account) -> Html:
    usage = account.usage
    tiles = [
        (str(len(account.chapters)), plural(len(account.chapters), "iteration").split(" ", 1)[1]),
        (duration(account.seconds), "time"),
    ]
    if account.cost_usd is not None:
        tiles.append((("~" if usage.estimated else "") + money(account.cost_usd), "cost"))
    if usage.tokens:
        tiles.append((count(usage.tokens), f"tokens, {count(usage.output_tokens)} of them written"))
    if account.files is not None:
        noun = "file" if len(account.files) == 1 else "files"
        tiles.append((str(len(account.files)), f"{noun} changed, {tables.sums(account.files)}"))
    refused = sum(len(chapter.refused) for chapter in account.chapters)
    if refused:
        tiles.append((str(refused), "claim refused" if refused == 1 else "claims refused"))
    made = [element("div", element("b", number), element("span", name), class_="card tile") for number, name in tiles]
    return element("div", made, class_="tiles")


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at))


def _footer(accounts: Sequence[Account]) -> Html:
    made = f"Written by ralph {accounts[0].version} on {_moment(time.time())}."
    return element("footer", f"{made} The journals in .ralph/runs are the whole truth.")


Form = Literal["html", "markdown", "json"]


def written(accounts: Sequence[Account], form: Form) -> bytes:
    if form == "json":
        from msgspec.json import encode

        return b"".join(encode(account) + b"\n" for account in accounts)
    if form == "markdown":
        from ralph.show.report_markdown import markdown

        return markdown(accounts).encode()

    return html(accounts).encode()


def leave(folder: RunFolder, env: Mapping[str, str]) -> None:
    """Leaves the report in the run's folder, and in the summary of the CI job that the run is part of."""
    from ralph.history.account import account_of

    account = account_of(folder)
    folder.write("report.html", written([account], "html"))
    summary = env.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "ab") as file:
            file.write(written([account], "markdown") + b"\n")
