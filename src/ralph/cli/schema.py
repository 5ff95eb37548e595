"""`ralph schema`: the JSON Schema of the settings file and of the event stream."""

from typing import TYPE_CHECKING

from ralph.errors import UserError

if TYPE_CHECKING:
    import click

KINDS = ("settings", "events")


def command() -> "click.Command":
    import click

    from ralph.cli.commands import simple

    kind = click.Argument(["kind"], type=click.Choice(KINDS))
    return simple("schema", print_schema, kind, help="Print the JSON Schema of the settings file or of the events.")


def print_schema(kind: str) -> int:
    print(schema_text(kind), end="")
    return 0


def schema_text(kind: str) -> str:
    """The JSON Schema of `settings` or `events`, indented for people, with a newline at its end."""
    import msgspec

    from ralph.settings.reference import events_schema, settings_schema

    if kind not in KINDS:
        raise UserError(f'there is no schema of "{kind}"', f"known are {' and '.join(KINDS)}")
    schema = settings_schema() if kind == "settings" else events_schema()
    return msgspec.json.format(msgspec.json.encode(schema), indent=2).decode() + "\n"
