"""Libraries that were imported without some of their parts work all the same."""

import subprocess
import sys

import pytest

LEANLY = "from ralph.processes.spawning import import_leanly; import_leanly('msgspec', 'pathlib'); "
LEANLY += "import sys, msgspec, pathlib; "
PARTS = ("msgspec.inspect", "msgspec.msgpack", "msgspec._json_schema", "platform", "urllib.parse", "typing_extensions")
PARTS += ("decimal", "uuid", "ntpath", "warnings")
if sys.version_info[:2] != (3, 12):  # whose pathlib asks for it at once
    PARTS += ("fnmatch",)


def said(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_the_parts_are_left_out_and_nothing_stands_in_for_them_any_more() -> None:
    assert said(LEANLY + f"print([part for part in {PARTS} if part in sys.modules])") == "[]"


@pytest.mark.parametrize(
    "asked",
    [
        "msgspec.json.schema(int)",
        "msgspec.inspect.type_info(int)",
        "msgspec.msgpack.encode([1])",
        "pathlib.Path('/a b').as_uri()",
        "pathlib.PurePath('a.py').match('*.py')",
        "pathlib.PureWindowsPath('C:/a').drive",
        "__import__('decimal').Decimal('1.5')",
        "__import__('uuid').UUID(int=1)",
        "__import__('datetime').datetime(2026, 1, 1, tzinfo=__import__('datetime').UTC).isoformat()",
        "__import__('datetime').datetime.strptime('2026', '%Y')",
        "__import__('typing').get_type_hints(type('A', (), {'__annotations__': {'x': 'int'}}))",
        "__import__('platform').machine() != ''",
        "__import__('warnings').catch_warnings.__name__",
        "__import__('urllib.parse').parse.quote('a b')",
        "__import__('importlib').import_module('msgspec.inspect').IntType()",
    ],
)
def test_what_was_left_out_is_there_when_it_is_asked_for(asked: str) -> None:
    assert said(f"{LEANLY} print({asked})") == said(f"import msgspec, pathlib; print({asked})")


def test_what_was_imported_before_stays_as_it_is() -> None:
    code = "import platform, typing_extensions; " if "typing_extensions" in sys.modules else "import platform; "
    assert said(f"{code}before = platform; {LEANLY} print(sys.modules['platform'] is before)") == "True"


def test_nothing_of_the_standard_library_stays_replaced() -> None:
    code = LEANLY + (
        "from ralph.processes.spawning import StandIn\n"
        "left = [name for name, module in sys.modules.items() if isinstance(module, StandIn)]\n"
        "assert not left, left\n"
        "import datetime; assert datetime.__file__.endswith('datetime.py'), datetime"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
