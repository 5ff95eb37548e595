"""Load the settings of a run. The layers, lowest first: preset, the user's file, the project's two files, a YAML file,
the command line."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.errors import UserError
from ralph.files import config_folder
from ralph.settings.presets import DEFAULT_PRESET, PRESETS
from ralph.settings.read import Document, SettingsLayer, read_file, relative_path
from ralph.settings.schema import AgentChoice, CheckCommand, CustomAgent, ExamCommand, Protection, Settings
from ralph.settings.validate import KeyPath, Problem, bare_type, field_types, find_problems, is_struct, metas_of

Stored = TypeVar("Stored")

ALIASES = {
    "guardrails": "checks",
    **{name: key for name, key in zip(Settings.__struct_fields__, field_types(Settings), strict=True) if name != key},
}
"""Other names of settings: `guardrails`, and each key in snake case."""
MOVED = {("work", "setup"): "setup"}
"""Keys inside an object that are at the top level now; they are still read."""
SHORT_FORMS: dict[Any, tuple[type, str]] = {
    AgentChoice: (str, "command"),
    CheckCommand: (str, "command"),
    ExamCommand: (str, "command"),
    Protection: (list, "globs"),
}
"""The type that may be given instead of each object, and the key of the object that gets the value."""


class LoadedSettings(Struct, frozen=True):
    """The settings of a run, and the files that they came from."""

    settings: Settings
    sources: tuple[Path, ...]


def load(
    workspace: Path,
    overrides: Mapping[str, Any],
    *,
    env: Mapping[str, str],
    config: Path | None = None,
    source: str = "command line",
    options: Mapping[str, str] = {},
    locate: Callable[[Path], Path | None] = lambda path: path,
) -> LoadedSettings:
    """Return the settings for a workspace; raise a UserError that lists every problem in them.

    `config` is a YAML file. `overrides` is the highest layer, in the keys of settings.json: what the command line, or
    another `source`, sets. `options` maps these keys to the options of the command line, for messages. `locate` returns
    where to read a settings file, as it was in some commit for example; None leaves it out.
    """
    located = {path: place for path in settings_files(workspace, env) if (place := locate(path))}
    paths = [path for path, place in located.items() if os.path.lexists(place)]
    layers = [replace(read_file(located[path]), name=relative_path(path)) for path in paths]
    if config is not None:
        paths.append(config)
        layers.append(read_file(config, is_yaml=True))
    layers.append(SettingsLayer(name=source, document=dict(overrides), options=options))
    layers = [normalize(layer) for layer in layers]
    _raise_problems(_problems_in(layers))
    settings = resolve([layer.document for layer in layers])
    _raise_problems((_find_layer(layers, problem.path), problem) for problem in _conflicts(settings))
    return LoadedSettings(settings, tuple(paths))


def override(settings: Settings, overrides: Document) -> Settings:
    """Return the settings with `overrides` on top; raise a UserError if the overrides are wrong."""
    layer = normalize(SettingsLayer(name="command line", document=overrides))
    _raise_problems(_problems_in([layer]))
    return msgspec.convert(merge(msgspec.to_builtins(settings), layer.document), Settings)


def settings_files(workspace: Path, env: Mapping[str, str]) -> list[Path]:
    """Return the possible settings files, lowest layer first: the user's, the project's, the project's local one."""
    files = [workspace / ".ralph" / "settings.json", workspace / ".ralph" / "settings.local.json"]
    own = config_folder(env)
    return [workspace / own / "settings.json", *files] if own else files


def resolve(documents: list[Document]) -> Settings:
    """Return the settings from valid documents, lowest layer first, on top of the preset that they choose."""
    preset = merge(*documents).get("preset", DEFAULT_PRESET)
    if PRESETS[preset].reads_completion_response:
        documents = [_with_claim(document) for document in documents]
    merged = merge(*documents)
    sandbox = merged.get("sandbox")
    in_sandbox = {"yolo": True} if isinstance(sandbox, dict) and sandbox.get("enabled") else {}
    for_request = {"worktree": True} if merged.get("pr", "off") != "off" else {}
    return msgspec.convert(merge(PRESETS[preset].defaults, in_sandbox, merged, for_request), Settings)


def convert_stored(document: Any, kind: type[Stored]) -> Stored:
    """Return what was stored together with settings, perhaps by an earlier version, where some keys had other places.
    Raise a `msgspec.ValidationError` if it is malformed."""
    settings = document.get("settings") if isinstance(document, dict) else None
    if isinstance(settings, dict):
        for (outer, inner), key in MOVED.items():
            if isinstance(inside := settings.get(outer), dict) and inner in inside:
                settings[key] = inside.pop(inner)
    return msgspec.convert(document, kind)


def merge(*documents: Mapping[str, Any]) -> Document:
    """Merge documents, the last wins: objects are merged, other values replaced, and null removes a key."""
    result: Document = {}
    for document in documents:
        for key, value in document.items():
            if value is None:
                result.pop(key, None)
            elif isinstance(value, dict):
                below = result.get(key)
                result[key] = merge(below if isinstance(below, dict) else {}, value)
            elif isinstance(value, list):
                result[key] = [merge(item) if isinstance(item, dict) else item for item in value]
            else:
                result[key] = value
    return result


def normalize(layer: SettingsLayer) -> SettingsLayer:
    """Give every setting its key of settings.json, and expand short forms."""
    document, problems = dict(layer.document), list(layer.problems)
    file_keys: dict[str, str] = {}
    for old, key in {**ALIASES, **layer.aliases}.items():
        if old in document and key in document:
            problems.append(Problem((old,), f'"{key}" and "{old}" are the same key: remove one of them'))
            del document[old]
        elif old in document:
            file_keys[key] = old
            document = {key if name == old else name: value for name, value in document.items()}
    for (outer, inner), key in MOVED.items():
        inside = document.get(outer)
        if not isinstance(inside, dict) or inner not in inside:
            continue
        document[outer] = {name: value for name, value in inside.items() if name != inner}
        if key in document:
            problems.append(Problem((key,), f'"{key}" and "{outer}.{inner}" are the same key: remove one of them'))
        else:
            document[key], file_keys[key] = inside[inner], f"{outer}.{inner}"
    return replace(layer, document=_expand(document, Settings), file_keys=file_keys, problems=tuple(problems))


def _expand(value: Any, kind: Any) -> Any:
    """Return a value with its short forms expanded. A value of another type stays, and is refused later."""
    bare = bare_type(kind)
    expected, key = SHORT_FORMS.get(bare, (None, ""))
    if expected and isinstance(value, expected):
        value = {key: value}
    if is_struct(bare) and isinstance(value, dict):
        types = field_types(bare)
        names: dict[str, str] = dict(zip(bare.__struct_fields__, types, strict=True))
        renamed = {str(names.get(name, name)): item for name, item in value.items()}
        return {name: _expand(item, types.get(name)) for name, item in renamed.items()}
    if get_origin(bare) is tuple and isinstance(value, list):
        return [_expand(item, get_args(bare)[0]) for item in value]
    if get_origin(bare) is Literal and isinstance(value, str):
        return next((choice for choice in get_args(bare) if choice.lower() == value.lower()), value)
    if isinstance(value, str):
        for parse in (meta.extra["parse"] for meta in metas_of(kind) if meta.extra and "parse" in meta.extra):
            with suppress(UserError):
                return parse(value)
    return value


def _with_claim(document: Document) -> Document:
    """Turn `completionResponse` into a claim, unless the document has `until` as well."""
    if "completionResponse" not in document or "until" in document:
        return document
    text = document["completionResponse"]
    return {**document, "until": None if text is None else [f"response:{text}"]}


def _problems_in(layers: Iterable[SettingsLayer]) -> Iterator[tuple[SettingsLayer, Problem]]:
    for layer in layers:
        yield from ((layer, problem) for problem in layer.problems)
        yield from ((layer, problem) for problem in find_problems(layer.document, Settings))


def _conflicts(settings: Settings) -> Iterator[Problem]:
    """Yield the conflicts between the settings of all layers together."""
    fewest = settings.traits.fewest_iterations
    if settings.maximum_iterations < fewest:
        text = f'expected {fewest} or more with the "{settings.preset}" preset, got {settings.maximum_iterations}'
        yield Problem(("maximumIterations",), text)
    if not settings.until and not settings.traits.measures:
        yield Problem(("until",), "expected at least one claim, or no run can end as done")
    for name, agent in settings.agents.items():
        if text := _agent_conflict(name, agent):
            yield Problem(("agents", name), text)
    if settings.on_limit == "switch" and not settings.then:
        yield Problem(("onLimit",), '"switch" needs an agent in "then"')


def _agent_conflict(name: str, agent: CustomAgent) -> str:
    """Return why the settings of an agent contradict each other; empty if they don't."""
    by_model = [field for field in ("url", "wire", "key_env", "context", "max_output") if getattr(agent, field)]
    if agent.argv and name == "builtin":
        return '"builtin" is ralph\'s own agent: give yours another name, or remove "argv"'
    if agent.argv and (by_model or isinstance(agent.model, str)):
        return f'"argv" names a program, "{(*by_model, "model")[0]}" is for the built-in agent: remove one of them'
    if not agent.argv and isinstance(agent.model, tuple) and agent.model:
        return '"argv" is missing, or "model" should be a text: PROVIDER:NAME'
    if not agent.argv and not agent.model and not agent.url and name != "builtin":
        return '"argv" is missing'
    return ""


def _find_layer(layers: list[SettingsLayer], path: KeyPath) -> SettingsLayer:
    """Return the highest layer that sets something at `path`."""
    for layer in reversed(layers):
        value: Any = layer.document
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            return layer
    return layers[-1]


def _raise_problems(problems: Iterable[tuple[SettingsLayer, Problem]]) -> None:
    """Raise all problems as one error, one line each; do nothing if there are none."""
    problems = list(problems)
    lines = [f"{layer.locate(problem.path)}: {problem.text}" for layer, problem in problems]
    where = "`-h` says what" if all(layer.options for layer, _ in problems) else "`ralph schema settings` says what"
    if len(lines) > 1:
        lines = [f"{len(lines)} errors in the settings", *(f"  {line}" for line in lines)]
    if lines:
        raise UserError("\n".join(lines), f"{where} is valid")
