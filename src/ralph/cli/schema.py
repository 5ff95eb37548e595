"""`ralph schema`: the JSON Schema of the settings file and of the event stream."""

from ralph.cli.table import CliCommand, Values
from ralph.errors import UserError

KINDS = ("settings", "events")


def print_schema(values: Values, words: list[str]) -> int:
    if len(words) != 1:
        raise UserError("the schema of what?", f"say {' or '.join(KINDS)}")
    print(schema_text(words[0]), end="")
    return 0


def schema_text(kind: str) -> str:
    """The JSON Schema of `settings` or `events`, indented for people, with a newline at its end."""
    import msgspec

    from ralph.settings.reference import events_schema, settings_schema

    if kind not in KINDS:
        raise UserError(f'there is no schema of "{kind}"', f"known are {' and '.join(KINDS)}")
    schema = settings_schema() if kind == "settings" else events_schema()
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"


COMMAND = CliCommand(
    "schema", "Print the JSON Schema of the settings file or of the events.", print_schema, words="settings|events"
)
