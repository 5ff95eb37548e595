"""Properties of every settings document."""

from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ralph.core.text import clean
from ralph.errors import UserError
from ralph.settings import AgentChoice, CheckCommand, CustomAgent, ReviewPrompt, Reviews, Scm, Settings, load
from ralph.settings.load import merge
from ralph.settings.validate import find_problems

SCALARS = (
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))


def names_in(struct: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(struct)]


WORDS = st.sampled_from(["APPEND", "append", "5m", "32MB", "word:STOP", "checks", "goal", "wait", "git", "x"]) | SCALARS
STRUCTS = (Settings, AgentChoice, CheckCommand, Scm, Reviews, ReviewPrompt, CustomAgent)
KEYS = st.sampled_from([name for struct in STRUCTS for name in names_in(struct)] + ["$schema", "guardrail"])
VALUES = st.recursive(WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
GUARDRAILS = st.lists(st.dictionaries(st.sampled_from(["command", "failAction", "hint"]), WORDS), max_size=2)
LIKELY = st.dictionaries(KEYS, VALUES, max_size=5) | st.fixed_dictionaries({"guardrails": GUARDRAILS})
NO_NULLS = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)
DOCUMENTS = st.dictionaries(st.sampled_from("abc"), NO_NULLS | st.none(), max_size=3)
PLAIN = st.dictionaries(st.sampled_from("abc"), NO_NULLS, max_size=3)

in_a_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def loaded_or_refused(folder: Path, data: bytes) -> None:
    path = folder / ".ralph" / "settings.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    try:
        load(folder, {}, env={})
    except UserError as error:
        message = error.message
    else:
        return
    assert "settings.json" in message
    assert clean(message) == message


@in_a_folder
@given(JSON)
def test_any_json_is_accepted_or_refused_with_a_user_error(tmp_path: Path, document: Any) -> None:
    loaded_or_refused(tmp_path, msgspec.json.encode(document))


@in_a_folder
@given(LIKELY)
def test_anything_like_settings_is_accepted_or_refused_with_a_user_error(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    loaded_or_refused(tmp_path, msgspec.json.encode(document))


@in_a_folder
@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_accepted_or_refused_with_a_user_error(tmp_path: Path, data: bytes) -> None:
    loaded_or_refused(tmp_path, data)


@in_a_folder
@given(LIKELY, st.data())
def test_a_damaged_file_is_accepted_or_refused_with_a_user_error(
    tmp_path: Path, document: Any, data: st.DataObject
) -> None:
    whole = msgspec.json.encode(document)
    cut = data.draw(st.integers(0, len(whole)))
    loaded_or_refused(tmp_path, whole[:cut] + data.draw(st.binary(max_size=3)) + whole[cut:])
    loaded_or_refused(tmp_path, whole[:cut])


@given(LIKELY.map(merge))
def test_problems_are_found_exactly_if_msgspec_refuses_the_value(document: dict[str, Any]) -> None:
    try:
        msgspec.convert(document, Settings)
        accepted = True
    except msgspec.ValidationError:
        accepted = False
    assert accepted == (not list(find_problems(document, Settings)))


@given(PLAIN, DOCUMENTS)
def test_merged_values_are_in_the_result(low: dict[str, Any], high: dict[str, Any]) -> None:
    result = merge(low, high)
    for key, value in high.items():
        if value is None:
            assert key not in result
        elif not isinstance(value, dict):
            assert result[key] == value
    for key in low.keys() - high.keys():
        assert result[key] == low[key]


@given(PLAIN, DOCUMENTS)
def test_merging_twice_equals_merging_once(low: dict[str, Any], high: dict[str, Any]) -> None:
    assert merge(merge(low, high), high) == merge(low, high)


@given(PLAIN)
def test_merging_nothing_changes_nothing(document: dict[str, Any]) -> None:
    assert merge(document) == merge({}, document) == merge(document, {}) == document


@given(DOCUMENTS, DOCUMENTS, DOCUMENTS)
def test_merging_is_associative(first: dict[str, Any], second: dict[str, Any], third: dict[str, Any]) -> None:
    assert merge(first, second, third) == merge(merge(first, second), third)
