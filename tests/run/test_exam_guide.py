"""The three exams of docs/guides/exams.md refuse work that is made for the visible tests, and accept honest work."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs/guides/exams.md"
SLUG = "import re\ndef slugify(text):\n    return re.sub('[^a-z0-9]+', '-', text.lower()).strip('-')\n"
COUNT = "#!/bin/sh\ncat > in\necho $(($(wc -l < in))) $(($(wc -w < in)))\nrm in\n"
SERVER = """import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.parse import parse_qs, urlsplit

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        query = parse_qs(urlsplit(self.path).query)
        try:
            answer = ANSWER
        except ValueError:
            return self.send_error(400)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
WORKS = {  # the file of the work, what is made for a visible test, honest work
    "slug.py": ("slug.py", "def slugify(text):\n    return 'night-train'\n", SLUG),
    "wc.sh": ("count", "#!/bin/sh\necho 2 3\n", COUNT),
    "api.py": (
        "server.py",
        SERVER.replace("ANSWER", "42"),
        SERVER.replace("ANSWER", "int(query['a'][0]) + int(query['b'][0])"),
    ),
}


def scripts() -> dict[str, str]:
    """The scripts of the guide by name: the block below each `~/exams/NAME`."""
    text = GUIDE.read_text()
    return dict(re.findall(r"^`~/exams/([\w.]+)`.*?^```(?:python|sh)\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("name", WORKS)
def test_an_exam_of_the_guide_accepts_honest_work_and_refuses_an_overfit(
    ralph: Callable[..., Any],
    agent: Callable[..., str],
    environment: dict[str, str],
    repository: Path,
    tmp_path: Path,
    name: str,
) -> None:
    exam = Path(environment["HOME"], "exams", name)
    exam.parent.mkdir()
    exam.write_text(scripts()[name])
    file, overfit, honest = WORKS[name]
    for at, content in enumerate((overfit, honest), 1):
        (tmp_path / f"work-{at}").write_text(content)
    works = agent(f'cp {tmp_path}/work-$N {file}; chmod +x {file}; echo "<response>DONE</response>"')
    runner = "sh" if name.endswith(".sh") else "python3"
    words = ("--agent", works, "--check", f"test -e {file}", "--exam", f"{runner} ~/exams/{name}", "--json")
    done = ralph("run", "write it", *words)
    assert done.code == 0, done.err
    assert [one["passed"] for one in done.all("exam_finished")] == [False, False, True]


def test_the_guide_has_an_example_solution_for_each_exam() -> None:
    assert scripts().keys() == WORKS.keys()
