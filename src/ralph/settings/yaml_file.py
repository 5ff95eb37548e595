"""What does a YAML file say? The `ralph_loop` section for `ralph loop -c FILE`, or settings in either spelling."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin

import msgspec

from ralph.settings.shape import Settings
from ralph.settings.source import (
    Fault,
    KeyPath,
    KeyPosition,
    Places,
    Said,
    Source,
    bare_kind,
    broken,
    file_text,
    is_struct,
    readable,
    shown,
)

if TYPE_CHECKING:
    import pathlib

SECTION = "ralph_loop"
DEFAULT_AGENT = "build"  # by this name such files ask for whatever agent is the default
MOST_ITERATIONS = 100
LARGEST = 1 << 18  # bytes: a megabyte of YAML takes many seconds
SHARED = ("agents", "guardrails")
"""Names that larger files have for parts of their own."""

# The section's own names: where each one stands in the settings, and how its value is said there.
NAMES: dict[str, tuple[KeyPath, Callable[[Any], Said]]] = {
    "max_iterations": (("maximumIterations",), lambda count: {"maximumIterations": count}),
    "completion_tag": (("until", 0), lambda tag: {"until": None if tag is None else [_tag(tag)]}),
    "agent": (("agent", "command"), lambda name: {} if name == DEFAULT_AGENT else {"agent": {"command": name}}),
    "model": (("agent", "model"), lambda name: {"agent": {"model": name}}),
    "spec_file": (("spec",), lambda path: {"spec": path}),
    "use_worktree": (("worktree",), lambda flag: {"worktree": flag}),
}


def yaml_source(path: "pathlib.Path") -> Source:
    """What a YAML file says, in the names of settings.json."""
    name = readable(path)
    import yaml

    text = file_text(path, LARGEST)
    if isinstance(text, Source):
        return text
    try:
        loader = yaml.SafeLoader(text)
        sheet = _Sheet(loader)
        sheet.fill(loader.get_single_node(), "")
        sheet.bound_iterations()
    except RecursionError:
        return broken(name, "nested too deeply")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ": ".join(part for part in (error.context, error.problem) if part)
        return broken(name, f"not valid YAML: {problem}", _at(mark) if mark else None)
    except yaml.YAMLError as error:
        return broken(name, f"not valid YAML: {str(error).splitlines()[0]}")
    left_alone = tuple(sheet.left_alone)
    return Source(
        name=name, said=sheet.said, places=lambda: sheet.places, faults=tuple(sheet.faults), left_alone=left_alone
    )


class _Sheet:
    """The settings found so far, each with the place and the name that the file has for it."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.said: Said = {}
        self.places: Places = {}
        self.faults: list[Fault] = []
        self.seen: set[int] = set()
        self.left_alone: list[str] = []

    def fill(self, node: Any, prefix: str) -> None:
        """Takes in a mapping of settings: the document, or its section."""
        if node is None or node.id != "mapping":
            raise self._problem(f"expected a mapping{' in ' + SECTION if prefix else ''}", node)
        is_larger = not prefix and any(key.value == SECTION for key, _ in node.value)
        for key, key_node, value_node in self._pairs(node, prefix):
            place = KeyPosition(_at(key_node.start_mark), _at(value_node.start_mark), prefix + key)
            if key == SECTION and not prefix:
                if value_node.tag != "tag:yaml.org,2002:null":
                    self.fill(value_node, f"{SECTION}.")
            elif is_larger and self._is_of_others(key, value_node, place):
                self.left_alone.append(key)
            elif key in ("checks", "guardrails"):
                self.said["guardrails"] = self._checks(value_node, place)
            elif key in NAMES and value_node.id == "scalar":
                path, say = NAMES[key]
                self.places[path] = place
                self._say(path, say, self._scalar(value_node))
            else:
                field = _fields(Settings).get(key)
                name, kind = (field.encode_name, field.type) if field else (key, None)
                self.said[name] = self._read(value_node, kind, (name,), place)

    def _is_of_others(self, key: str, node: Any, place: KeyPosition) -> bool:
        """Whether a part of a larger file is not for us: its name is none of ours, or means something else there."""
        field = _fields(Settings).get(key)
        if field is None or key not in SHARED:
            return field is None and key not in NAMES and key != "checks"
        if node.id != "mapping":
            return False
        from yaml import YAMLError

        try:
            msgspec.convert(_Sheet(self.loader)._read(node, field.type, (key,), place), field.type)
        except (msgspec.ValidationError, YAMLError):
            return True
        return False

    def _read(self, node: Any, kind: Any, path: KeyPath, place: KeyPosition) -> Any:
        """A value with all that is in it, keys spelled as in settings.json."""
        self.places[path] = place
        if node.id == "scalar":
            return self._scalar(node)
        if id(node) in self.seen:
            raise self._problem("lists and mappings cannot be repeated by alias", node)
        self.seen.add(id(node))
        bare = bare_kind(kind)
        if node.id == "sequence":
            inner = get_args(bare)[0] if get_origin(bare) is tuple else None
            items = enumerate(node.value)
            return [self._read(n, inner, (*path, i), _inside(place, f"[{i}]", n)) for i, n in items]
        result = {}
        for key, key_node, value_node in self._pairs(node, f"{place.name}."):
            name, inner = key, get_args(bare)[1] if get_origin(bare) is dict else None
            if is_struct(bare) and key in _fields(bare):
                name, inner = _fields(bare)[key].encode_name, _fields(bare)[key].type
            result[name] = self._read(value_node, inner, (*path, name), _inside(place, f".{key}", value_node, key_node))
        return result

    def _checks(self, node: Any, place: KeyPosition) -> Any:
        """Guardrails, each of which may be just its command."""
        guardrails = self._read(node, _fields(Settings)["guardrails"].type, ("guardrails",), place)
        if not isinstance(guardrails, list):
            return guardrails
        for index, one in enumerate(guardrails):
            if isinstance(one, str):
                self.places["guardrails", index, "command"] = self.places["guardrails", index]
        return [{"command": one} if isinstance(one, str) else one for one in guardrails]

    def _pairs(self, node: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
        keys: set[str] = set()
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                raise self._problem("a key must be text", key_node)
            key = key_node.value
            if key in keys:
                at = _at(key_node.start_mark)
                self.places[prefix, key] = KeyPosition(at, at, prefix + key)
                self.faults.append(Fault((prefix, key), "given twice", at_key=True))
            keys.add(key)
            yield key, key_node, value_node

    def _scalar(self, node: Any) -> Any:
        try:
            value = self.loader.construct_object(node)
        except (ValueError, KeyError, OverflowError):
            raise self._problem(f"{shown(node.value)} is not what its tag says", node) from None
        return value if isinstance(value, str | int | float | None) else node.value

    def _say(self, path: KeyPath, say: Callable[[Any], Said], value: Any) -> None:
        try:
            fragment = say(value)
        except ValueError as error:
            self.faults.append(Fault(path, f"expected {error}, got {shown(value)}"))
            return
        for name, part in fragment.items():
            if isinstance(part, dict) and isinstance(self.said.get(name), dict):
                self.said[name].update(part)
            else:
                self.said[name] = part

    def bound_iterations(self) -> None:
        count = self.said.get("maximumIterations")
        if isinstance(count, int) and not isinstance(count, bool) and not 1 <= count <= MOST_ITERATIONS:
            text = f"expected a whole number from 1 to {MOST_ITERATIONS}, got {count}"
            self.faults.append(Fault(("maximumIterations",), text))

    def _problem(self, text: str, node: Any) -> Exception:
        from yaml.constructor import ConstructorError

        return ConstructorError(None, None, text, node.start_mark if node else None)


@cache
def _fields(struct: Any) -> dict[str, Any]:
    """A struct's fields by both their names."""
    fields = msgspec.structs.fields(struct)
    return {field.name: field for field in fields} | {field.encode_name: field for field in fields}


def _tag(tag: object) -> str:
    if not isinstance(tag, str) or not tag.strip():
        raise ValueError("text that is not blank")
    return f"tag:{tag}"


def _inside(place: KeyPosition, step: str, node: Any, key_node: Any = None) -> KeyPosition:
    at = _at(node.start_mark)
    return KeyPosition(_at(key_node.start_mark) if key_node else at, at, place.name + step)


def _at(mark: Any) -> tuple[int, int]:
    return mark.line + 1, mark.column + 1
