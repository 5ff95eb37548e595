"""Files that the user names and ralph reads outside the sandbox: the goal, the tasks, the notes.

A sandboxed agent can replace such a file with a link. ralph would follow it to a file that the sandbox hides, and put
the content into the next prompt.
"""

import os
from collections.abc import Sequence

from ralph.errors import UserError
from ralph.sandbox.mounts import is_inside


def refuse_hidden_target(path: str, *, writable: Sequence[str], hidden: Sequence[str] = ()) -> None:
    """Raise if a file in a `writable` folder is a link that leads out of these folders, or to a `hidden` path."""
    folders = [os.path.realpath(folder) for folder in writable]
    named, target = os.path.abspath(path), os.path.realpath(path)
    if not is_inside(named, (*writable, *folders)):
        return
    if not is_inside(target, folders) or is_inside(target, [os.path.realpath(folder) for folder in hidden]):
        raise UserError(
            f"{path} is a link to a file that the sandbox hides: {target}",
            "replace the link with a file, or name the file it leads to",
        )
