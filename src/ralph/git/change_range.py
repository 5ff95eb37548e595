"""What is judged against what: two commits, found from a word such as `main`, `A..B` or nothing at all.

Work that is not committed becomes a commit that no branch points to, by a private index.
"""

from collections.abc import Iterator

from msgspec import Struct

from ralph.core.text import listed, one_line, plural
from ralph.errors import UserError
from ralph.files import temporary_folder
from ralph.git.client import Git
from ralph.git.index import PrivateIndex
from ralph.git.scm import operation_in_progress

DEFAULT_BRANCHES = ("main", "master", "trunk", "develop")
EXAMPLE = "say what to judge, for example: ralph judge HEAD~1"
NOT_COMMITTED = "work that is not committed"


class ChangeRange(Struct, frozen=True, kw_only=True):
    """Two commits, and how they were chosen."""

    base: str
    head: str
    name: str
    """What is judged, for people: a branch, or the short name of a commit."""
    since: str
    """What the base was found from, for people."""
    tip: str
    """The commit that was made last: `head`, or its parent if there is work that is not committed."""
    left_out: tuple[str, ...] = ()
    """Files that are too big or unreadable, and are not judged."""

    @property
    def has_uncommitted(self) -> bool:
        return self.tip != self.head

    def describe(self, files: int) -> str:
        """Return the line that says what is judged against what."""
        both = self.has_uncommitted and self.base != self.tip
        what = "what is not committed" if self.has_uncommitted and not both else self.name
        more = " and what is not committed" if both else ""
        return f"judging {what}{more}, since {self.since} ({self.base[:7]}): {plural(files, 'file')}"


def find_range(git: Git, word: str = "", head: str = "") -> ChangeRange:
    """Return what is judged against what. `word` is a base, `A..B` or `A...B`, as in git; `head` is another branch to
    judge than the one that is checked out. Raise a UserError if there is nothing to judge."""
    if not git.head():
        raise UserError("there is no commit yet", "git commit, then judge what comes after it")
    if ".." in word:
        if head:
            raise UserError(
                f"two heads: {word} and --head {head}", f"ralph judge {word.partition('..')[0]} --head {head}"
            )
        return _given_range(git, word)
    if head:
        return _other_branch(git, word, head)
    return _working_tree(git, word)


def _given_range(git: Git, word: str) -> ChangeRange:
    dots = "..." if "..." in word else ".."
    first, last = (name or "HEAD" for name in word.split(dots, 1))
    base, tip = require_commit(git, first), require_commit(git, last)
    base = _merge_base(git, first, last) if dots == "..." else base
    return _changed(git, ChangeRange(base=base, head=tip, tip=tip, name=_name(git, last, tip), since=first))


def _other_branch(git: Git, word: str, head: str) -> ChangeRange:
    tip = require_commit(git, head)
    since = word or next(_default_branches(git), "")
    if not since:
        raise UserError("no main branch found", f"say the base: ralph judge BASE --head {head}")
    require_commit(git, since)
    base = _merge_base(git, since, head)
    return _changed(git, ChangeRange(base=base, head=tip, tip=tip, name=_name(git, head, tip), since=since))


def _working_tree(git: Git, word: str) -> ChangeRange:
    """Return the range up to the working tree, with what is not committed."""
    if word:
        require_commit(git, word)
    refuse_unfinished(git)
    tip = git.head()
    head, left_out = save_uncommitted(git, tip)
    name = current_branch(git) or tip[:7]
    if word:
        base = _merge_base(git, word, "HEAD")
        return _changed(git, ChangeRange(base=base, head=head, tip=tip, name=name, since=word, left_out=left_out))
    defaults = [*_default_branches(git)]
    is_default = bool(defaults) and name == defaults[0].rpartition("/")[2]
    since = defaults[0] if defaults else ""
    base = _merge_base(git, since, "HEAD") if since else tip
    if head != tip and (is_default or base == tip):
        return _changed(git, ChangeRange(base=tip, head=head, tip=tip, name=name, since="HEAD", left_out=left_out))
    if base == tip:
        if _is_shallow(git) and not since:
            raise _not_reached("a main branch")
        where = f"HEAD is {since}, and " if since else "no main branch found, and "
        raise UserError(f"nothing to judge: {where}everything is committed", EXAMPLE)
    return ChangeRange(base=base, head=head, tip=tip, name=name, since=since, left_out=left_out)


def _changed(git: Git, change: ChangeRange) -> ChangeRange:
    """Return the range; raise if there is no difference."""
    if git.tree_at(change.base) == git.tree_at(change.head):
        raise UserError(f"nothing changed since {change.since}", EXAMPLE)
    return change


def save_uncommitted(git: Git, tip: str) -> tuple[str, tuple[str, ...]]:
    """Return a commit of the files as they are now, untracked ones included, and what is missing there. Without
    changes that is `tip`."""
    with temporary_folder() as folder:
        index = PrivateIndex(git, folder)
        index.begin()
        tree, left_out = index.tree().files, index.left_out
    return (tip if tree == git.tree_at(tip) else git.commit_tree(tree, (tip,), NOT_COMMITTED)), left_out


def refuse_unfinished(git: Git) -> None:
    """Raise if the files are in between two states, or if a copy cannot have them all."""
    if operation := operation_in_progress(git):
        raise UserError(
            f"a {operation} is in progress in {git.root}", "finish it, or judge what is committed: ralph judge A..B"
        )
    status = git.try_run("status", "--porcelain=v2", "-z", "--untracked-files=no", "--ignore-submodules=none").out
    rows = [row.split(b" ", 8) for row in status.split(b"\0") if row.startswith(b"1 ")]
    # `S`, then whether it is at another commit (C), has changed files (M), has untracked files (U)
    dirty = [row[8].decode("utf-8", "backslashreplace") for row in rows if row[2][:1] == b"S" and row[2][2:] != b".."]
    if dirty:
        raise UserError(
            f"uncommitted changes in the submodule {listed(dirty, 3)}, which a copy cannot have",
            f"commit or stash them: git -C {dirty[0]} status",
        )


def require_commit(git: Git, name: str) -> str:
    """Return the commit that a word names, or raise an error that says why there is none."""
    if not name.startswith("-") and (commit := git.resolve(name)):
        return commit
    if _is_shallow(git):
        raise _not_reached(one_line(name))
    raise UserError(
        f"unknown commit or branch: {one_line(name)}", "`git branch --all` and `git log --oneline` list them"
    )


def _merge_base(git: Git, first: str, second: str) -> str:
    result = git.try_run("merge-base", first, second)
    if result.code == 0:
        return result.out.decode().split()[0]
    if _is_shallow(git):
        raise _not_reached(f"what {first} and {second} have in common")
    raise UserError(
        f"{first} and {second} have no common ancestor", f"to compare exactly these: ralph judge {first}..{second}"
    )


def _is_shallow(git: Git) -> bool:
    return git.run("rev-parse", "--is-shallow-repository").strip() == b"true"


def _not_reached(name: str) -> UserError:
    return UserError(f"this clone is shallow and does not reach {name}", "git fetch --unshallow; in CI: fetch-depth: 0")


def current_branch(git: Git) -> str:
    """Return the branch that is checked out; empty if there is none."""
    return git.try_run("symbolic-ref", "--quiet", "--short", "HEAD").out.decode("utf-8", "replace").strip()


def _default_branches(git: Git) -> Iterator[str]:
    """Yield the names that the default branch may have here, the most certain first."""
    head = git.try_run("symbolic-ref", "--quiet", "--short", "refs/remotes/origin/HEAD")
    names = [head.out.decode("utf-8", "replace").strip()] if head.code == 0 else []
    names += [f"{remote}{name}" for remote in ("origin/", "") for name in DEFAULT_BRANCHES]
    return (name for name in dict.fromkeys(names) if git.resolve(name))


def _name(git: Git, word: str, commit: str) -> str:
    if word == "HEAD":
        return current_branch(git) or commit[:7]
    return one_line(word) if git.resolve(f"refs/heads/{word}") else f"{one_line(word)} ({commit[:7]})"
