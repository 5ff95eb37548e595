"""Is the file there by which an agent says something? Its presence is enough; its text may say why."""

import os
import stat

from ralph.core.text import one_line

StrPath = str | os.PathLike[str]


def marked(path: StrPath) -> tuple[bool, str]:
    """Whether the marker is there, and what is wrong with it. Only a missing file is a plain no."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return False, ""
    except OSError as error:
        return False, f"stat {os.path.basename(path)}: {error.strerror}"
    if stat.S_ISDIR(mode):
        return False, f"{os.path.basename(path)} is a directory"
    return (True, "") if stat.S_ISREG(mode) else (False, f"{os.path.basename(path)} is not a regular file")


def words_of(path: StrPath) -> str:
    """What was written into a marker that is there, in one line; its name where nothing was."""
    try:
        with open(path, "rb") as file:
            return one_line(file.read(1000).decode("utf-8", "replace")) or os.path.basename(path)
    except OSError:
        return os.path.basename(path)
