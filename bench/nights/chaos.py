"""Nights with a trouble in the middle: kill -9, a full disk, a clock that jumps, a user who commits and switches
branches."""

import os
import random
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bench.nights import night, task
from bench.nights.contenders import Contender, Place
from bench.nights.night import Ending, Played, Yard
from bench.nights.population import PROFILES, Script, draw_script

QUIET = ("fragile", "hopeless", "overfitter", "stop-talker")  # agents that cause trouble themselves or never finish
DISK = "4m"
FAKETIME = "/usr/lib/*/faketime/libfaketime.so.1"
# Python 3.11 sleeps until a moment of the monotonic clock; libfaketime 0.9.10 refuses that, as no kernel does.
SLEEP = "import select, time\ntime.sleep = lambda seconds: select.select((), (), (), seconds) and None\n"


class Trouble(Struct, frozen=True):
    """`missing` says what the trouble needs and how to install it, if it is not available."""

    name: str
    why: str
    play: Callable[["Scene"], tuple[float, int | None, float]]
    missing: Callable[[], str] = lambda: ""
    forgets: bool = False  # the cost of an interrupted turn may be unknown


class Scene(Struct, frozen=True):
    """One night with a trouble."""

    place: Place
    contender: Contender
    env: dict[str, str]
    chance: random.Random

    def user(self, turn: int, script: str) -> None:
        """Do what happens outside while the agent is in this turn."""
        (self.place.ledger / f"user-{turn}").write_text(script)

    def start_command(self) -> Sequence[str]:
        return self.contender.argv(self.place)

    def resume_command(self) -> Sequence[str]:
        """Return the command that the user types after the loop was stopped."""
        return self.contender.resume(self.place) if self.contender.resume else self.start_command()

    def run(self, argv: Sequence[str]) -> tuple[float, int | None, float]:
        return night.run(argv, self.place, self.env)


def kill_twice(scene: Scene) -> tuple[float, int | None, float]:
    """Kill everything at once, or only the loop, whose processes must then end as well. The moment is drawn: in a turn,
    in a check, or between them."""
    argv = scene.start_command()
    for turn in sorted(scene.chance.sample(range(1, 6), 2)):
        after, alone = scene.chance.uniform(0.0, 0.4), scene.chance.random() < 0.5
        killer = threading.Thread(target=_kill, args=(scene.place, turn, after, alone))
        killer.start()
        ended = scene.run(argv)
        (scene.place.ledger / "over").touch()
        killer.join()
        (scene.place.ledger / "over").unlink()
        if ended[1] != -signal.SIGKILL:
            return ended
        if left := night.leftovers():
            (scene.place.ledger / "left").write_text(", ".join(left))
            night.end_all()
        argv = scene.resume_command()
    return scene.run(argv)


def _kill(place: Place, turn: int, after: float, alone: bool) -> None:
    count = place.ledger / "count"
    while not count.exists() or count.stat().st_size < turn:
        if (place.ledger / "over").exists():
            return
        time.sleep(0.002)
    time.sleep(after)
    below = list(night.descendants())
    launcher = next((process.pid for process in below if process.parent == os.getpid()), 0)
    night.kill(process for process in below if not alone or process.parent == launcher)


def fill_disk(scene: Scene) -> tuple[float, int | None, float]:
    """The workspace is a small disk that is full for two turns. A loop that stops is started again."""
    work, kept = scene.place.work, scene.place.folder / "kept"
    shutil.copytree(work, kept, symlinks=True)
    turn = scene.chance.randint(1, 3)
    scene.user(turn, "dd if=/dev/zero of=.filler bs=64k; sync\n")
    scene.user(turn + 2, "rm -f .filler\n")
    inside = (
        "mount -t tmpfs -o size={size} tmpfs {work} && cp -a {kept}/. {work} && cd {work} && {{ {loop} }}; code=$?;"
    )
    loop = f"{shlex.join(scene.start_command())} || {{ rm -f .filler; {shlex.join(scene.resume_command())}; }}"
    text = (
        inside.format(size=DISK, work=work, kept=kept, loop=loop) + f" rm -rf {kept}; cp -a {work} {kept}; exit $code"
    )
    ended = scene.run(("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", text))
    shutil.rmtree(work)
    kept.rename(work)
    return ended


def jump_clock(scene: Scene) -> tuple[float, int | None, float]:
    """The clock jumps by hours, as after a suspend. Clocks that measure durations do not jump."""
    moved = scene.place.folder / "clock"
    moved.write_text("+0\n")
    for turn in scene.chance.sample(range(1, 6), 2):
        scene.user(turn, f"echo '{scene.chance.choice(('+7h', '-5h', '+3d', '-40s'))}' > ../{moved.name}\n")
    patched = scene.place.folder / "patched"
    patched.mkdir()
    (patched / "sitecustomize.py").write_text(SLEEP)
    faked = {
        "PYTHONPATH": str(patched),
        "LD_PRELOAD": glob(FAKETIME)[0],
        "FAKETIME_TIMESTAMP_FILE": str(moved),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    return night.run(scene.start_command(), scene.place, {**scene.env, **faked})


USER_AT_WORK = (
    "git add draft.md && git commit -qm 'The draft' -- draft.md\n",
    "git switch -qc topic\n",
    "echo 'and more' >> notes.md && git commit -qm 'Notes' -- notes.md\n",
    "git switch -q other\n",
)


def act_as_user(scene: Scene) -> tuple[float, int | None, float]:
    """While the agent works, the user commits, makes a branch, commits again and switches to an older branch. The same
    commands run in a copy of the repository, which the result must match."""
    for turn, act in zip(sorted(scene.chance.sample(range(1, 6), len(USER_AT_WORK))), USER_AT_WORK, strict=True):
        scene.user(turn, act)
    return scene.run(scene.start_command())


ALL = (
    Trouble(
        "kill -9",
        "everything, or the loop alone, is killed twice at random moments, and it is resumed",
        kill_twice,
        forgets=True,
    ),
    Trouble(
        "full disk",
        "the disk of the workspace is full for two turns",
        fill_disk,
        lambda: "" if _can_mount() else "needs user namespaces (or root): unshare --user --map-root-user --mount true",
        forgets=True,
    ),
    Trouble(
        "clock jump",
        "the clock jumps by seconds, hours or days in the middle of a turn",
        jump_clock,
        lambda: "" if glob(FAKETIME) else "needs libfaketime: apt-get install libfaketime",
    ),
    Trouble("busy user", "the user commits, makes a branch and goes to another one while the agent works", act_as_user),
)


TROUBLES = {trouble.name: trouble for trouble in ALL}


def _can_mount() -> bool:
    argv = ("unshare", "--user", "--map-root-user", "--mount", "true")
    return bool(shutil.which("unshare")) and subprocess.run(argv, capture_output=True).returncode == 0


def script_for(seed: int, number: int) -> Script:
    """Return night `number` of those with a trouble. Its agent causes no trouble of the same kind."""
    able = [at for at, profile in enumerate(PROFILES) if profile.name not in QUIET]
    return draw_script(seed, (1000 + number // len(able)) * len(PROFILES) + able[number % len(able)])


def play(yard: Yard, script: Script, contender: Contender, trouble: Trouble, keep_story: bool = False) -> Played:
    place = yard.place(script, contender)
    env = {
        **yard.env(place.home, place.bin),
        **{f"GIT_{who}_DATE": "2026-01-02T03:04:05Z" for who in ("AUTHOR", "COMMITTER")},
    }
    scene = Scene(place, contender, env, random.Random(f"{trouble.name} {script.seed}/{script.number}"))
    copied = place.folder / "copy"
    shutil.copytree(place.work, copied, symlinks=True)
    night.become_subreaper()
    try:
        wall, code, memory = trouble.play(scene)
        left = tuple(night.leftovers()) + _left_by_kill(place)
        _catch_up(place, copied, env)
        touched = tuple(task.belongings(copied, env).differing(task.belongings(place.work, env)))
        ending = Ending(wall=wall, code=code, memory=memory, left=left, touched=touched)
        heard = replace(contender, reads=contender.reads and not trouble.forgets)
        return night.judge(place, script, heard, ending, keep_story)
    finally:
        night.end_all()
        shutil.rmtree(place.folder, ignore_errors=True)


def _left_by_kill(place: Place) -> tuple[str, ...]:
    left = place.ledger / "left"
    return (left.read_text(),) if left.exists() else ()


def _catch_up(place: Place, copied: Path, env: dict[str, str]) -> None:
    """Repeat in the copy what the user did in the workspace so far."""
    done = sorted(place.ledger.glob("user-*.log"), key=lambda log: int(log.stem.rpartition("-")[2]))
    for log in done:
        act = log.with_suffix("").read_text()
        if "git" in act:
            subprocess.run(["sh", "-c", act], cwd=copied, env=env, capture_output=True)
