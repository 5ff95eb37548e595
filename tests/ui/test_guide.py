import re
from pathlib import Path

from ralph.ui.typed import FORMS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "ui.md"


def test_the_guide_knows_every_command_and_no_other() -> None:
    named = set(re.findall(r"`/([a-z-]+)", GUIDE.read_text()))
    assert named == set(FORMS)


def test_the_picture_needs_nothing_from_elsewhere() -> None:
    picture = GUIDE.with_suffix(".svg").read_text()
    assert "url(http" not in picture
    assert re.findall(r"https?://[^\s\"<]+", picture) == ["http://www.w3.org/2000/svg"]
