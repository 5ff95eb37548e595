"""Take the pictures of reports and of the web UI from real runs: `python docs/pictures.py FOLDER`.

The runs are those of `ralph demo` and a small backlog with a scripted agent, in a temporary home. It needs Chromium.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

RUNNING_PAUSE = "1.5"  # seconds between two events of the run that is filmed while it runs
LONGEST_RUN = 120_000  # milliseconds until the filmed run must have reached its last iteration
PARKED = 1  # the exit code of a backlog with a parked task
HOST = "devbox"  # instead of this machine's name
TASKS = """\
# The shop

- [ ] T1 Cart: things can be put into it
- [ ] T2 Prices: shown with the currency
- [ ] T3 Till: one can pay
  after: T1, T2
- [ ] T4 Import: the old catalogue
- [ ] T5 Stock: counted at each sale
  after: T4
- [ ] T6 Search: by name
"""
# It does every task but T4, which it never claims to have done.
AGENT = """\
task=$(grep -o 'T[1-6] [A-Z][a-z]*' | head -n 1)
sleep 1
echo "# ${task#* }" >> "${task%% *}.md"
echo "I worked on $task."
[ "${task%% *}" = T4 ] || printf '\\nCOMPLETE\\n'
"""
RENAME = """([programs, old, name]) => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (texts.nextNode()) {
        const text = texts.currentNode
        text.data = text.data === old ? name : text.data.replaceAll(programs, '')
    }
}"""


def main(folder: Path, chromium: str) -> None:
    with tempfile.TemporaryDirectory(prefix="ralph-pictures-") as name:
        home = Path(name)
        env = _environment(home)
        _run(["ralph", "demo"], home, env)
        report = next(home.glob("ralph-demo-*/.ralph/runs/*/report.html"))
        _run(["ralph", "demo", "--tune"], home, env)
        morning = _work(home / "shop", env)
        slow = {**env, "RALPH_DEMO_PAUSE": RUNNING_PAUSE}
        serve = ["ralph", "serve", "--port", "0"]
        with _start(["ralph", "demo"], slow), _start(serve, env) as web_ui, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            _film_reports(browser, report, morning, folder)
            _film_web_ui(browser, web_ui.stdout.readline().strip(), folder)  # it prints its link
            browser.close()


def _environment(home: Path) -> dict[str, str]:
    """Return the environment of every command: its runs, its settings and its temporary files are in `home`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RALPH", "XDG", "GIT"))}
    people = {f"GIT_{who}_{what}": "you@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    places = {"HOME": str(home), "TMPDIR": str(home), "XDG_STATE_HOME": str(home / ".local/state")}
    return {**kept, **people, **places, "RALPH_DEMO_PAUSE": "0.25"}


def _run(argv: list[str], folder: Path, env: dict[str, str], expected: int = 0) -> None:
    done = subprocess.run(argv, cwd=folder, env=env, check=False, capture_output=True, text=True)
    if done.returncode != expected:
        sys.exit(f"{' '.join(argv)} exited with {done.returncode}: {done.stderr}")


@contextmanager
def _start(argv: list[str], env: dict[str, str]) -> Iterator[Any]:
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def _work(shop: Path, env: dict[str, str]) -> Path:
    """Run the backlog; return its report."""
    shop.mkdir()
    (shop / "TASKS.md").write_text(TASKS)
    agent = shop.parent / "agent.sh"
    agent.write_text(AGENT)
    for git in ("init -q -b main", "add -A", "commit -q -m Tasks"):
        _run(["git", *git.split()], shop, env)
    work = ["ralph", "work", "TASKS.md", "--agent", f"sh {agent}", "--check", "test -s TASKS.md", "-m", "2"]
    _run(work, shop, env, expected=PARKED)
    report = shop.parent / "morning.html"
    _run(["ralph", "report", "-o", str(report)], shop, env)
    return report


def _film_reports(browser: Any, run: Path, work: Path, folder: Path) -> None:
    _film(_open_report(browser, run, "light"), folder / "report-light.png")
    dark = _open_report(browser, run, "dark")
    refused = dark.locator("details", has=dark.locator("summary", has_text="Iteration 1")).first
    refused.evaluate("it => { it.open = true; it.scrollIntoView() }")
    _film(dark, folder / "report-dark.png")
    _film(_open_report(browser, work, "light"), folder / "work-report.png")


def _open_report(browser: Any, report: Path, scheme: str) -> Any:
    page = browser.new_page(viewport={"width": 1040, "height": 1240}, device_scale_factor=0.7, color_scheme=scheme)
    page.goto(report.as_uri())
    return page


def _film_web_ui(browser: Any, link: str, folder: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 500}, reduced_motion="reduce")
    page.goto(link)
    page.get_by_role("button", name="Open").click()
    page.get_by_text("iteration 3 of 5").nth(1).wait_for(timeout=LONGEST_RUN)  # the other one is done
    _film(page, folder / "web-board.png")
    running, work = _address(page, "A coupon is a percentage"), _address(page, "tasks.md")
    page.set_viewport_size({"width": 1280, "height": 860})
    page.goto(work)
    _film(page, folder / "web-work.png")
    page.goto(running)
    page.get_by_text("So that is the bug").wait_for()
    page.evaluate("scrollTo(0, 0)")  # it follows the stream
    _film(page, folder / "web-run.png")
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    page.evaluate("scrollTo(0, 0)")
    _film(page, folder / "web-phone.png")


def _address(page: Any, goal: str) -> str:
    """Return the address of the first run on the board with this goal."""
    return str(page.locator("a.cover", has_text=goal).first.evaluate("link => link.href"))


def _film(page: Any, picture: Path) -> None:
    """Take the picture, without the name and the paths of this machine."""
    programs = os.path.dirname(shutil.which("ralph") or "")
    page.evaluate(RENAME, [f"{programs}/", os.uname().nodename, HOST])
    page.screenshot(path=picture)


if __name__ == "__main__":
    installed = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    main(Path(sys.argv[1]), installed) if installed else print("chromium not found: the pictures stay as they are")
