"""`ralph schema` prints a schema, and says what it can print."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from ralph.cli.init import KINDS, schema_text
from ralph.errors import UserError


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_json_that_says_what_it_is(kind: str) -> None:
    text = schema_text(kind)
    assert text.endswith("}\n")
    assert json.loads(text)["$schema"].startswith("https://json-schema.org/")


def test_an_unknown_schema_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UserError, match="nonsense") as caught:
        schema_text("nonsense")
    assert "settings and events" in caught.value.hint


def test_the_command_prints_the_schema_and_nothing_else(ralph: Callable[..., Any]) -> None:
    for kind in KINDS:
        assert (ralph("schema", kind).code, ralph("schema", kind).out) == (0, schema_text(kind))
    assert ralph("schema", "nonsense").code == 2
