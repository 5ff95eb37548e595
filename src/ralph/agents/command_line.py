"""Split the user's command line and fill in its placeholders; use a shell only for shell syntax."""

import re
from collections.abc import Iterator
from functools import cache

from ralph.core.text import head, shell_words
from ralph.errors import UserError

_OPERATORS = set("|&;<>`\n")
_LONGEST_WORD = (1 << 17) - 1  # Linux refuses a longer argument


@cache  # each turn splits the same line
def split(line: str) -> tuple[str, ...]:
    """Split `line` into words as a shell would."""
    try:
        return shell_words(line)
    except ValueError as error:
        hint = f"check the quotes in: {head(line, 500, '…')}"
        raise UserError(f"the agent's command line cannot be read: {error}", hint) from error


@cache
def needs_shell(line: str) -> bool:
    """Whether `line` has shell syntax outside quotes."""
    first = line.split(maxsplit=1)[0] if line.strip() else ""
    if "=" in first and first.partition("=")[0].isidentifier():
        return True
    for index, char, quote in _iter_unescaped(line):
        if quote == "'":
            continue
        following = line[index + 1 : index + 2]
        if char == "$" and (following in ("(", "{") or following.isidentifier()):
            return True
        if char == "`" or (not quote and char in _OPERATORS):
            return True
    return False


def fill_placeholders(words: tuple[str, ...], prompt: str, prompt_file: str) -> tuple[str, ...]:
    """Return `words` with the prompt or the path of its file in place of the placeholders."""
    if any("{prompt}" in word for word in words):
        _must_fit(prompt)
    return tuple(_each(word, {"{prompt}": prompt, "{prompt_file}": prompt_file}) for word in words)


def script(line: str, prompt: str, prompt_file: str) -> tuple[str, ...]:
    """Return the argv of a shell that runs `line`. The prompt is an argument, so the shell can't run it as code."""
    if "{prompt}" in line:
        _must_fit(prompt)
    quotes = {index: quote for index, _, quote in _iter_unescaped(line)}
    parts: list[str] = []
    index = 0
    while index < len(line):
        name = next((name for name in _PARAMETERS if line.startswith(name, index)), None)
        if name is None or index not in quotes:
            parts.append(line[index])
            index += 1
            continue
        quote, parameter = quotes[index], _PARAMETERS[name]
        parts.append({"": f'"{parameter}"', '"': parameter, "'": f"'\"{parameter}\"'"}[quote])
        index += len(name)
    return ("sh", "-c", "".join(parts), "sh", prompt if "{prompt}" in line else "", prompt_file)


_PARAMETERS = {"{prompt}": "${1}", "{prompt_file}": "${2}"}


def _must_fit(prompt: str) -> None:
    hint = "use {prompt_file}, or let the agent read stdin"
    if len(prompt.encode(errors="replace")) > _LONGEST_WORD:
        raise UserError("the prompt is too long for an argument", hint)
    if "\0" in prompt:
        raise UserError("the prompt contains a NUL character, which an argument cannot", hint)


def _each(word: str, values: dict[str, str]) -> str:
    """Replace every placeholder. Placeholders in the values stay."""

    return re.sub(r"\{prompt(?:_file)?\}", lambda found: values[found[0]], word)


def _iter_unescaped(line: str) -> Iterator[tuple[int, str, str]]:
    """Yield the unescaped characters of `line`, each with the quotes around it."""
    quote = ""
    escaped = False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif char == quote:
            quote = ""
        elif not quote and char in "'\"":
            quote = char
        else:
            yield index, char, quote
