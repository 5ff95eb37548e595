"""The settings of a run: what can be set (`schema`), where it is set (`load`, `read`), what is wrong with it
(`validate`)."""

from ralph.settings.load import LoadedSettings as LoadedSettings
from ralph.settings.load import convert_stored as convert_stored
from ralph.settings.load import load as load
from ralph.settings.load import override as override
from ralph.settings.load import settings_files as settings_files
from ralph.settings.presets import PRESET_OF as PRESET_OF
from ralph.settings.presets import PRESETS as PRESETS
from ralph.settings.schema import AgentChoice as AgentChoice
from ralph.settings.schema import CheckCommand as CheckCommand
from ralph.settings.schema import CustomAgent as CustomAgent
from ralph.settings.schema import Protection as Protection
from ralph.settings.schema import ReviewPrompt as ReviewPrompt
from ralph.settings.schema import Reviews as Reviews
from ralph.settings.schema import Scm as Scm
from ralph.settings.schema import Settings as Settings
from ralph.settings.schema import format_duration as format_duration
from ralph.settings.schema import parse_duration as parse_duration
from ralph.settings.schema import parse_size as parse_size
