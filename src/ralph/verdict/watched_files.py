"""Files whose changes during a run are reported."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from ralph.core.text import listed
from ralph.files import read_given

# Files that tell agents and other tools which programs to run, even when the user starts them later.
TOOL_SETTINGS = (
    *(".claude/settings.json", ".claude/settings.local.json", ".mcp.json", ".codex/config.toml", ".codex/hooks.json"),
    *("opencode.json", "opencode.jsonc", ".gemini/settings.json", ".qwen/settings.json", ".amp/settings.json"),
    *(".cursor/hooks.json", ".cursor/mcp.json", ".envrc", ".vscode/tasks.json", ".devcontainer/devcontainer.json"),
)


Content = tuple[int, int]
"""The size and hash of a file."""


class WatchedFiles:
    """Files of the workspace whose changes are reported, once each."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._groups: list[tuple[str, dict[str, Content | None]]] = []

    def remember(self, paths: Iterable[str], message: str) -> None:
        """Watch these files. In the message, `{names}` stands for those that changed, and `{first}` for one of them."""
        self._groups.append((message, {path: self._read(path) for path in paths}))

    def take_changes(self) -> Iterator[str]:
        """Yield a message for each group with files that changed, and forget those."""
        for message, files in self._groups:
            if changed := [path for path, before in files.items() if self._read(path) != before]:
                yield message.format(names=listed(changed, 5), first=changed[0])
            for path in changed:
                del files[path]

    def _read(self, path: str) -> Content | None:
        try:
            content = read_given(os.path.join(self._root, path))
        except FileNotFoundError:
            return None
        except OSError:  # a folder, or unreadable
            return -1, 0
        return len(content), hash(content)
