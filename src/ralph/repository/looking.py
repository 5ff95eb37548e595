"""How is a repository looked at so that nothing in it is run? Through a git folder of our own, which has its objects
and none of its settings: an agent may have written filters, monitors, drivers or remotes into those."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from ralph.files import read_given
from ralph.records.folder import cannot_write
from ralph.repository.git import CLOSED, Answer, Repository, ask, refusal, run

# What says how files are to be read, and cannot start a program.
HARMLESS = frozenset({
    "core.filemode", "core.ignorecase", "core.symlinks", "core.precomposeunicode", "core.checkstat", "core.trustctime",
    "core.excludesfile", "core.attributesfile", "core.autocrlf", "core.eol", "extensions.objectformat",
})  # fmt: skip

_SHA256_DIGITS = 64
_LARGEST_INDEX = 1 << 32
APART = CLOSED | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_COUNT": "0"}


class Looking:
    """Looks at the working tree of a repository from `folder`, by the settings that were there at `begin`."""

    def __init__(self, repository: Repository, folder: str) -> None:
        self.repository, self._folder = repository, folder
        self._files: dict[str, bytes] = {}

    def begin(self, settings: Mapping[str, str] | None = None) -> None:
        """Goes by these settings of the repository from now on; by those it has, if none are given."""
        if settings is None:
            listed = run(self.repository.root, "config", "--list", "-z").decode("utf-8", "surrogateescape")
            settings = dict(entry.partition("\n")[::2] for entry in listed.split("\0") if entry)
        kept = {name: value for name, value in settings.items() if name in HARMLESS}
        self._files = {"config": _config(kept), **_shared(self.repository, ("info/exclude", "info/attributes"))}

    def borrow(self, prefix: str) -> None:
        """Takes copies of the files of the repository whose names begin like this."""
        for name in os.listdir(self.repository.git_dir):
            if name.startswith(prefix):
                with suppress(OSError):
                    self._files[name] = read_given(os.path.join(self.repository.git_dir, name), _LARGEST_INDEX)

    def head(self) -> str:
        """The commit that is checked out; nothing before the first one."""
        answer = self.repository.ask("rev-parse", "--verify", "--quiet", "HEAD")
        return answer.out.decode().strip() if answer.code == 0 else ""

    def git(self, *words: str, head: str = "", stdin: bytes = b"", env: Mapping[str, str] | None = None) -> bytes:
        answer = self.ask(*words, head=head, stdin=stdin, env=env)
        if answer.code:
            raise refusal(words, answer)
        return answer.out

    def ask(self, *words: str, head: str = "", stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Answer:
        # Laid anew each time: an agent may have found it.
        seen = _laid(self._folder, self.repository, {**self._files, "HEAD": _head(head)})
        return ask(self.repository.root, *words, stdin=stdin, env=seen | dict(env or {}))


@contextmanager
def objects_of(repository: Repository, name: str) -> Iterator[dict[str, str]]:
    """The environment for a git that reads the repository's objects, and nothing else of it. `name` is one of them."""
    import tempfile

    kept = {"extensions.objectformat": "sha256"} if len(name) == _SHA256_DIGITS else {}
    with tempfile.TemporaryDirectory(prefix="ralph-git-") as folder:
        yield _laid(folder, repository, {"config": _config(kept), "HEAD": _head("")})


def _laid(folder: str, repository: Repository, files: Mapping[str, bytes]) -> dict[str, str]:
    try:
        for place in (folder, f"{folder}/refs", f"{folder}/info"):
            os.makedirs(place, mode=0o700, exist_ok=True)
        for name, content in files.items():
            path = f"{folder}/{name}"
            with suppress(FileNotFoundError):
                os.unlink(path)  # whatever stands there, link or pipe
            with open(path, "xb") as file:
                file.write(content)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return APART | {"GIT_DIR": folder, "GIT_OBJECT_DIRECTORY": os.path.join(shared_folder(repository), "objects")}


def shared_folder(repository: Repository) -> str:
    """Where objects and settings are: linked worktrees share those of the repository they belong to."""
    try:
        named = os.fsdecode(read_given(os.path.join(repository.git_dir, "commondir"), 4096)).removesuffix("\n")
    except OSError:  # there is none, or an agent has put something else there
        return repository.git_dir
    return os.path.normpath(os.path.join(repository.git_dir, named))


def _shared(repository: Repository, names: tuple[str, ...]) -> dict[str, bytes]:
    found = {}
    for name in names:
        path = os.path.join(shared_folder(repository), name)
        with suppress(OSError):
            found[name] = read_given(path)
    return found


def _head(commit: str) -> bytes:
    return (commit or "ref: refs/heads/none").encode() + b"\n"


def _config(kept: Mapping[str, str]) -> bytes:
    version = 1 if "extensions.objectformat" in kept else 0
    lines = ["[core]", f"\trepositoryformatversion = {version}", "\tbare = false"]
    for name, value in kept.items():
        section, _, key = name.partition(".")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines += [f"[{section}]", f'\t{key} = "{quoted}"']
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
