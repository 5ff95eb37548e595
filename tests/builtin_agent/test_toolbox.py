"""What the four tools guarantee to the model that calls them and to the machine on which they run."""

import os
import random
import time
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture
def box(tmp_path):
    from ralph.builtin_agent.toolbox import Toolbox

    return Toolbox(tmp_path, os.environ, 4000)


@pytest.fixture
def use(box):
    def run(tool, **arguments):
        from ralph.builtin_agent.toolbox import TOOLS, Call

        return box.run(Call("1", tool, arguments, TOOLS[tool](**arguments)))

    return run


def test_a_command_that_takes_too_long_is_killed_with_its_group(use, eventually):
    nap = f"{random.randrange(10**6, 10**7)}.{os.getpid()}"  # several processes may run these tests at once
    ok, output = use("bash", command=f"echo begun; (sleep {nap}; echo late > late) & sleep {nap}", timeout=1)
    assert not ok
    assert output.startswith("begun\n[timeout: killed after 1 s.")
    eventually(lambda: not any(f"sleep\0{nap}" in line for line in command_lines()))


def command_lines():
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            yield (folder / "cmdline").read_text() if folder.name.isdigit() else ""


def test_ralph_does_not_wait_for_background_processes_of_a_command(use):
    began = time.monotonic()
    ok, output = use("bash", command="sleep 3407 & echo $!")
    assert ok
    assert time.monotonic() - began < 30
    os.kill(int(output), 9)


def test_long_output_is_cut_in_the_middle(use):
    ok, output = use("bash", command="seq 1 1000000")
    assert ok
    assert len(output) < 4200
    assert output.startswith("1\n2\n")
    assert output.endswith("\n1000000")
    assert "left out" in output


def test_a_command_with_endless_output_is_killed(use):
    ok, output = use("bash", command="yes", timeout=60)
    assert not ok
    assert "printed too much" in output


def test_binary_output_of_a_command_is_replaced(use):
    ok, output = use("bash", command=r"printf 'a\377\000b\033[31m'")
    assert ok
    assert output.startswith("a\ufffd\0b")


def test_a_command_gets_no_stdin_and_runs_in_the_workspace(use, tmp_path):
    assert use("bash", command="cat; pwd") == (True, str(tmp_path))


def test_a_binary_file_is_not_read(use, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\x7fELF\0\0")
    assert use("read", path="a.bin") == (False, "a.bin is a binary file of 6 bytes")


def test_the_error_about_a_missing_file_lists_the_files_next_to_it(use, tmp_path):
    (tmp_path / "there.txt").touch()
    ok, output = use("read", path="their.txt")
    assert (ok, output.endswith("that folder has: there.txt")) == (False, True)


def test_a_folder_is_listed(use, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").touch()
    assert use("read", path=".") == (True, "a\nsub/")


def test_a_huge_file_must_be_read_with_the_shell(use, tmp_path):
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(20_000_000)
    assert "look into it with bash" in use("read", path="huge")[1]


@pytest.mark.parametrize("tool", ["read", "write", "edit"])
@pytest.mark.parametrize("path", ["/etc/hostname", "../outside", "link", "~/.profile", "deep/../../outside"])
def test_a_path_outside_the_workspace_is_refused(use, tmp_path, tool, path):
    (tmp_path / "link").symlink_to("/etc/hostname")
    more = {"read": {}, "write": {"content": "x"}, "edit": {"old": "a", "new": "b"}}[tool]
    ok, output = use(tool, path=path, **more)
    assert (ok, "is outside the workspace" in output) == (False, True)


@pytest.mark.parametrize("path", ["a\0b", "x" * 300, ""])
def test_an_impossible_path_is_an_error_for_the_model(use, path):
    assert use("write", path=path, content="x")[0] is False


def test_a_pipe_is_neither_read_nor_written(use, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in use("read", path="pipe")[1]
    assert "not a regular file" in use("write", path="pipe", content="x")[1]


def test_an_edit_needs_text_that_occurs_exactly_once(use, tmp_path):
    (tmp_path / "a").write_text("one\ntwo\none\n")
    assert "occurs 2 times" in use("edit", path="a", old="one", new="1")[1]
    assert "is not in the file" in use("edit", path="a", old="twoo", new="1")[1]
    assert "is empty" in use("edit", path="a", old="", new="1")[1]
    assert "nothing would change" in use("edit", path="a", old="two", new="two")[1]
    assert (tmp_path / "a").read_text() == "one\ntwo\none\n"


def test_reading_a_file_returns_valid_unicode(use, tmp_path):
    (tmp_path / "a").write_bytes(b"\xff one")
    use("read", path="a")[1].encode()


def test_an_edit_keeps_every_other_byte(use, tmp_path):
    (tmp_path / "a").write_bytes(b"\xff\r\ntwo\r\n\xe9")
    assert use("edit", path="a", old="two", new="zwei")[0]
    assert (tmp_path / "a").read_bytes() == b"\xff\r\nzwei\r\n\xe9"


def test_a_cut_text_says_how_much_is_missing():
    from ralph.builtin_agent.toolbox import cut

    assert cut("short", 10) == "short"
    assert cut("0123456789" * 3, 9) == "012\n[… 21 characters left out …]\n456789"
