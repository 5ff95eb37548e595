import subprocess
import sys
import time
from pathlib import Path

import pytest

from ralph.errors import UserError
from ralph.supervise.task_folder import TaskFolder, task_folder
from ralph.supervise.task_list import FILE, circle_through, depend, recorded, unmet


def made(root: Path, name: str, project: str = "p") -> TaskFolder:
    folder = task_folder(root, project, name)
    folder.path.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_task_waits_until_the_others_are_done(tmp_path: Path) -> None:
    task, other, third = made(tmp_path, "task"), made(tmp_path, "other"), made(tmp_path, "third", "q")
    depend(task, ["other", "q/third"])
    assert unmet(task) == ["p/other", "q/third"]
    other.done.touch()
    assert unmet(task) == ["q/third"]
    third.done.touch()
    assert unmet(task) == []
    assert (task.path / FILE).read_text() == "p/other\nq/third\n"


def test_a_task_that_does_not_exist_yet_is_waited_for(tmp_path: Path) -> None:
    task = made(tmp_path, "task")
    depend(task, ["later"])
    assert unmet(task) == ["p/later"]


def test_a_task_without_a_record_depends_on_nothing(tmp_path: Path) -> None:
    assert recorded(made(tmp_path, "task")) == []
    assert unmet(task_folder(tmp_path, "no", "such")) == []


def test_a_new_record_takes_the_place_of_the_old(tmp_path: Path) -> None:
    task = made(tmp_path, "task")
    depend(task, ["a"])
    depend(task, ["b"])
    assert unmet(task) == ["p/b"]


def test_tasks_that_would_wait_for_each_other_are_refused(tmp_path: Path) -> None:
    a, b, c = made(tmp_path, "a"), made(tmp_path, "b"), made(tmp_path, "c")
    depend(b, ["a"])
    depend(c, ["b"])
    with pytest.raises(UserError, match="p/a -> p/c -> p/b -> p/a"):
        depend(a, ["c"])
    with pytest.raises(UserError, match="p/a -> p/a"):
        depend(a, ["a"])
    assert recorded(a) == []


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("../x", "a/b/c", "", "/x"):
        with pytest.raises(UserError, match="not a name"):
            depend(made(tmp_path, "task"), [name])


DEPENDER = """
import sys
import time
from ralph.errors import UserError
from ralph.supervise.task_list import depend
from ralph.supervise.task_folder import task_folder
try:
    depend(task_folder(sys.argv[1], "p", sys.argv[2]), [sys.argv[3]])
except UserError:
    sys.exit(2)
"""


def test_of_two_that_depend_on_each_other_at_once_one_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "a")
    made(tmp_path, "b")
    both = [subprocess.Popen([sys.executable, "-c", DEPENDER, tmp_path, *pair]) for pair in (("a", "b"), ("b", "a"))]
    assert sorted(process.wait() for process in both) == [0, 2]


@pytest.mark.parametrize(
    ("edges", "circle"),
    [
        ({"a": "b", "b": "c", "c": ""}, ""),
        ({"a": "bc", "b": "d", "c": "d", "d": ""}, ""),
        ({"a": "b", "b": "a"}, "aba"),
        ({"a": "bc", "b": "", "c": "d", "d": "a"}, "acda"),
        ({"a": "b", "b": "c", "c": "b"}, ""),
    ],
)
def test_a_circle_is_a_way_back_to_the_start(edges: dict[str, str], circle: str) -> None:
    assert "".join(circle_through("a", lambda name: edges[name])) == circle


def test_a_circle_is_found_however_long_it_is() -> None:
    def seconds(count: int) -> float:
        began = time.thread_time()
        way = circle_through("0", lambda name: [str((int(name) + 1) % count)])
        assert way == [*map(str, range(count)), "0"]
        return time.thread_time() - began

    assert min(seconds(20_000) / seconds(2_000) for _ in range(3)) < 20
