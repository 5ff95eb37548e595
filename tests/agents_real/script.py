"""The steps of the scripted model. A scenario is a list of them, the same for every agent and protocol."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["write", "shell", "read"]
Schema = Mapping[str, Any]


class Tokens(NamedTuple):
    """The usage that a reply states; `cached`: how much of the input came from the cache."""

    input: int = 100
    output: int = 20
    cached: int = 0


class Say(NamedTuple):
    """Answer with text, which ends the agent's turn. `cut`: the answer has reached its maximum length."""

    text: str
    tokens: Tokens = Tokens()
    cut: bool = False


class Call(NamedTuple):
    """Ask for one use of a tool. `what` is the path (write, read) or the command (shell)."""

    kind: Kind
    what: str
    content: str = ""
    text: str = ""
    tokens: Tokens = Tokens()


class Uses(NamedTuple):
    """Ask for one or more tools by name, with arguments as an object or as text: (name, arguments)."""

    calls: tuple[tuple[str, Mapping[str, object] | str], ...]
    text: str = ""


class Fail(NamedTuple):
    """Refuse with an HTTP error, in the protocol's own form. `kind` is the error's type in that form."""

    status: int
    message: str = "refused by the script"
    kind: str = ""
    headers: Mapping[str, str] = {}
    fields: Mapping[str, object] = {}


class Cut(NamedTuple):
    """Begin to answer, then lose the connection; without text before the first byte."""

    text: str = ""


class Torn(NamedTuple):
    """Send only the first bytes of an answer, then close the connection normally. `chunked`: an HTTP client can see
    that something is missing."""

    text: str
    bytes: int
    chunked: bool = False


class Broken(NamedTuple):
    """Begin to answer, then send an error inside the stream."""

    text: str
    fail: Fail = Fail(500, "broken in the middle")


class Endless(NamedTuple):
    """Answer without end."""

    text: str


class Other(NamedTuple):
    """Answer with something that is not a reply of a model."""

    body: bytes
    kind: str = "text/html"


class Hang(NamedTuple):
    """Begin to answer, then send nothing more until the test is over."""

    text: str = ""


class Forever(NamedTuple):
    """Repeat this step from now on."""

    step: "Step"


Step = Say | Call | Uses | Fail | Cut | Torn | Broken | Endless | Other | Hang | Forever


def write(path: object, content: str, text: str = "") -> Call:
    return Call("write", str(path), content, text)


def shell(command: str, text: str = "") -> Call:
    return Call("shell", command, text=text)


class Asked(NamedTuple):
    """One request as the model sees it, whatever the protocol."""

    protocol: str
    path: str
    system: str
    messages: tuple[tuple[str, str], ...]  # (role, text); a tool's result has the role "tool"
    tools: Mapping[str, Schema]  # by name: the JSON Schema of its arguments
    streaming: bool
    model: str = ""

    @property
    def prompt(self) -> str:
        """The user's last message."""
        return next((text for role, text in reversed(self.messages) if role == "user"), "")

    @property
    def prompts(self) -> list[str]:
        return [text for role, text in self.messages if role == "user"]

    @property
    def results(self) -> list[str]:
        """The results of the tools so far."""
        return [text for role, text in self.messages if role == "tool"]


class Use(NamedTuple):
    """A tool call with the agent's names. Arguments that are text are sent verbatim, even if they are malformed."""

    name: str
    arguments: Mapping[str, object] | str


# Names that the agents give to the same tool; the first one offered is taken.
NAMES: dict[Kind, tuple[str, ...]] = {
    "write": ("Write", "write", "write_file", "create", "write_to_file", "editor"),
    "shell": (
        "Bash",
        "bash",
        "run_shell_command",
        "exec_command",
        "shell_command",
        "shell",
        "execute_command",
        "run_commands",
    ),
    "read": ("Read", "read", "read_file", "view", "read_files"),
}
PATHS = ("file_path", "filePath", "path", "absolute_path", "target_file")
CONTENTS = ("content", "file_text", "contents", "new_text")
COMMANDS = ("command", "cmd", "commands")


def offers(asked: Asked, kind: Kind) -> str:
    """Return the agent's name for this tool; "" if it does not offer it."""
    return next((name for name in NAMES[kind] if name in asked.tools), "")


def use(call: Call, asked: Asked) -> Use:
    """Return the call as this agent understands it. An agent without the tool uses its shell."""
    name = offers(asked, call.kind)
    if not name:
        if call.kind == "shell" or not offers(asked, "shell"):
            raise LookupError(f"no tool to {call.kind} among {sorted(asked.tools)}")
        return use(Call("shell", _in_shell(call)), asked)
    values: dict[str, object] = dict.fromkeys(COMMANDS, call.what) if call.kind == "shell" else {}
    if call.kind != "shell":
        values |= dict.fromkeys(PATHS, call.what) | dict.fromkeys(CONTENTS, call.content)
    return Use(name, _arguments(asked.tools[name], values))


def _in_shell(call: Call) -> str:
    if call.kind == "read":
        return f"cat '{call.what}'"
    return f"cat > '{call.what}' <<'END_OF_FILE'\n{call.content.removesuffix(chr(10))}\nEND_OF_FILE"


def _arguments(schema: Schema, values: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments that a tool requires, and those that the script has a value for."""
    properties, required = schema.get("properties"), schema.get("required")
    assert isinstance(properties, Mapping)
    wanted = set(required) if isinstance(required, list) else set()
    return {
        name: _argument(name, about, values) for name, about in properties.items() if name in wanted or name in values
    }


def _argument(name: str, about: Schema, values: Mapping[str, object]) -> object:
    if name in values:
        return [values[name]] if about.get("type") == "array" else values[name]
    items, options = about.get("items"), about.get("enum")
    if isinstance(items, Mapping) and items.get("type") == "object":
        return [_arguments(items, values)]
    if isinstance(options, list):
        return options[0]
    meaningless: dict[object, object] = {"boolean": False, "integer": 0, "number": 0, "array": []}
    return meaningless.get(about.get("type"), "as the script says")
