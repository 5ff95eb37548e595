"""Commands work without the optional extras, or say which one to install."""

import subprocess
import sys

IMPORT_ALL = """
import sys

EXTRAS = "apprise genai_prices procrastinate psycopg pydantic_ai segno starlette textual uvicorn".split()


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Missing())
from ralph.cli.table import SUMMARIES, find

for name in SUMMARIES:
    find(name)
"""


def test_every_command_loads_without_the_optional_extras() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
