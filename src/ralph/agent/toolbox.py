"""What can the agent do? Run a command, read a file, write one, edit one: each gives text back, or an error as text."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher
from pathlib import Path
from shutil import which
from typing import Any

from ralph.agent.calls import Call, schema

TIMEOUT, LONGEST = 120, 1800  # seconds for a command, unless it says otherwise, and at the most
LARGEST_FILE = 10_000_000

SCHEMAS: dict[str, dict[str, Any]] = {
    "bash": schema(
        ["command"],
        command=("string", "the command"),
        timeout=("integer", f"seconds until it is ended; {TIMEOUT} unless given"),
    ),
    "read": schema(
        ["path"],
        path=("string", "the file, or a folder to list"),
        offset=("integer", "the first line, from 1"),
        limit=("integer", "how many lines"),
    ),
    "write": schema(["path", "content"], path=("string", "the file"), content=("string", "all of its new text")),
    "edit": schema(
        ["path", "old", "new"],
        path=("string", "the file"),
        old=("string", "the text to replace: exactly as it stands there, and only once in the file"),
        new=("string", "the text to put in its place"),
    ),
}
ABOUT = {
    "bash": "Run a shell command in the workspace. Gives its output and exit code.",
    "read": "Read a text file, or list a folder.",
    "write": "Create a file, or replace all of its text.",
    "edit": "Replace one piece of text in a file.",
}


class ToolError(Exception):
    """What the model did wrong, in words that help it."""


class Toolbox:
    """The tools in one workspace. `most`: how many characters of output a reply's calls may bring home together."""

    def __init__(self, root: Path, env: Mapping[str, str], most: int) -> None:
        self.root, self._env, self.most = root.resolve(), dict(env), most
        self._shell = which("bash") or "/bin/sh"
        self._tools: dict[str, Callable[..., str]] = {
            "bash": self._bash,
            "read": self._read,
            "write": self._write,
            "edit": self._edit,
        }

    def run(self, call: Call, share: int = 1) -> tuple[bool, str]:
        """Whether it worked, and what it gave: cut in the middle where it is longer than its share."""
        try:
            if call.trouble:
                raise ToolError(call.trouble)
            given = self._tools[call.tool](**call.arguments)
        except ToolError as error:
            return False, cut(str(error), self.most // share)
        except OSError as error:
            return False, f"{error.strerror or error}: {call.arguments.get('path', '')}"
        except ValueError as error:
            return False, str(error)  # a path with a NUL in it
        return True, cut(given, self.most // share)

    def _bash(self, command: str, timeout: int = TIMEOUT) -> str:
        seconds = min(max(timeout, 1), LONGEST)
        # Its output goes to a file, so that nobody waits for what it leaves running in the background.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [self._shell, "-c", command],
                cwd=self.root,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            ended = _await(process, seconds, output.fileno())
            said = _ends_of(output, self.most)
        if ended:
            raise ToolError(f"{said}\n[{ended}]".lstrip())
        if process.returncode:
            raise ToolError(f"{said}\n[exit code {process.returncode}]".lstrip())
        return said or "[no output]"

    def _read(self, path: str, offset: int = 1, limit: int = 0) -> str:
        file = self._inside(path)
        if file.is_dir():
            names = sorted(f"{item.name}/" if item.is_dir() else item.name for item in file.iterdir())
            return "\n".join(names) or "[an empty folder]"
        text = _text(file)
        lines = text.split("\n")
        begin = max(offset, 1) - 1
        if begin and begin >= len(lines):
            raise ToolError(f"{path} has only {len(lines)} lines")
        chosen = lines[begin : begin + limit] if limit > 0 else lines[begin:]
        return "\n".join(chosen) or "[an empty file]"

    def _write(self, path: str, content: str) -> str:
        file = self._inside(path)
        if file.exists() and not file.is_file():
            raise ToolError(f"not a regular file: {path}")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode("utf-8", "surrogatepass"))
        return f"wrote {len(content):,} characters to {path}"

    def _edit(self, path: str, old: str, new: str) -> str:
        file = self._inside(path)
        text = _text(file)
        begin, end = place_of(old, text)
        found = text[begin:end]
        changed = text[:begin] + (new if found == old else _indented_as(found, old, new)) + text[end:]
        if changed == text:
            raise ToolError("nothing would change: old and new are the same")
        file.write_bytes(changed.encode("utf-8", "surrogateescape"))
        return f"edited {path}, line {text.count(chr(10), 0, begin) + 1}"

    def _inside(self, path: str) -> Path:
        """The file that is meant. Links are followed first: what lies outside the workspace is none of these tools'."""
        found = (self.root / os.path.expanduser(path)).resolve()
        if found != self.root and self.root not in found.parents:
            raise ToolError(f"{path} lies outside the workspace {self.root}")
        return found


def _await(process: "subprocess.Popen[bytes]", seconds: float, output: int) -> str:
    """Waits for a command, and ends it with all its group when it takes too long or fills the disk. Why, if so."""
    deadline = time.monotonic() + seconds
    try:
        while True:
            try:
                process.wait(min(0.1, max(deadline - time.monotonic(), 0.01)))
                return ""
            except subprocess.TimeoutExpired:
                if os.fstat(output).st_size > 20 * LARGEST_FILE:
                    return "ended: its output grew without end"
                if time.monotonic() >= deadline:
                    return f"timeout: ended after {seconds} s. Give a longer timeout, or run it in the background"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ends_of(file: Any, most: int) -> str:
    """The beginning and the end of what was written, as text."""
    size = os.fstat(file.fileno()).st_size
    keep = 4 * most  # bytes, of which a character has four at the most
    data = os.pread(file.fileno(), keep, 0)
    if size > keep:
        data += b"\n[...]\n" + os.pread(file.fileno(), keep, max(size - keep, keep))
    return data.decode("utf-8", "replace").strip("\n")


def _text(file: Path) -> str:
    """The text of a regular file. What else there is would hang, or be noise."""
    if not file.exists():
        beside = sorted(item.name for item in file.parent.iterdir())[:20] if file.parent.is_dir() else []
        raise ToolError(f"no such file: {file}" + (f"; beside it: {', '.join(beside)}" if beside else ""))
    if not file.is_file():
        raise ToolError(f"not a regular file: {file}")
    size = file.stat().st_size
    if size > LARGEST_FILE:
        raise ToolError(f"{file.name} has {size:,} bytes: look into it with bash (grep, head, tail)")
    data = file.read_bytes()
    if b"\0" in data[:8192]:
        raise ToolError(f"{file.name} is a binary file of {size:,} bytes")
    return data.decode("utf-8", "surrogateescape")


def place_of(old: str, text: str) -> tuple[int, int]:
    """Where `old` stands in `text`: exactly once, or else once but for white space."""
    if not old:
        raise ToolError("old is empty: name the text to replace, or use write for a new file")
    count = text.count(old)
    if count == 1:
        begin = text.index(old)
        return begin, begin + len(old)
    if count > 1:
        raise ToolError(f"old stands {count} times in the file: take in more of the lines around it")
    found = _loose(old, text)
    if len(found) == 1:
        return found[0]
    if found:
        raise ToolError(f"old stands nowhere exactly, and {len(found)} times but for white space: take in more lines")
    raise ToolError(f"old is not in the file. The nearest lines are:\n{_nearest(old, text)}")


def _loose(old: str, text: str) -> list[tuple[int, int]]:
    """The runs of whole lines that differ from `old` in white space only."""
    wanted = [" ".join(line.split()) for line in old.strip("\n").split("\n")]
    lines = text.split("\n")
    squeezed = [" ".join(line.split()) for line in lines]
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    size = len(wanted)
    places = [n for n in range(len(lines) - size + 1) if squeezed[n : n + size] == wanted] if any(wanted) else []
    return [(starts[n], starts[n + size] - 1) for n in places]


def _indented_as(found: str, old: str, new: str) -> str:
    """The lines of `new` with the indentation of what was found, where that is not how the model had written `old`."""
    there, asked = (text[: len(text) - len(text.lstrip(" \t"))] for text in (found, old.strip("\n")))
    lines = new.strip("\n").split("\n")
    return "\n".join(there + line[len(asked) :] if line.strip() and line.startswith(asked) else line for line in lines)


def _nearest(old: str, text: str) -> str:
    """The lines of the file that look most like `old`."""
    lines, wanted = text.split("\n")[:5000], old.strip("\n").split("\n")
    size = len(wanted)
    first = wanted[0].strip()

    def likeness(n: int) -> float:
        return SequenceMatcher(None, lines[n].strip(), first, autojunk=False).ratio()

    best = max(range(len(lines)), key=likeness)
    return "\n".join(lines[max(best - 1, 0) : best + size + 1])


def cut(text: str, most: int) -> str:
    """Text of at most about `most` characters: its head, its tail, and how much was left out between them."""
    if len(text) <= most:
        return text
    head, tail = most // 3, most - most // 3
    return f"{text[:head]}\n[… {len(text) - most:,} characters left out …]\n{text[-tail:]}"


def told(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they are told to whoever watches: long ones cut."""
    return {name: cut(value, 2000) if isinstance(value, str) else value for name, value in arguments.items()}
