"""Which settings hold for a run? What each source says, laid over one another: preset, user, project, local, flags."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ralph.core.model import FailAction
from ralph.errors import UserError
from ralph.files import config_folder
from ralph.settings.shape import CustomAgent, Settings, parse_duration, parse_size
from ralph.settings.source import Fault, KeyPath, Said, Source, faults, json_source, refuse

if TYPE_CHECKING:
    import pathlib

_DURATIONS = ("checkTimeout", "maxTime", "turnTimeout", "idleTimeout", "restartDelay", "waitTimeout", "pollInterval")
READERS: dict[str, Callable[[str], float]] = dict.fromkeys((*_DURATIONS, "grace"), parse_duration)
READERS["maxLog"] = parse_size


class Loaded(Struct, frozen=True):
    """The settings of a run, the files they came from, and what was left alone there: it is none of ours."""

    settings: Settings
    sources: tuple["pathlib.Path", ...]
    left_alone: tuple[str, ...] = ()


def load(
    workspace: "pathlib.Path",
    overrides: Mapping[str, Any],
    *,
    env: Mapping[str, str],
    config: "pathlib.Path | None" = None,
    source: str = "command line",
    options: Mapping[str, str] = {},
) -> Loaded:
    """The settings for a workspace. `overrides` is what the command line, or another `source`, says in the names of
    settings.json, where `options` are their names on a command line; `config` is a YAML file just below it."""
    paths = [path for path in settings_files(workspace, env) if os.path.lexists(path)]
    layers = [json_source(path) for path in paths]
    if config is not None:
        from ralph.settings.yaml_file import yaml_source

        paths.append(config)
        layers.append(yaml_source(config))
    layers.append(Source(name=source, said=dict(overrides), options=options))
    layers = [replace(layer, said=_spelled(layer.said)) for layer in layers]
    refuse((layer, fault) for layer in layers for fault in _faults_of(layer))
    settings = settled([layer.said for layer in layers])
    refuse((_to_blame(layers, fault.path), fault) for fault in _conflicts(settings))
    return Loaded(settings, tuple(paths), tuple(name for layer in layers for name in layer.left_alone))


def amended(settings: Settings, said: Said) -> Settings:
    """The settings of a run that goes on, with what the command line now says over them."""
    layer = Source(name="command line", said=_spelled(said))
    refuse((layer, fault) for fault in _faults_of(layer))
    return msgspec.convert(merged(msgspec.to_builtins(settings), layer.said), Settings)


def settings_files(workspace: "pathlib.Path", env: Mapping[str, str]) -> "list[pathlib.Path]":
    """Where settings may be, lowest layer first: the user's own, the project's, and the local ones."""
    files = [workspace / ".ralph" / "settings.json", workspace / ".ralph" / "settings.local.json"]
    own = config_folder(env)
    return [workspace / own / "settings.json", *files] if own else files


def settled(said: list[Said]) -> Settings:
    """The settings that follow from what each layer says, lowest first, over the preset that they choose."""
    preset = merged(*said).get("preset", "guardrails")
    if preset == "guardrails":
        said = [_claiming(one) for one in said]
    layers = merged(*said)
    boxed = {"yolo": True} if isinstance(box := layers.get("sandbox"), dict) and box.get("enabled") else {}
    return msgspec.convert(merged(PRESETS[preset], boxed, layers), Settings)


def merged(*documents: Said) -> Said:
    """The documents laid over one another: objects merge, everything else replaces, null takes back what was said."""
    result: Said = {}
    for document in documents:
        for key, value in document.items():
            if value is None:
                result.pop(key, None)
            elif isinstance(value, dict):
                below = result.get(key)
                result[key] = merged(below if isinstance(below, dict) else {}, value)
            elif isinstance(value, list):
                result[key] = [merged(item) if isinstance(item, dict) else item for item in value]
            else:
                result[key] = value
    return result


def _faults_of(layer: Source) -> Iterator[Fault]:
    yield from layer.faults
    try:  # msgspec alone can vouch for what is said, unless there are nulls: they may hide unknown keys
        msgspec.convert(layer.said, Settings)
        is_sound = merged(layer.said) == layer.said
    except (msgspec.ValidationError, UnicodeError):  # the latter: a word of the command line that is no text
        is_sound = False
    if not is_sound:
        yield from faults(layer.said, Settings)
    yield from _nuls(layer.said, ())


def _nuls(said: object, path: KeyPath) -> Iterator[Fault]:
    """No name of a file and no word of a command line can hold one: the system takes it for the end."""
    if isinstance(said, str) and "\0" in said:
        yield Fault(path, "holds a character that ends every text for the system (NUL)")
    steps = said.items() if isinstance(said, dict) else enumerate(said) if isinstance(said, list | tuple) else ()
    for step, value in steps:
        yield from _nuls(value, (*path, step))


def _spelled(said: Said) -> Said:
    """The same with what people may write in several ways written in one. What cannot be read stays, to be refused."""
    spelled = dict(said)
    for name, read in READERS.items():
        if isinstance(said.get(name), str):
            with suppress(UserError):
                spelled[name] = read(said[name])
    if isinstance(said.get("guardrails"), list):
        spelled["guardrails"] = [_in_capitals(one) if isinstance(one, dict) else one for one in said["guardrails"]]
    return spelled


def _in_capitals(guardrail: Said) -> Said:
    action = str(guardrail.get("failAction")).upper()
    return {**guardrail, "failAction": action} if action in get_args(FailAction) else guardrail


def _claiming(said: Said) -> Said:
    """The completion response as the claim it stands for, where nothing more explicit stands beside it."""
    if "completionResponse" not in said or "until" in said:
        return said
    text = said["completionResponse"]
    return {**said, "until": None if text is None else [f"response:{text}"]}


def _conflicts(settings: Settings) -> Iterator[Fault]:
    """What no single layer can know to be wrong."""
    fewest = FEWEST_ITERATIONS[settings.preset]
    if settings.maximum_iterations < fewest:
        text = f'expected {fewest} or more with the "{settings.preset}" preset, got {settings.maximum_iterations}'
        yield Fault(("maximumIterations",), text)
    if not settings.until:
        yield Fault(("until",), "expected at least one claim: without one no run can be done")
    if settings.on_limit == "switch" and not settings.fallback_agents:
        yield Fault(("onLimit",), '"switch" needs agents to switch to in fallbackAgents')
    for name, agent in settings.agents.items():
        if text := _doubt(name, agent):
            yield Fault(("agents", name), text)


def _doubt(name: str, agent: CustomAgent) -> str:
    """Why nobody could say what kind of agent is meant."""
    by_model = [field for field in ("url", "wire", "key_env", "context", "max_output") if getattr(agent, field)]
    if agent.argv and name == "builtin":
        return '"builtin" is the agent of ralph\'s own: give yours another name, or take "argv" away'
    if agent.argv and (by_model or isinstance(agent.model, str)):
        return f'"argv" names a program, "{(*by_model, "model")[0]}" is for the built-in agent: take one of them away'
    if not agent.argv and isinstance(agent.model, tuple) and agent.model:
        return '"argv" is missing, or "model" should be a text: PROVIDER:NAME'
    if not agent.argv and not agent.model and not agent.url and name != "builtin":
        return '"argv" is missing'
    return ""


def _to_blame(layers: list[Source], path: KeyPath) -> Source:
    """The highest layer that says something about `path`."""
    for layer in reversed(layers):
        value: Any = layer.said
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if value is not None:
            return layer
    return layers[-1]


PRESETS: dict[str, dict[str, Any]] = {
    "guardrails": {"until": ["response:DONE"], "maximumIterations": 10},
    "goal": {"until": ["word:STOP"], "maximumIterations": 10, "stall": 1},
    "checks": {"until": ["tag:COMPLETE"], "maximumIterations": 25, "checkTimeout": 120},
    "promise": {"until": ["promise:DONE"], "maximumIterations": 100, "minToolCalls": 1, "session": "continue"},
    "supervise": {
        "until": ["file:DONE"],
        "maximumIterations": 100,
        "maxFailures": 0,
        "everyTurnCounts": True,
        "waitSignals": True,
        "restartDelay": 1,
        "pollInterval": 1,
    },
}

# Zero continuations or attempts are a wish that can be granted; a loop of zero iterations is a mistake.
FEWEST_ITERATIONS = {"guardrails": 1, "goal": 1, "checks": 1, "promise": 0, "supervise": 0}
