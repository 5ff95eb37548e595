"""Options as click options; `command_options.py` lists those of each command.

Most of them set a setting: their names, types, defaults and help come from the settings schema. The others are written
here the way their help shows them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import click

from ralph.agents import known_names
from ralph.settings import Settings, format_duration
from ralph.settings.presets import DEFAULT_PRESET, PRESET_OF, PRESETS
from ralph.settings.schema import format_size, parse_duration, parse_size
from ralph.settings.validate import bare_type, field_types, metas_of

Kind = Literal["flag", "optional", "list", "int", "float", "number", "text"]
Values = dict[str, Any]

KINDS: dict[str, Kind] = {"": "flag", "N": "int", "USD": "float", "NUMBER": "number", "PERCENT": "number"}
FORMATS: dict[Any, Callable[[Any], str]] = {parse_duration: format_duration, parse_size: format_size}
COMPATIBILITY = "Compatibility"


class ParsedType(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.2
    """A value that `parse` accepts, with a message that says what was expected."""

    def __init__(self, parse: Callable[[Any], Any], name: str) -> None:
        self.parse, self.name = parse, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value)
        except ValueError:
            self.fail(f"expected {self.name}, got {value!r}", param, ctx)


NUMBERS = {
    "int": ParsedType(int, "a whole number"),
    "float": ParsedType(float, "dollars as a plain number, such as 5"),
    "number": ParsedType(float, "a number"),
}


class Option(click.Option):
    """An option, written as its help shows it: `-m --max-iterations N`.

    After the names comes the value: a number (`N`, `USD`), one of several words (`reject|warn|accept`) or any text. A
    flag has no value. ` ...` means that the option may be repeated, `[=VALUE]` that the value may be left out.

    - `key` is the setting that it sets, such as `agent.model`. Without one the command reads the value by `name`.
    - `sets` is the value of a flag, or of an option that is given without its value.
    - `shows_default`: the help states the default.
    """

    def __init__(
        self,
        spelling: str,
        help: str,  # noqa: A002 (click's name for it)
        *,
        key: str = "",
        sets: Any = True,
        group: str = "Options",
        shows_default: bool = False,
    ) -> None:
        spelling, is_optional, optional = spelling.removesuffix("]").partition("[=")
        words = spelling.split(" ")
        self.names = tuple(word for word in words if word.startswith("-"))
        value = optional or (words[len(self.names)] if len(words) > len(self.names) else "")
        self.choices = tuple(value.split("|")) if value.replace("|", "").islower() else ()
        self.kind: Kind = KINDS.get(value, "text")
        if is_optional:
            self.kind = "optional"
        elif spelling.endswith(" ..."):
            self.kind = "list"
        self.key, self.sets, self.group, self.shows_default = key, sets, group, shows_default
        identifier = max(self.names, key=len).lstrip("-").replace("-", "_")
        super().__init__(
            [*self.names, identifier],
            type=self._click_type(value),
            is_flag=self.kind == "flag" or None,  # False would make every value optional
            multiple=self.kind == "list",
            metavar=None if self.kind == "flag" or (self.choices and not is_optional) else value,
            help=help,
            shell_complete=COMPLETIONS.get(identifier),
        )

    def _click_type(self, value: str) -> "click.ParamType[Any] | None":
        if self.kind == "flag":
            return None
        if self.choices:
            if self.kind == "optional":  # the value may be left out
                return ParsedType(self._parse_choice, " or ".join(self.choices))
            return click.Choice(self.choices)
        if value in ("FILE", "DIR"):
            return click.Path()  # for shell completion; whether it exists is checked later
        return NUMBERS.get(self.kind, click.STRING)

    def _parse_choice(self, word: str) -> str:
        if word and word not in self.choices:
            raise ValueError(word)
        return word

    def describe(self, preset: str) -> str:
        """Return the help, with the default that a preset gives the setting."""
        text = self.help or ""
        default = _default_text(self.key, preset) if self.shows_default else ""
        return f"{text.removesuffix('.')} (default: {default})." if default else text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None:
            return None
        names = f"{', '.join(self.names)}[={self.metavar}]" if self.kind == "optional" else record[0]
        return names, self.describe(PRESET_OF.get(ctx.command.name or "", DEFAULT_PRESET))


def complete_with(words: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return lambda ctx, param, incomplete: [word for word in words if word.startswith(incomplete)]


COMPLETIONS = {
    **dict.fromkeys(("agent", "then", "fallback_agent"), complete_with(known_names())),
    "until": complete_with(
        ("checks", "word:STOP", "response:DONE", "suffix:DONE", "promise:DONE", "tag:COMPLETE", "file:DONE")
    ),
}


GOAL_OPTIONS = ("prompt", "prompt_file", "spec", "issue")


class OptionCommand(click.Command):
    """A command with options and any number of words. The value of `--commit[=all]` needs its `=`, so that `--commit
    GOAL` keeps its goal. Of an option that is given twice, the last counts; a goal must not be given twice."""

    def __init__(self, name: str, options: Sequence[Option], **attrs: Any) -> None:
        self.options = tuple(options)
        words, complete = attrs.pop("words", ""), attrs.pop("complete", None)
        argument = click.Argument(["words"], nargs=-1, metavar=words, shell_complete=complete)
        super().__init__(name, params=[*self.options, *attrs.pop("more", ()), argument], **attrs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = {name for option in self.options if option.kind == "optional" for name in option.names}
        end = args.index("--") if "--" in args else len(args)
        args = [f"{arg}=" if arg in bare else arg for arg in args[:end]] + args[end:]
        try:
            order = self.make_parser(ctx).parse_args([*args])[2]
            for option in self.options:
                if option.name in GOAL_OPTIONS and order.count(option) > 1 and not ctx.resilient_parsing:
                    raise click.UsageError(f"two goals: {option.names[-1]} is given more than once")
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx  # so that the hint names the command
            raise


def option_values(ctx: click.Context) -> tuple[Values, list[str]]:
    """Return the options that were given, by name, and the other words."""
    params = dict(ctx.params)
    words = params.pop("words")
    values = {name: value for name, value in params.items() if value is not None and value is not False and value != ()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}, list(words)


def _field(key: str) -> tuple[Any, Any]:
    """Return the annotated type and the default of a setting such as `agent.model`."""
    struct: Any = Settings
    *outer, last = key.split(".")
    for step in outer:
        struct = bare_type(field_types(struct)[step])
    names = dict(zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True))
    return field_types(struct)[last], getattr(struct(), names[last])


def _default_text(key: str, preset: str) -> str:
    """Return the default of a setting as it is typed; "" if the help does not state it."""
    kind, default = _field(key)
    default = PRESETS[preset].defaults.get(key, default)
    parsers = [meta.extra["parse"] for meta in metas_of(kind) if meta.extra and "parse" in meta.extra]
    if default in (None, "", ()) or isinstance(default, bool):
        return ""
    if isinstance(default, list | tuple):
        return ", ".join(map(str, default))
    return FORMATS[parsers[0]](default) if parsers else str(default)


def setting(key: str, spelling: str = "", text: str = "", *, sets: Any = None, shows_default: bool = False) -> Option:
    """Return the option for a setting; its type, default and help come from the schema unless given here."""
    kind, default = _field(key)
    metas, bare = metas_of(kind), bare_type(kind)
    extra: dict[str, Any] = {}
    for meta in reversed(metas):
        extra |= meta.extra or {}
    name = re.sub("([A-Z])", r"-\1", key.rpartition(".")[2]).lower()
    names, metavar = spelling or extra.get("option", f"--{name}"), extra.get("metavar", "")
    help_text = text or next(meta.description for meta in metas if meta.description)
    if get_origin(bare) is Literal:
        metavar = "|".join(get_args(bare))
    elif bare is int:
        metavar = metavar or "N"
    elif get_origin(bare) is tuple:
        metavar, help_text = "...", f"{help_text} Repeatable."
    if sets is None:
        sets = not default if bare is bool else True
    is_flag = bare is bool or sets is not True
    spelled = names if is_flag else f"{names} {metavar}".rstrip()
    return Option(spelled, help_text, key=key, sets=sets, shows_default=shows_default or not (is_flag or text))


def group(title: str, *options: Option | str) -> tuple[Option, ...]:
    """Put options under one heading of the help. A string is the key of a setting, for its usual option."""
    grouped = tuple(setting(option) if isinstance(option, str) else option for option in options)
    for option in grouped:
        option.group = title
    return grouped


def only(options: tuple[Option, ...], *names: str) -> tuple[Option, ...]:
    return tuple(option for option in options if option.name in names)


def without(options: tuple[Option, ...], *names: str) -> tuple[Option, ...]:
    return tuple(option for option in options if option.name not in names)


CLAIMS = {
    "completion_response": "response",
    "completion_promise": "promise",
    "completion_tag": "tag",
    "done_file": "file",
}


def as_settings(options: Sequence[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given as a settings document."""
    document: dict[str, Any] = {}
    for option in options:
        if option.key and option.name in values:
            value = values[str(option.name)]
            if option.kind == "flag" or (option.kind == "optional" and not value):
                value = option.sets
            if option.kind == "list":  # both --then and --fallback-agent set it
                value = [*document.get(option.key, []), *value]
            set_key(document, option.key, value)
    claims = [f"{kind}:{values[name]}" for name, kind in CLAIMS.items() if name in values]
    if claims:
        document["until"] = [*document.get("until", []), *claims]
    return document


def set_key(document: dict[str, Any], key: str, value: Any) -> None:
    """Set a key such as `agent.model`."""
    *path, last = key.split(".")
    for step in path:
        document = document.setdefault(step, {})
    document[last] = value
