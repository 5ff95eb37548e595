"""The settings of a run: what can be set (`schema`), where it is set (`load`, `read`), what is wrong with it
(`validate`)."""

from ralph.settings.load import PRESETS, LoadedSettings, load, override, settings_files
from ralph.settings.schema import (
    AgentChoice,
    CheckCommand,
    CustomAgent,
    Protection,
    ReviewPrompt,
    Reviews,
    Scm,
    Settings,
    format_duration,
    parse_duration,
    parse_size,
)

__all__ = [
    "PRESETS",
    "AgentChoice",
    "CheckCommand",
    "CustomAgent",
    "LoadedSettings",
    "Protection",
    "ReviewPrompt",
    "Reviews",
    "Scm",
    "Settings",
    "format_duration",
    "load",
    "override",
    "parse_duration",
    "parse_size",
    "settings_files",
]
