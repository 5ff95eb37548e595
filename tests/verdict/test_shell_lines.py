"""The files that a shell line runs or names, so that changes to them are noticed or undone."""

from pathlib import Path

import pytest

from ralph.verdict.shell_lines import files_named, files_run


@pytest.mark.parametrize(
    ("command", "scripts"),
    [
        ("python3 bench/speed.py --runs 3", ["bench/speed.py"]),
        ("uv run python -m bench.speed", ["bench/speed.py"]),
        ("make bench && ./report.sh | tail -1", ["Makefile", "report.sh"]),
        ("npm run -s size", ["package.json"]),
        ("PYTHONHASHSEED=0 python3 ./bench/speed.py", ["bench/speed.py"]),
        ("wc -c < app.js", []),
        ("npx esbuild app.js --minify | wc -c", []),
        ("bash -c 'gzip -c app.js | wc -c'", []),
        ("time python3 bench/speed.py", ["bench/speed.py"]),
        ("/usr/bin/python3 /elsewhere/speed.py", []),
        ("sh -c 'python3 bench/speed.py'", ["bench/speed.py"]),
        ("pipenv run python3 'bench/two words.py' > out", ["bench/two words.py"]),
        ("./report.sh # doesn't", ["report.sh"]),
    ],
)
def test_the_scripts_that_a_line_runs_are_found(tmp_path: Path, command: str, scripts: list[str]) -> None:
    for name in ("bench/speed.py", "Makefile", "report.sh", "package.json", "app.js", "bench/two words.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")

    assert files_run(command, str(tmp_path)) == scripts


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("sh check.sh && wc -c < app.js", {"check.sh", "app.js"}),
        ("bash -c 'cd . && python3 \"two words.py\"'", {"two words.py"}),
        ('test "$(sh check.sh)" = ok', {"check.sh"}),
        ("(./check.sh;true)", {"check.sh"}),
        ("sh ../check.sh; sh 'check.sh", {"check.sh"}),
        ("just lint", {"justfile", "Justfile"}),
    ],
)
def test_the_files_that_a_line_names_are_found_even_in_quotes(tmp_path: Path, line: str, named: set[str]) -> None:
    for name in ("check.sh", "app.js", "two words.py"):
        (tmp_path / name).write_text("x\n")

    assert set(files_named(line, str(tmp_path))) == named
