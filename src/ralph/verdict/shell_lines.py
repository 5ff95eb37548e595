"""Which files of the repository does a shell line run, and which does it name?"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import dropwhile, pairwise

# Files that decide what a program does, although its command line doesn't name them. They may not exist yet.
RECIPES = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile"),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
    "pytest": ("conftest.py", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"),
    "cargo": (".cargo/config.toml", "build.rs"),
    **dict.fromkeys(("npm", "pnpm", "yarn", "bun"), ("package.json",)),
}
WRAPPERS = (
    *("env", "uv", "uvx", "poetry", "pipenv", "hatch", "pdm", "npx", "run"),
    *("exec", "time", "timeout", "nice", "taskset"),
)
OTHER_RUNNERS = ("go", "bats", "nose2", "test", "py.test")

_INTERPRETERS = re.compile(
    r"(python|pypy|ruby|perl|php|lua|node)[\d.]*|(ba|da|z|k|fi)?sh|deno|bun|tsx|ts-node|Rscript|julia|pwsh|java"
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPERATORS = ";&|()<>\n"


def is_assignment(word: str) -> bool:
    return _ASSIGNMENT.match(word) is not None


def is_runner(program: str) -> bool:
    """Return whether the program runs files that it is given, or that a recipe names."""
    is_interpreter = _INTERPRETERS.fullmatch(program) is not None
    return is_interpreter or program in RECIPES or program in WRAPPERS or program in OTHER_RUNNERS


def split_line(line: str) -> list[list[str]]:
    """Return the words of each command in a shell line, without quotes and operators. Raise ValueError if a quotation
    isn't closed."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    commands: list[list[str]] = [[]]
    for word in lexer:
        if not word or not set(word) <= set(_OPERATORS):
            commands[-1].append(word)
        elif "<" not in word and ">" not in word:  # the file of a redirection is a word of the command
            commands.append([])
    return [words for words in commands if words]


def files_named(line: str, root: str) -> list[str]:
    """Return the files that a shell line names, and those that decide what its programs do, relative to `root`. The
    latter need not exist."""
    words = [word for command in _all_commands(line) for word in command]
    programs = [os.path.basename(word) for word in words]
    deciding = [name for program in programs for name in RECIPES.get(program, ())]
    # Python prefers these to its own modules.
    deciding += [f"{module}{end}" for module in _modules(words) for end in (".py", "/__init__.py")]
    if "make" in programs:  # a file with the name of a target makes `make` do nothing
        deciding += words
    paths = [os.path.relpath(os.path.join(root, name), root) for name in deciding]
    paths = [*files_written(line, root), *(path for path in paths if not path.startswith("..") and path != ".")]
    return list(dict.fromkeys(paths))


def files_written(line: str, root: str) -> list[str]:
    """Return the files below `root` that a shell line names itself."""
    files = [os.path.join(root, word) for command in _all_commands(line) for word in command]
    paths = [os.path.relpath(file, root) for file in files if os.path.isfile(file)]
    return [path for path in dict.fromkeys(paths) if not path.startswith("..")]


def files_run(line: str, root: str) -> list[str]:
    """Return the files below `root` that a shell line runs: its script, and a Makefile or the like.

    Files that it only reads are left out: `wc -c app.js` runs nothing of the repository.
    """
    files: list[str] = []
    for command in _all_commands(line):
        words = list(dropwhile(lambda word: is_assignment(word) or os.path.basename(word) in WRAPPERS, command))
        program = os.path.basename(words[0]) if words else ""
        files += [word for word in words[:1] if "/" in word]
        files += [name for name in RECIPES.get(program, ()) if program != "pytest"]
        if _INTERPRETERS.fullmatch(program):
            files += [word for word in words[1:] if not word.startswith("-")][:1]
            files += [f"{module}.py" for module in _modules(words)]
    inside = [name for name in dict.fromkeys(files) if not os.path.isabs(name)]
    return [name.removeprefix("./") for name in inside if os.path.isfile(os.path.join(root, name))]


def _all_commands(line: str) -> Iterator[list[str]]:
    """Yield the commands of a line, and those of the lines in its quotes, as in `sh -c 'make && ./check'`."""
    try:
        commands = split_line(line)
    except ValueError:  # such as an apostrophe in a comment
        commands = [re.findall(rf"[^\s{_OPERATORS}'\"]+", line)]
    for words in commands:
        yield words
        for word in words:
            if re.search(r"\s", word) and word != line:
                yield from _all_commands(word)


def _modules(words: Sequence[str]) -> list[str]:
    """Return the paths of modules that are run with `-m`, without their endings."""
    return [module.replace(".", "/") for option, module in pairwise(words) if option == "-m"]
