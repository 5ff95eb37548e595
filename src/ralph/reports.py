"""How is the report of a run written, by itself at its end or when somebody asks for it?"""

from collections.abc import Mapping, Sequence
from typing import Literal

from ralph.show.account import Account
from ralph.world.records.folder import RunFolder

Form = Literal["html", "markdown", "json"]


def written(accounts: Sequence[Account], form: Form) -> bytes:
    if form == "json":
        from msgspec.json import encode

        return b"".join(encode(account) + b"\n" for account in accounts)
    if form == "markdown":
        from ralph.show.report_markdown import markdown

        return markdown(accounts).encode()
    from ralph.show.report import html

    return html(accounts).encode()


def leave(folder: RunFolder, env: Mapping[str, str]) -> None:
    """Leaves the report in the run's folder, and in the summary of the CI job that the run is part of."""
    from ralph.accounts import account_of

    account = account_of(folder)
    folder.write("report.html", written([account], "html"))
    summary = env.get("GITHUB_STEP_SUMMARY")
    if summary:
        with open(summary, "ab") as file:
            file.write(written([account], "markdown") + b"\n")
