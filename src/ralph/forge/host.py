"""Where is a repository hosted, and how is its host asked? GitHub by the `gh` program, which holds the token: none is
ever asked for, kept or shown here."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from ralph.core.text import clean, one_line
from ralph.errors import UserError
from ralph.processes.program import AskedProgram
from ralph.repository.git import Repository, environment

PROGRAM = "gh"
GITHUB = "github.com"
INSTALL = "install gh from https://cli.github.com (Debian: apt-get install gh) and log in with `gh auth login`"
LOGIN = "log in with `gh auth login`"
NO_LOGIN = 4  # gh's exit code
PATIENCE = 120.0
LARGEST = 32 << 20


class HostError(UserError):
    """The host refused. `status` is that of its answer, 0 where it gave none."""

    def __init__(self, message: str, hint: str = "", status: int = 0) -> None:
        super().__init__(message, hint)
        self.status = status


class Hosted(Struct, frozen=True):
    """A repository by the name of its host, and the remote by which git knows it."""

    host: str
    owner: str
    name: str
    remote: str = ""

    @property
    def path(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def is_surely_github(self) -> bool:
        return self.host in (GITHUB, os.environ.get("GH_HOST", GITHUB)) or self.host.endswith(".ghe.com")

    def api(self, path: str, method: str = "GET", body: Mapping[str, Any] | None = None) -> Any:
        """What the host answers, below this repository unless the path begins with a slash."""
        import json

        said = self.raw(path, method, body)
        try:
            return json.loads(said) if said.strip() else None
        except ValueError:
            raise HostError(f"cannot understand what {self.host} says about {path}", "try again later") from None

    def raw(self, path: str, method: str = "GET", body: Mapping[str, Any] | None = None) -> bytes:
        from json import dumps

        where = path.removeprefix("/") if path.startswith("/") else f"repos/{self.path}/{path}".rstrip("/")
        words = (PROGRAM, "api", "--hostname", self.host, "--method", method, where)
        stdin = dumps(body).encode() if body is not None else b""
        return _said((*words, *(("--input", "-") if body is not None else ())), stdin, self)


def _said(words: tuple[str, ...], stdin: bytes, hosted: Hosted) -> bytes:
    quiet = {"GH_PROMPT_DISABLED": "1", "GH_NO_UPDATE_NOTIFIER": "1", "NO_COLOR": "1", "GH_PAGER": "cat"}
    try:
        with AskedProgram.start(words, environment() | quiet, stdin) as asked:
            said = asked.output(PATIENCE)
    except FileNotFoundError:
        raise HostError("gh is not installed", INSTALL) from None
    except TimeoutError:
        raise HostError(f"{hosted.host} gave no answer within {PATIENCE:.0f} seconds", "try again") from None
    if asked.code == NO_LOGIN:
        raise HostError(f"gh is not logged in to {hosted.host}", LOGIN, status=401)
    if asked.code:
        raise _refusal(hosted, words[-1] if not stdin else words[-3], asked.error, said)
    return said[:LARGEST]


def _refusal(hosted: Hosted, path: str, error: str, said: bytes) -> HostError:
    from re import search

    found = search(r"\(HTTP (\d+)\)", error)
    status = int(found[1]) if found else 0
    if status == 401:
        return HostError(f"{hosted.host} does not know this login any more", LOGIN, status)
    if status == 404:
        return HostError(
            f"{hosted.host} has no {path.removeprefix('repos/')}, or does not show it to you", LOGIN, status
        )
    reason = one_line(clean(error).replace("gh: ", ""), 300) or "gh failed"
    return HostError(f"{hosted.host}: {reason}{_details(said)}", "see `gh auth status`" if not status else "", status)


def _details(said: bytes) -> str:
    """The reasons that GitHub gives for a refusal beside its message."""
    import json

    try:
        errors = json.loads(said).get("errors", [])
        texts = [one.get("message", "") if isinstance(one, dict) else str(one) for one in errors]
    except (ValueError, AttributeError, TypeError):
        return ""
    told = "; ".join(filter(None, (one_line(clean(str(text)), 200) for text in texts)))
    return f": {told}" if told else ""


def hosted_at(repository: Repository) -> Hosted:
    """Where the repository is pushed to, and under which name. Where it lies in a folder, only the remote is known."""
    remote = _remote(repository)
    urls = [
        *_asked(repository, "config", "--get", f"remote.{remote}.url"),
        *_asked(repository, "remote", "get-url", remote),
    ]
    parsed = [found for url in urls if (found := parse(url))]
    if not parsed:
        return Hosted("", "", "", remote)
    host, owner, name = parsed[0]
    return Hosted(host, owner, name, remote)


def _remote(repository: Repository) -> str:
    """The remote of the branch that is checked out, else the only one, else origin."""
    branch = _asked(repository, "symbolic-ref", "--short", "-q", "HEAD")
    own = _asked(repository, "config", "--get", f"branch.{branch[0]}.remote") if branch else []
    remotes = _asked(repository, "remote")
    names: list[str] = [*own, *(remotes if len(remotes) == 1 else ()), "origin"]
    for name in names:
        if name in remotes:
            return name
    if remotes:
        raise UserError(
            f"there are {len(remotes)} remotes, and none is called origin", "git push -u REMOTE BRANCH says which"
        )
    raise UserError("this repository has no remote", "add one: git remote add origin URL")


def _asked(repository: Repository, *words: str) -> list[str]:
    answer = repository.ask(*words)
    return answer.out.decode("utf-8", "replace").splitlines() if answer.code == 0 else []


def parse(url: str) -> tuple[str, str, str] | None:
    """Host, owner and name in the address of a repository, be it of the form that ssh or that browsers know."""
    if "://" in url:
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http", "ssh", "git", "git+ssh"):
            return None
        host, path = parts.hostname or "", parts.path
    else:
        host, colon, path = url.rpartition("@")[2].partition(":")
        if not colon or "/" in host:
            return None
    steps = path.strip("/").removesuffix(".git").split("/")
    if not host or len(steps) < 2 or not all(steps):
        return None
    host = GITHUB if host == "ssh.github.com" else host.lower()
    return host, "/".join(steps[:-1]), steps[-1]
