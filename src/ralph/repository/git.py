"""How is git asked? By its own program, never through a shell, and so that neither the user's hooks, prompts and
monitors nor variables meant for another repository have a say in it; and in a folder that is named, whatever an agent
writes into the settings of the repository about where its files are. A repository is looked at through a git folder of
our own, which has its objects and none of its settings: filters, monitors, drivers or remotes that an agent wrote into
those are never run."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ralph.core.text import head, short
from ralph.errors import UserError
from ralph.files import is_hole, make_folder, read_given, remove_tree, stamp_of, temporary_folder
from ralph.processes.program import AskedProgram, CutOff, own_program
from ralph.records.folder import cannot_write, write

PLAIN = (
    "-c", f"core.hooksPath={os.devnull}",
    "-c", "core.fsmonitor=false",
    "-c", "core.quotePath=false",
    "-c", "core.safecrlf=false",
    "-c", "core.fsyncMethod=batch",
    "-c", "core.splitIndex=false",
    "-c", "submodule.recurse=false",
    "-c", "color.ui=false",
    "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
)  # fmt: skip

# What would lead git to another repository, or make it read paths in another way.
MISLEADING = frozenset({
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH", "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE", "GIT_NO_REPLACE_OBJECTS", "GIT_CONFIG", "GIT_CONFIG_PARAMETERS",
    "GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS",
    "GIT_EXTERNAL_DIFF", "GIT_DIFF_OPTS", "GIT_ATTR_SOURCE", "GIT_INDEX_VERSION", "GIT_IMPLICIT_WORK_TREE",
})  # fmt: skip
RALPH = {
    "GIT_AUTHOR_NAME": "ralph",
    "GIT_AUTHOR_EMAIL": "ralph@localhost",
    "GIT_COMMITTER_NAME": "ralph",
    "GIT_COMMITTER_EMAIL": "ralph@localhost",
}
# For a git that reads many files: the C library would take its memory from the system, and give it back, for each one.
# Without that, a hundred new files take half the time.
STORING = {"MALLOC_TRIM_THRESHOLD_": "100000000"}
# Objects that are missing are fetched by programs that settings name; by words alone that cannot be prevented.
UNFETCHED = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
# For a git that only reads what is there: nothing is fetched that is missing, no object stands in for another.
CLOSED = UNFETCHED | {"GIT_NO_REPLACE_OBJECTS": "1"}
# These change nothing, or add objects at most: where git was killed half-way, they are simply asked again.
QUESTIONS = frozenset({
    "cat-file", "check-attr", "check-ignore", "check-ref-format", "commit-tree", "config", "diff", "diff-index",
    "for-each-ref", "grep", "hash-object", "ls-files", "ls-tree", "merge-base", "merge-tree", "remote", "rev-list",
    "diff-tree", "rev-parse", "status", "var", "version",
})  # fmt: skip
_FETCHING = ("fetch", "push", "ls-remote")
PATIENCE = 600.0
casualties: list[str] = []
"""What git was doing each time it was killed: whoever could not go on because of that may be asked again."""

Env = Mapping[str, str] | None


class Settled(Protocol):
    """Settings that were fixed once: what has come to be others since has no say (configuration.py)."""

    @property
    def settings(self) -> Mapping[str, str]: ...

    def overrides(self, folder: str) -> Mapping[str, str]: ...

    def as_it_was(self) -> AbstractContextManager[dict[str, str]]: ...

    def refuse_other_ways(self) -> None: ...


_settled: ContextVar[Settled | None] = ContextVar("settled", default=None)


@contextmanager
def obeying(settled: Settled | None) -> Iterator[None]:
    """While entered, every git goes by these settings; None: by those it finds."""
    before = _settled.set(settled)
    try:
        yield
    finally:
        _settled.reset(before)


def settled() -> Settled | None:
    return _settled.get()


class GitError(UserError):
    """Git refused, or is broken: what it said, in one line."""


class Answer(Struct, frozen=True):
    code: int
    out: bytes
    error: str


class Repository(Struct, frozen=True):
    """The working tree that a workspace is in. `prefix` is the workspace's place in it, "" at its top."""

    root: str
    git_dir: str
    prefix: str = ""

    def git(self, *words: str, stdin: bytes = b"", env: Env = None) -> bytes:
        """What git prints."""
        return run(self.root, *words, stdin=stdin, env=env)

    def ask(self, *words: str, stdin: bytes = b"", env: Env = None) -> Answer:
        """What git answers, be it a refusal."""
        return ask(self.root, *words, stdin=stdin, env=env)

    @property
    def scope(self) -> tuple[str, ...]:
        """The paths that count. All of them, as in `git status`; but in a home folder that is a repository, only the
        workspace: nobody wants all that lies at home to be read and saved."""
        home = os.path.realpath(os.path.expanduser("~"))
        if self.prefix and os.path.commonpath((self.root, home)) == self.root:
            return (f":(top,literal){self.prefix}",)
        return ()


_known: dict[str, tuple[Repository, list[object]]] = {}
"""What git said of a place, and what it went by: as long as that is the same, it need not be asked."""


def find_repository(workspace: Path) -> Repository | None:
    """The repository around `workspace`; None without one, or without git. A broken or bare one is an error."""
    if not os.path.isdir(workspace):  # a forged journal may name what no folder can be called
        raise UserError(f"no such folder: {short(str(workspace), 200)}", "name one that is there")
    place = os.path.realpath(workspace)
    found, went_by = _known.get(place, (None, []))
    if found and went_by == _goes_by(found):
        return found
    found = _asked_for_repository(workspace)
    if found:
        _known[place] = (found, _goes_by(found))
    return found


def know_worktree(home: Repository, path: str) -> None:
    """What git would say of a worktree that was made a moment ago, and in which nobody has been yet."""
    made = Repository(os.path.realpath(path), own_folder(path), home.prefix)
    _known[os.path.join(made.root, made.prefix).rstrip("/")] = (made, _goes_by(made))


def _goes_by(found: Repository) -> list[object]:
    """All that leads git to a repository, and makes it one."""
    common, mark = shared_folder(found), f"{found.root}/.git"
    folders = (mark, found.git_dir, common, f"{common}/objects", f"{common}/refs")  # what is in there does not matter
    files = [f"{common}/config", f"{common}/config.worktree", f"{found.git_dir}/config.worktree"]
    if not os.path.isdir(mark):
        files.append(mark)  # in a linked worktree it says where the rest is
    place = found.root
    for name in found.prefix.split("/") if found.prefix else ():
        place = f"{place}/{name}"
        files.append(f"{place}/.git")  # none so far: it would be nearer to the workspace
    has_head = os.path.isfile(f"{found.git_dir}/HEAD")
    return [has_head, *(stamp_of(folder)[:1] for folder in folders), *map(stamp_of, files)]


def _asked_for_repository(workspace: Path) -> Repository | None:
    words = ("rev-parse", "--is-bare-repository", "--absolute-git-dir")
    try:
        answer = _plainly(str(workspace), words)
    except FileNotFoundError:
        return None
    if answer.code:
        real = Path(os.path.realpath(workspace))
        is_marked = any((folder / ".git").exists() for folder in (real, *real.parents))  # though git knows it not
        if "not a git repository (or any" in answer.error and not is_marked:
            return None
        raise refusal(words, answer, f"the git repository around {workspace} cannot be used")
    is_bare, _, git_dir = os.fsdecode(answer.out).removesuffix("\n").partition("\n")
    place = os.path.realpath(workspace)
    root = _top(place, git_dir) if is_bare == "false" else ""
    if not root:
        raise UserError(
            f"{workspace} lies in a git repository, but not in its working tree",
            "name a checked-out folder with -C DIR; a bare repository has none",
        )
    with suppress(OSError):
        if text_in(f"{git_dir}/HEAD") == "ref: refs/heads/.invalid\n":  # as git writes it for those who look there
            raise UserError(
                f"the branches of {root} are kept in a reftable, where ralph does not look",
                "git 2.46 makes files of it: git refs migrate --ref-format=files",
            )
    return Repository(root, git_dir, os.path.relpath(place, root) if place != root else "")


def is_led_elsewhere(found: Repository) -> bool:
    """Whether the settings of the repository lead a git that is not told better to another folder."""
    words = ("rev-parse", "--show-cdup")
    answer = _plainly(found.root, words)
    if answer.code:
        raise refusal(words, answer, f"git cannot work in {found.root}")
    return answer.out != b"\n"


def _top(place: str, git_dir: str) -> str:
    """The folder around `place` whose `.git` leads to `git_dir`, unless `place` is in there itself."""
    for folder in map(str, (Path(place), *Path(place).parents)):
        mark = os.path.join(folder, ".git")
        if os.path.samefile(folder, git_dir):
            return ""
        if os.path.isfile(mark) or (os.path.isdir(mark) and os.path.samefile(mark, git_dir)):
            return folder
    return ""


def repository(workspace: Path) -> Repository:
    """The repository around `workspace`, for what cannot be done without one."""
    found = find_repository(workspace)
    if found is None and not is_installed():
        raise UserError("git is not installed", "install git, or do without --worktree, --commit, diff and rewind")
    if found is None:
        raise UserError(f"{workspace} is not in a git repository", "make it one with `git init`, and commit once")
    return found


def is_installed() -> bool:
    return bool(own_program("git"))


def git_version(folder: str) -> tuple[int, ...]:
    """Which git this is: (2, 39) for 2.39.5."""
    words = run(folder, "version").decode("utf-8", "replace").split()
    number = next((word for word in words if word[:1].isdigit()), "")
    return tuple(int(part) for part in number.split(".")[:2] if part.isdigit())


def run(folder: str, *words: str, stdin: bytes = b"", env: Env = None) -> bytes:
    """What git prints in `folder`; an error if it refuses."""
    answer = ask(folder, *words, stdin=stdin, env=env)
    if answer.code:
        raise refusal(words, answer)
    return answer.out


def commit_of(folder: str, name: str) -> str:
    """The commit that a name such as HEAD stands for, or nothing. Branches are read where git looks first: to ask git,
    as is done where that is not plain, takes a hundred times as long."""
    with suppress(OSError, UserError):
        own = own_folder(folder)
        if (found := _noted(own, shared_by(own), name)) is not None:
            return found
    answer = ask(folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", env=CLOSED)
    return answer.out.decode().strip() if answer.code == 0 else ""


def ask(folder: str, *words: str, stdin: bytes = b"", env: Env = None) -> Answer:
    """Runs git in `folder`, the top of a working tree."""
    return _answer(lambda: started(folder, *words, stdin=stdin, env=env), folder, words)


def started(folder: str, *words: str, stdin: bytes = b"", env: Env = None) -> AbstractContextManager[AskedProgram]:
    """Git at work in `folder`, the top of a working tree. It is named: an agent may have told git of another one."""
    return _git_program(folder, words, stdin, {"GIT_WORK_TREE": folder} | dict(env or {}))


@contextmanager
def _git_program(folder: str, words: tuple[str, ...], stdin: bytes = b"", env: Env = None) -> Iterator[AskedProgram]:
    fixed = _settled.get() if "GIT_CONFIG_COUNT" not in (env or {}) else None  # unless it is told all that it goes by
    # Where nobody knows who has said what stands there, nothing is fetched unless that is what is asked for; or a new
    # worktree, which comes before any agent.
    unsettled = {} if _command(words) in _FETCHING or words[:2] == ("worktree", "add") else UNFETCHED
    told = (
        environment()
        | {"LC_ALL": "C.UTF-8"}
        | (dict(fixed.overrides(folder)) if fixed else unsettled)
        | dict(env or {})
    )
    try:
        with AskedProgram(("git", "-C", folder, *PLAIN, *words), told, stdin) as git:
            yield git
    except CutOff as cut:
        raise GitError(f"git {_command(words)} was cut off: {cut}") from None
    except TimeoutError:
        raise GitError(f"git {_command(words)} did not end within {PATIENCE:.0f} seconds in {folder}") from None


def _plainly(folder: str, words: tuple[str, ...]) -> Answer:
    """What git answers anywhere, with the working tree that the settings of the repository name."""
    return _answer(lambda: _git_program(folder, words), folder, words)


def _answer(start: Callable[[], AbstractContextManager[AskedProgram]], folder: str, words: tuple[str, ...]) -> Answer:
    """What git answers. Who was killed has answered nothing: that is no "no", and a question is asked once more."""
    is_question = _command(words) in QUESTIONS
    answer = _once(start, folder, words)
    if is_killed(answer) and is_question:
        answer = _once(start, folder, words)
        if is_killed(answer):
            raise refusal(words, answer)
    return answer


def _once(start: Callable[[], AbstractContextManager[AskedProgram]], folder: str, words: tuple[str, ...]) -> Answer:
    with start() as git:
        out = git.output(PATIENCE, lambda: _refuse_pipes(folder, git))
    answer = Answer(git.code, out, git.error)
    if is_killed(answer):
        casualties.append(_command(words))
    return answer


def is_killed(answer: Answer) -> bool:
    """Whether a signal has ended git itself, or one that it had started."""
    return answer.code < 0 or " died of signal " in answer.error


_PARTS = ("NAME", "EMAIL")


def identity(folder: str) -> Mapping[str, str]:
    """The user's, if git knows it without guessing; else ralph's. Where it is said plainly, git need not be asked."""
    fixed = _settled.get()
    said = fixed.settings if fixed else {}
    names = [(f"GIT_{who}_{part}", f"user.{part.lower()}") for who in ("AUTHOR", "COMMITTER") for part in _PARTS]
    if all(os.environ.get(variable, said.get(name, ""))[:1].isalnum() for variable, name in names):
        return {}
    known = ask(folder, "-c", "user.useConfigOnly=true", "var", "GIT_COMMITTER_IDENT")
    return {} if known.code == 0 else RALPH


def _refuse_pipes(folder: str, git: AskedProgram) -> None:
    """Git waits for ever for what nobody says to a pipe that stands in the place of one of its files, or where a link
    in their place leads. Looked for when it has been silent for long: an agent can put one into any folder."""
    own = os.path.join(folder, ".git")
    with suppress(OSError):
        if os.path.isfile(own):  # of a linked worktree
            named = text_in(own).removeprefix("gitdir:").strip()
            own = os.path.dirname(os.path.dirname(os.path.join(folder, named)))
    for path in (*_pipes_below(folder, (".gitignore", ".gitattributes")), *_pipes_below(own)):
        kind = "is a hole without end" if os.path.isfile(path) else "is a pipe"
        leads = f"leads to {os.path.realpath(path)}" if os.path.islink(path) else kind
        raise GitError(f"{path} {leads}, for which git waits in vain", "remove it")
    if git.waits_for_a_pipe:
        raise GitError("git waits in vain for a pipe that its settings lead to", "see: git config --list --show-origin")


def pipe_in_the_way(repository: Repository) -> str:
    """A pipe among the files that git opens when it commits, and nobody else does before."""
    shared = shared_folder(repository)
    places = (f"{shared}/info", f"{shared}/objects/info", f"{shared}/logs", f"{repository.git_dir}/logs")
    for place in (repository.git_dir, *places):
        with suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                with suppress(OSError):  # it leads nowhere
                    if stat.S_ISFIFO(entry.stat().st_mode):
                        return entry.path
    return ""


def _pipes_below(top: str, names: tuple[str, ...] = ()) -> Iterator[str]:
    """Pipes and the like in a folder and those inside, other repositories aside; with one of these names, if any are
    said."""
    waiting = [top]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting += [entry.path] if entry.name != ".git" else []
                elif (entry.name in names or not names) and not _is_plain(entry):
                    yield entry.path


def _is_plain(entry: os.DirEntry[str]) -> bool:
    """Whether git can read it to its end: a link may lead to a pipe elsewhere, or to a device that never ends."""
    try:
        seen = entry.stat()
    except OSError:  # it leads nowhere
        return True
    is_file = stat.S_ISREG(seen.st_mode) and not is_hole(seen)
    return is_file or stat.S_ISDIR(seen.st_mode) or os.path.realpath(entry.path) == os.devnull


def environment() -> dict[str, str]:
    """The user's, less what would mislead git, or have it say more than was asked; nothing may stop and ask."""
    kept = {n: value for n, value in os.environ.items() if n not in MISLEADING and not n.startswith("GIT_TRACE")}
    ssh = {"GIT_SSH": own_program("ssh")} if "GIT_SSH" not in kept and own_program("ssh") else {}
    return kept | ssh | {"GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true"}


def refusal(words: tuple[str, ...], answer: Answer, what: str = "") -> GitError:
    """What git said, fit for a person."""
    lines = [line.strip() for line in answer.error.splitlines() if line.strip()]
    at = next((at for at, line in enumerate(lines) if line.startswith(("fatal:", "error:"))), 0)
    said = lines[at] if lines else ""
    ended = f"exit code {answer.code}" if answer.code >= 0 else f"it was killed by signal {-answer.code}"
    said = said.removeprefix("fatal: ").removeprefix("error: ") or ended
    if said.endswith(":") and lines[at + 1 :]:  # what it is about stands in a line of its own
        said = f"{said} {lines[at + 1]}"
    hint = "nothing is lost: start again" if is_killed(answer) else ""
    if "dubious ownership" in answer.error:
        hint = next((line for line in lines if line.startswith("git config")), "")
    return GitError(f"{what or f'git {_command(words)} failed'}: {head(said, 500, '…')}", hint)


def _command(words: tuple[str, ...]) -> str:
    """What git was asked to do, without the options before it."""
    return next((word for word in words if not word.startswith("-") and "=" not in word), "")


# What says how files are to be read, and cannot start a program.
HARMLESS = frozenset({
    "core.filemode", "core.ignorecase", "core.symlinks", "core.precomposeunicode", "core.checkstat", "core.trustctime",
    "core.excludesfile", "core.attributesfile", "core.autocrlf", "core.eol", "extensions.objectformat",
})  # fmt: skip

_SHA256_DIGITS = 64
_LARGEST_INDEX = 1 << 32
_LARGEST_PACK = 1 << 20  # of refs: to read more takes longer than to ask git
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
        self._files = {"config": _config(kept)}
        for name in ("info/exclude", "info/attributes"):
            with suppress(OSError):
                self._files[name] = read_given(os.path.join(shared_folder(self.repository), name))

    def borrow_shared_index(self) -> None:
        """Takes copies of the files that hold the most of a split index."""
        for name in os.listdir(self.repository.git_dir):
            if name.startswith("sharedindex."):
                with suppress(OSError):
                    self._files[name] = read_given(os.path.join(self.repository.git_dir, name), _LARGEST_INDEX)

    def head(self) -> str:
        """The commit that is checked out; nothing before the first one."""
        with suppress(OSError):
            found = _noted(self.repository.git_dir, shared_folder(self.repository), "HEAD")
            if found is not None:
                return found
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
    kept = {"extensions.objectformat": "sha256"} if len(name) == _SHA256_DIGITS else {}
    with temporary_folder() as folder:
        yield _laid(folder, repository, {"config": _config(kept), "HEAD": _head("")})


def _laid(folder: str, repository: Repository, files: Mapping[str, bytes]) -> dict[str, str]:
    try:
        make_folder(f"{folder}/refs")  # by which git knows it as one of its own
    except OSError as error:
        raise cannot_write(folder, error) from None
    for name, content in files.items():
        write(f"{folder}/{name}", content)
    _clear_of_others(folder, {"refs", *(name.partition("/")[0] for name in files)})
    _clear_of_others(f"{folder}/refs", set())
    _clear_of_others(f"{folder}/info", {name.removeprefix("info/") for name in files})
    objects = os.path.join(shared_folder(repository), "objects")
    if not os.path.isdir(objects):
        raise GitError(f"{repository.git_dir} is no git repository any more", "put it back")
    # The settings are in this folder, whatever an agent has put there that leads git to those of another.
    return APART | {"GIT_DIR": folder, "GIT_COMMON_DIR": folder, "GIT_OBJECT_DIRECTORY": objects}


def _clear_of_others(folder: str, known: set[str]) -> None:
    """Takes away what git would find there beside what it is given: an agent has put it there. The parts of an index in
    several files are git's own."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in known and not entry.name.startswith("sharedindex"):
                remove_tree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)


def text_in(path: str) -> str:
    """What a small file of git's says, as git reads it: up to a NUL, which no name holds, and no longer than one is."""
    return os.fsdecode(read_given(path, 4096 + len("gitdir: \n")).partition(b"\0")[0])


def own_folder(path: str) -> str:
    """Where git keeps what belongs to this working tree alone: its HEAD and index."""
    mark = os.path.join(path, ".git")
    if os.path.isdir(mark):
        return mark
    try:
        return os.path.join(path, text_in(mark).removeprefix("gitdir:").strip())
    except FileNotFoundError:
        raise
    except OSError as error:  # an agent that worked there has put something else in its place
        raise UserError(f"cannot read {mark}: {error.strerror}", "remove that worktree: git worktree remove") from None


def shared_folder(repository: Repository) -> str:
    """Where objects and settings are: linked worktrees share those of the repository they belong to."""
    return shared_by(repository.git_dir)


def shared_by(own: str) -> str:
    """The same for the git folder of one working tree."""
    try:
        named = text_in(os.path.join(own, "commondir")).removesuffix("\n")
    except OSError:  # there is none, or an agent has put something else there
        return own
    return os.path.normpath(os.path.join(own, named))


def _noted(own: str, common: str, name: str) -> str | None:
    """The commit that HEAD or a branch is at, as git's own files say it. Nothing for one that is not there; None where
    only git can tell."""
    said = ""
    if name == "HEAD":
        said = text_in(os.path.join(own, "HEAD"))
        name = said[5:].removesuffix("\n") if said.startswith("ref: refs/heads/") else ""
    elif not name.startswith(("refs/heads/", "refs/remotes/")):
        return None
    if name:
        if {".", ".."} & {*name.split("/")}:
            return None
        said = _line_about(name, common)
        if not said:  # it is not there, unless refs are kept in another way
            return "" if os.path.isdir(os.path.join(common, "refs", "heads")) else None
    is_plain = len(said) in (41, _SHA256_DIGITS + 1) and not said.strip("0123456789abcdef\n") and said[-1] == "\n"
    return said.strip() if is_plain and said.strip("0\n") else None


def _line_about(ref: str, common: str) -> str:
    """What says where a branch is: in a file of its own or, once git has tidied up, among all others."""
    try:
        return text_in(os.path.join(common, ref)) or "nothing"
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        with suppress(FileNotFoundError):
            packed = read_given(os.path.join(common, "packed-refs"), _LARGEST_PACK)
            before, is_there, _ = packed.partition(b" %b\n" % os.fsencode(ref))
            return os.fsdecode(before.rpartition(b"\n")[2]) + "\n" if is_there else ""
    return ""


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
