"""A workspace whose settings a test can write and load."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ralph.errors import UserError
from ralph.settings import LoadedSettings, load


class Files:
    """The three settings files of one workspace."""

    def __init__(self, root: Path) -> None:
        self.workspace = root / "workspace"
        self.project = self.workspace / ".ralph" / "settings.json"
        self.local = self.workspace / ".ralph" / "settings.local.json"
        self.user = root / "config" / "ralph" / "settings.json"
        for path in (self.project, self.user):
            path.parent.mkdir(parents=True)

    def write(self, **documents: Any) -> "Files":
        for name, document in documents.items():
            getattr(self, name).write_bytes(document if isinstance(document, bytes) else msgspec.json.encode(document))
        return self

    def load(self, config: Path | None = None, **overrides: Any) -> LoadedSettings:
        environment = {"XDG_CONFIG_HOME": str(self.user.parent.parent), "HOME": "/nowhere"}
        return load(self.workspace, overrides, env=environment, config=config)

    def refusal(self, config: Path | None = None, **overrides: Any) -> list[str]:
        """Return the lines of the error, with paths relative to the workspace."""
        with pytest.raises(UserError) as caught:
            self.load(config, **overrides)
        return caught.value.message.replace(f"{self.workspace}/", "").splitlines()


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def refusal_of(files: Files) -> Callable[[str | bytes], list[str]]:
    """Return a function that returns the errors of a project's settings.json with this text."""

    def refuse(text: str | bytes) -> list[str]:
        return files.write(project=text.encode() if isinstance(text, str) else text).refusal()

    return refuse
