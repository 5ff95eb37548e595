"""Read a settings file, JSON or YAML: its document in the keys of settings.json, and the problems in it.

A YAML file is for `ralph loop -c`. If it has a section `ralph_loop`, the rest of the file belongs to other programs.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from ralph.core.text import clean, one_line
from ralph.files import read_given
from ralph.settings.schema import NotBlank
from ralph.settings.validate import KeyPath, Problem, find_problems, show_value

MAX_FILE = 1 << 18  # bytes: PyYAML needs seconds for a megabyte
SECTION = "ralph_loop"
SECTION_TYPES: dict[str, Any] = {  # keys that are valid only in YAML files
    "max_iterations": Annotated[int, Meta(ge=1, le=100, extra={"expects": "a whole number from 1 to 100"})],
    "completion_tag": NotBlank,
}
YAML_ALIASES = {"max_iterations": "maximumIterations", "completion_tag": "until"}
DEFAULT_AGENT = "build"  # in a YAML file, this name means "the default agent"

Document = dict[str, Any]
KeyLines = dict[KeyPath, int]


class SettingsLayer(Struct, frozen=True, kw_only=True):
    """The settings in one file, or on the command line."""

    name: str
    document: Document
    problems: tuple[Problem, ...] = ()
    aliases: Mapping[str, str] = {}  # names of settings that are valid only in this file
    section: KeyPath = ()  # where the settings are in the file
    file_keys: Mapping[str, str] = {}  # keys that have another name in the file, with that name
    lines: Callable[[], KeyLines] = dict  # returns the line of each path in the file
    options: Mapping[str, str] = {}  # the options that set each setting on the command line

    def locate(self, path: KeyPath) -> str:
        """Return where the setting is, for messages: the option, or the file with line and key."""
        keys = [step for step in path if isinstance(step, str)]
        for length in range(len(keys), 0, -1):
            if option := self.options.get(".".join(keys[:length])):
                return option
        if path:
            path = (*self.section, self.file_keys.get(str(path[0]), path[0]), *path[1:])
        lines = self.lines()
        line = next((lines[path[:length]] for length in range(len(path), -1, -1) if path[:length] in lines), 0)
        where = f"{self.name}:{line}" if line else self.name
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        return f"{where}: {one_line(clean(steps.removeprefix('.')), 100)}" if path else where


class _BadFileError(Exception):
    """A file that can't be read or parsed at all. `line` is 0 if unknown."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(problem)
        self.line = line


def read_file(path: Path, is_yaml: bool = False) -> SettingsLayer:
    """Read a settings.json, or a YAML file for `ralph loop -c`."""
    name = relative_path(path)
    try:
        text = _read_text(path)
        return _read_yaml(name, text) if is_yaml else _read_json(name, text)
    except _BadFileError as error:
        lines: KeyLines = {(): error.line} if error.line else {}
        return SettingsLayer(name=name, document={}, problems=(Problem((), str(error)),), lines=lambda: lines)


def _read_json(name: str, text: str) -> SettingsLayer:
    repeated: list[str] = []

    def to_dict(pairs: list[tuple[str, Any]]) -> Document:
        repeated.extend(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        return dict(pairs)

    try:
        document = json.loads(text, object_pairs_hook=to_dict)
    except RecursionError:
        raise _BadFileError("nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, or a number with thousands of digits
        problem, line = getattr(error, "msg", str(error)), getattr(error, "lineno", 0)
        is_comment = text.startswith(("//", "/*", "#"), getattr(error, "pos", 0))
        problem = "JSON has no comments" if is_comment else f"{problem[:1].lower()}{problem[1:]}"
        raise _BadFileError(f"not valid JSON: {problem}", line) from None
    _require_object(document)
    document.pop("$schema", None)
    problems = tuple(Problem((key,), "given twice") for key in repeated)
    return SettingsLayer(name=name, document=document, problems=problems, lines=cache(lambda: _json_lines(text)))


def _read_yaml(name: str, text: str) -> SettingsLayer:
    document, lines, repeated = _parse_yaml(text)
    _require_object(document)
    section: KeyPath = (SECTION,) if SECTION in document else ()
    settings = document[SECTION] if section else document
    settings = {} if settings is None else settings
    _require_object(settings, f"{SECTION}: ", lines.get(section, 0))
    depth = len(section)
    problems = [Problem(key[depth:], "given twice") for key in repeated if key[:depth] == section]
    for key, kind in SECTION_TYPES.items():
        if settings.get(key) is not None and (wrong := list(find_problems(settings[key], kind, (key,)))):
            problems += wrong
            del settings[key]
    if tag := settings.get("completion_tag"):
        settings["completion_tag"] = [f"tag:{tag}"]
    if settings.get("agent") == DEFAULT_AGENT:
        del settings["agent"]
    return SettingsLayer(
        name=name,
        document=settings,
        problems=tuple(problems),
        aliases=YAML_ALIASES,
        section=section,
        lines=lambda: lines,
    )


def _require_object(value: object, where: str = "", line: int = 0) -> None:
    if not isinstance(value, dict):
        raise _BadFileError(f"{where}expected an object, got {show_value(value)}", line)


def relative_path(path: Path) -> str:
    """Return a path relative to the current folder if it is below it, else as it is."""
    here = os.path.relpath(path)
    return str(path) if here.startswith(os.pardir) else here


def _read_text(path: Path) -> str:
    try:
        data = read_given(path, MAX_FILE)
        text = data.decode("utf-8-sig")
    except OSError as error:
        why = error.strerror or str(error)
        raise _BadFileError(f"cannot be read: {why[:1].lower()}{why[1:]}") from None
    except UnicodeDecodeError as error:
        raise _BadFileError("not UTF-8 text", data.count(b"\n", 0, error.start) + 1) from None
    if not text.strip():
        raise _BadFileError("the file is empty; write {} into it, or delete it")
    return text


def _json_lines(text: str) -> KeyLines:
    """Return the line of each key path. JSON without tabs is YAML, so the YAML parser finds them."""
    try:
        return _parse_yaml(text.replace("\t", " "))[1]
    except _BadFileError:
        return {}


def _parse_yaml(text: str) -> tuple[Any, KeyLines, list[KeyPath]]:
    """Return the document, the line of each key path, and the keys that are given twice."""
    import yaml  # takes longer to import than everything else here, and few runs need it

    lines: KeyLines = {}
    repeated: list[KeyPath] = []
    node_ids = set[int]()

    def visit(node: Any, path: KeyPath) -> None:
        lines.setdefault(path, node.start_mark.line + 1)
        if node.id != "scalar" and id(node) in node_ids:
            raise _BadFileError("not valid YAML: aliases of lists and mappings are not supported", lines[path])
        node_ids.add(id(node))
        if node.id == "sequence":
            for index, item in enumerate(node.value):
                visit(item, (*path, index))
        elif node.id == "mapping":
            for key, value in node.value:
                if key.id == "scalar":
                    key.tag = "tag:yaml.org,2002:str"  # a key such as `on` or `5` is text
                inner = (*path, str(key.value))
                if inner in lines:
                    repeated.append(inner)
                lines[inner] = key.start_mark.line + 1
                visit(value, inner)

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}, []
        visit(node, ())
        return loader.construct_document(node), lines, repeated
    except RecursionError:
        raise _BadFileError("nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        raise _BadFileError(f"not valid YAML: {problem}", mark.line + 1 if mark else 0) from None
    except yaml.YAMLError as error:
        raise _BadFileError(f"not valid YAML: {str(error).splitlines()[0]}") from None
    except (ValueError, LookupError, ArithmeticError, AttributeError):  # for example `!!bool 5`
        raise _BadFileError("not valid YAML: a value doesn't match its tag") from None
