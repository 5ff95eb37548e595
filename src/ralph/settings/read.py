"""Read a settings file, JSON or YAML: its document in the keys of settings.json, and the problems in it.

A YAML file is for `ralph loop -c`. Its settings may be in a section `ralph_loop` next to sections of other programs.
Its keys may be in snake case, and a few settings have other names there.
"""

import json
import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from msgspec import Struct

from ralph.core.text import clean, one_line
from ralph.files import read_given
from ralph.settings.schema import Settings
from ralph.settings.validate import KeyPath, Problem, bare_type, field_types, find_problems, is_struct, show_value

MAX_FILE = 1 << 18  # bytes: PyYAML needs seconds for a megabyte
MAX_DEPTH = 50  # of lists and mappings in YAML
SECTION = "ralph_loop"
DEFAULT_AGENT = "build"  # in the section, this name means "the default agent"
MAX_SECTION_ITERATIONS = 100

# Names of settings that are valid only in YAML files.
SECTION_KEYS: dict[str, KeyPath] = {
    "max_iterations": ("maximumIterations",),
    "completion_tag": ("until",),
    "model": ("agent", "model"),
    "spec_file": ("spec",),
    "use_worktree": ("worktree",),
}
SHARED_KEYS = ("agents", "guardrails")  # other programs use these keys as well

Document = dict[str, Any]
KeyLines = dict[KeyPath, int]


class SettingsLayer(Struct, frozen=True, kw_only=True):
    """The settings in one file, or on the command line."""

    name: str
    document: Document
    problems: tuple[Problem, ...] = ()
    paths: Mapping[KeyPath, KeyPath] = {}  # paths in the file of settings that have another name there
    lines: Callable[[], KeyLines] = dict  # returns the line of each path in the file
    options: Mapping[str, str] = {}  # the options that set each setting on the command line
    ignored: tuple[str, ...] = ()  # sections of other programs

    def locate(self, path: KeyPath) -> str:
        """Return where the setting is, for messages: the option, or the file with line and key."""
        keys = [step for step in path if isinstance(step, str)]
        for length in range(len(keys), 0, -1):
            if option := self.options.get(".".join(keys[:length])):
                return option
        for length in range(len(path), 0, -1):
            if path[:length] in self.paths:
                path = (*self.paths[path[:length]], *path[length:])
                break
        lines = self.lines()
        line = next((lines[path[:length]] for length in range(len(path), -1, -1) if path[:length] in lines), 0)
        where = f"{self.name}:{line}" if line else self.name
        return f"{where}: {one_line(clean(_dotted_path(path)), 100)}" if path else where


class _BadFileError(Exception):
    """A file that can't be read or parsed at all. `line` is 0 if unknown."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(problem)
        self.line = line


def read_json(path: Path) -> SettingsLayer:
    """Read a settings.json."""
    name = display_path(path)
    repeated: list[str] = []

    def to_dict(pairs: list[tuple[str, Any]]) -> Document:
        document = dict(pairs)
        if len(document) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.extend(key for key in document if keys.count(key) > 1)
        return document

    try:
        text = _read_text(path)
        document = _parse_json(text, to_dict)
    except _BadFileError as error:
        return _unreadable(name, error)
    document.pop("$schema", None)
    problems = tuple(Problem((key,), "given twice") for key in repeated)
    return SettingsLayer(name=name, document=document, problems=problems, lines=cache(lambda: _json_lines(text)))


def read_yaml(path: Path) -> SettingsLayer:
    """Read a YAML file for `ralph loop -c`."""
    name = display_path(path)
    try:
        document, lines, problems = _parse_yaml(_read_text(path))
    except _BadFileError as error:
        return _unreadable(name, error)
    section = document.pop(SECTION, {})
    if section is not None and not isinstance(section, dict):
        problem = f"expected a mapping, got {show_value(section)}"
        return SettingsLayer(name=name, document={}, problems=(Problem((SECTION,), problem),), lines=lambda: lines)
    ignored = tuple(key for key in document if section != {} and _is_foreign(key, document[key]))
    translation = _Translation()
    translation.add({key: value for key, value in document.items() if key not in ignored}, ())
    translation.add(section or {}, (SECTION,))
    return SettingsLayer(
        name=name,
        document=translation.document,
        problems=(*problems, *translation.problems),
        paths=translation.paths,
        lines=lambda: lines,
        ignored=ignored,
    )


def display_path(path: Path) -> str:
    """Return a path as a person would type it here."""
    here = os.path.relpath(path)
    return str(path) if here.startswith(os.pardir) else here


def _unreadable(name: str, error: _BadFileError) -> SettingsLayer:
    lines: KeyLines = {(): error.line} if error.line else {}
    return SettingsLayer(name=name, document={}, problems=(Problem((), str(error)),), lines=lambda: lines)


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


def _parse_json(text: str, to_dict: Callable[[list[tuple[str, Any]]], Document]) -> Document:
    def refuse_constant(name: str) -> None:
        raise ValueError(f"{name} is not a number")

    try:
        value = json.loads(text, object_pairs_hook=to_dict, parse_constant=refuse_constant)
    except RecursionError:
        raise _BadFileError("nested too deeply") from None
    except json.JSONDecodeError as error:
        is_comment = text.startswith(("//", "/*", "#"), error.pos)
        problem = "JSON has no comments" if is_comment else error.msg[:1].lower() + error.msg[1:]
        raise _BadFileError(f"not valid JSON: {problem}", error.lineno) from None
    except ValueError as error:  # NaN, or a number with thousands of digits
        raise _BadFileError(f"not valid JSON: {str(error).partition(';')[0]}") from None
    if not isinstance(value, dict):
        raise _BadFileError(f"expected an object {{…}}, got {show_value(value)}")
    return value


def _json_lines(text: str) -> KeyLines:
    """Return the line of each key path, as the YAML parser finds it: JSON without tabs is YAML."""
    try:
        return _parse_yaml(text.replace("\t", " "))[1]
    except _BadFileError:
        return {}


def _parse_yaml(text: str) -> tuple[Document, KeyLines, list[Problem]]:
    """Return the document, the line of each key path, and the keys that are given twice."""
    import yaml  # takes longer to import than everything else here, and few runs need it

    lines: KeyLines = {}
    problems: list[Problem] = []
    seen = set[int]()

    def build(node: Any, path: KeyPath, room: int) -> Any:
        lines.setdefault(path, node.start_mark.line + 1)
        if room == 0:
            raise RecursionError
        if node.id != "scalar" and id(node) in seen:
            raise _BadFileError("not valid YAML: aliases of lists and mappings are not supported", lines[path])
        seen.add(id(node))
        if node.id == "sequence":
            return [build(item, (*path, index), room - 1) for index, item in enumerate(node.value)]
        if node.id == "scalar":
            try:
                value = loader.construct_object(node)
            except (ValueError, KeyError, OverflowError):
                problem = f"{show_value(node.value)} doesn't match its tag"
                raise _BadFileError(f"not valid YAML: {problem}", lines[path]) from None
            return value if isinstance(value, str | int | float | None) else node.value
        result: Document = {}
        for key, value in node.value:
            if key.id != "scalar":
                raise _BadFileError("not valid YAML: a key must be text", key.start_mark.line + 1)
            inner = (*path, str(key.value))
            if inner[-1] in result:
                problems.append(Problem(inner, "given twice"))
            lines[inner] = key.start_mark.line + 1
            result[str(inner[-1])] = build(value, inner, room - 1)
        return result

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        document = build(node, (), MAX_DEPTH) if node else None
    except RecursionError:
        raise _BadFileError("nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        raise _BadFileError(f"not valid YAML: {problem}", mark.line + 1 if mark else 0) from None
    except yaml.YAMLError as error:
        raise _BadFileError(f"not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(document, dict):
        raise _BadFileError(f"expected a mapping, got {show_value(document)}")
    return document, lines, problems


def _is_foreign(key: str, value: object) -> bool:
    """Return whether a key next to the section `ralph_loop` belongs to another program."""
    kind = _field_types(Settings).get(key)
    if key in SHARED_KEYS:
        kind = field_types(Settings)["checks" if key == "guardrails" else key]
        return isinstance(value, dict) and any(find_problems(_in_camel_case(value, kind), kind))
    return kind is None and key not in SECTION_KEYS


class _Translation:
    """Translates a YAML document into the keys of settings.json."""

    def __init__(self) -> None:
        self.document: Document = {}
        self.problems: list[Problem] = []
        self.paths: dict[KeyPath, KeyPath] = {}

    def add(self, part: Document, prefix: KeyPath) -> None:
        for key, value in part.items():
            kind = _field_types(Settings).get(key)
            target = SECTION_KEYS.get(key, (_camel(key) if kind else key,))
            self.paths[target] = (*prefix, key)
            if key == "completion_tag":
                value = self._claim(value)
            elif key == "agent" and value == DEFAULT_AGENT:
                continue
            if target == ("maximumIterations",) and type(value) is int and not 1 <= value <= MAX_SECTION_ITERATIONS:
                text = f"expected a whole number from 1 to {MAX_SECTION_ITERATIONS}, got {value}"
                self.problems.append(Problem(target, text))
                continue
            self._set(target, _in_camel_case(value, kind))

    def _set(self, target: KeyPath, value: Any) -> None:
        if target == ("agent", "model"):
            target, value = ("agent",), {"model": value}
        before = self.document.get(str(target[0]))
        if target == ("agent",):  # `agent: codex` and `model: o3` meet in one object
            before = {"command": before} if isinstance(before, str) else before
            value = {"command": value} if isinstance(value, str) else value
        both = isinstance(before, dict) and isinstance(value, dict)
        self.document[str(target[0])] = {**before, **value} if both else value  # type: ignore[dict-item]

    def _claim(self, tag: object) -> list[str] | None:
        if tag is None or (isinstance(tag, str) and tag.strip()):
            return None if tag is None else [f"tag:{tag}"]
        self.problems.append(Problem(("until",), f"expected text that is not blank, got {show_value(tag)}"))
        return None


def _in_camel_case(value: Any, kind: Any) -> Any:
    """Return a value with the keys inside it in camel case, as in settings.json."""
    bare = bare_type(kind)
    if isinstance(value, list):
        inner = get_args(bare)[0] if get_origin(bare) is tuple else None
        return [_in_camel_case(item, inner) for item in value]
    if not isinstance(value, dict):
        return value
    if get_origin(bare) is dict:
        return {key: _in_camel_case(item, get_args(bare)[1]) for key, item in value.items()}
    fields = _field_types(bare) if is_struct(bare) else {}
    own = field_types(bare) if is_struct(bare) else {}
    return {key if key in own else _camel(key): _in_camel_case(item, fields.get(key)) for key, item in value.items()}


def _field_types(struct: Any) -> dict[str, Any]:
    """Return the type of each field, once by its name in snake case and once in camel case."""
    types = field_types(struct)
    return {**dict(zip(struct.__struct_fields__, types.values(), strict=True)), **types}


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(map(str.title, rest))


def _dotted_path(path: KeyPath) -> str:
    """Return a key path as text: `checks[0].command`."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(parts).removeprefix(".")
