"""The reference of the settings is generated from the schema."""

from pathlib import Path

import msgspec

from ralph.settings import PRESETS, Settings

PAGE = (
    Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
)  # tests/test_docs.py checks that this text is in the file


def test_the_reference_names_every_setting_and_preset() -> None:
    page = PAGE.read_text()
    for field in msgspec.structs.fields(Settings):
        assert f"| `{field.encode_name}` |" in page
    for name in PRESETS:
        assert f"`{name}`" in page.partition("## Presets")[2]


def test_the_reference_has_a_table_for_each_object() -> None:
    page = PAGE.read_text()
    for title in ("agent", "checks[]", "scm", "reviews", "reviews.prompts[]", "agents.NAME"):
        assert f"## `{title}`\n" in page


def test_the_reference_shows_defaults_as_a_user_would_write_them() -> None:
    page = PAGE.read_text()
    assert "| `grace` | a duration | `30s` |" in page
    assert "| `maxLog` | a size | `32MB` |" in page
    assert "| `command` | text that is not blank | (needed) |" in page
    assert "| `checkTimeout` |  |  | `2m` |  | `10m` |  |" in page


def test_every_row_of_a_table_has_the_same_number_of_cells() -> None:
    for table in PAGE.read_text().split("\n## ")[1:]:
        rows = [line.replace("\\|", "") for line in table.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) <= 1
