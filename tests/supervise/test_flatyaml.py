import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ralph.supervise.run_info import dump, parse

ODD = ("", " ", "yes", "No", "null", "~", "1", "-1", "1.5", "1e3", "0x1f", "2026-11-15", "12:30", "a: b", "- a", "# c")
ODDER = ("{a}", "[a]", "&a", "*a", "!a", "|", ">", "%a", "@a", "`a`", "'a'", '"a"', "a\\b", "é", "🐎", "\ufeff", "---")
CONTROLS = (
    "\n",
    "\r\n",
    "\t",
    "\0",
    "\x7f",
    "\x85",
    "\u2028",
    "\u00a0",
    "\ue000",
    "a\nb: c\n",
    "=",
    "<<",
    "\U000e0001",
)


@pytest.mark.parametrize("value", ODD + ODDER + CONTROLS)
def test_any_text_is_the_same_to_us_and_to_a_yaml_parser(value: str) -> None:
    written = dump({"key": value, "next": "x"})
    assert yaml.safe_load(written) == {"key": value, "next": "x"}
    assert parse(written) == {"key": value, "next": "x"}
    assert written.count("\n") == 2


@given(st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), st.text()))
def test_every_dictionary_comes_back(values: dict[str, str]) -> None:
    values = {key: value for key, value in values.items() if key not in ("y", "n", "on", "off", "no", "yes", "null")}
    written = dump(values)
    assert parse(written) == values
    assert (yaml.safe_load(written) or {}) == values


def test_numbers_and_nothing_are_themselves() -> None:
    assert yaml.safe_load(dump({"a": 0, "b": -15, "c": None})) == {"a": 0, "b": -15, "c": None}


def test_ordinary_words_have_no_quotes() -> None:
    assert dump({"status": "completed", "path": "/tmp/a-b.md"}) == "status: completed\npath: /tmp/a-b.md\n"


def test_what_another_yaml_writer_wrote_is_read() -> None:
    values = {"a": "x: y", "b": "it's", "c": "plain", "d": ""}
    assert parse("---\n# comment\n\n" + yaml.safe_dump(values)) == values


def test_half_a_character_is_replaced() -> None:
    assert yaml.safe_load(dump({"a": "\ud83d"})) == {"a": "\ufffd"}


@pytest.mark.parametrize("text", ["no colon\n", "a: b\n  nested: c\n", 'a: "unclosed\n', "\x00: b\n", "a: b\n- c: d\n"])
def test_what_is_not_flat_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
