"""How are libraries imported without what no run needs of them? Something stands in for that until it is asked for."""

from __future__ import annotations

import os
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class StandIn(ModuleType):
    """A module that is imported once it is asked for more than was promised. What is promised is a function that is
    given here, or else is looked for when it is called."""

    def __init__(self, name: str, *promised: str, **given: Callable[[], object]) -> None:
        super().__init__(name)
        vars(self).update({function: self._late(function) for function in promised}, **given)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what is asked of every module when it is imported
            raise AttributeError(name)
        return getattr(self._real(), name)

    def _late(self, function: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: getattr(self._real(), function)(*args, **kwargs)

    def _real(self) -> ModuleType:
        from importlib import import_module

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return import_module(self.__name__)


class Unknown:
    """A type of which msgspec shall know nothing: no run has values of it, and to import it takes a millisecond."""

    unknown = None


def import_leanly(*names: str) -> None:
    """Imports msgspec or pathlib in half of the time that they take by themselves."""
    parts = (
        StandIn("msgspec.inspect"),
        StandIn("msgspec.msgpack"),
        StandIn("msgspec.toml"),
        StandIn("msgspec.yaml"),
        StandIn("msgspec._json_schema", "schema", "schema_components"),
        StandIn("decimal", Decimal=Unknown),
        StandIn("uuid", UUID=Unknown, SafeUUID=Unknown),
        StandIn("platform", system=lambda: os.uname().sysname),
        StandIn("urllib.parse", "quote_from_bytes"),
        StandIn("fnmatch"),
        StandIn("ntpath"),
    )
    standing: dict[str, Any] = {part.__name__: part for part in parts}
    standing["typing_extensions"] = None  # as if it were not there: all that is wanted of it is in `typing` too
    standing = {name: part for name, part in standing.items() if name not in sys.modules}
    sys.modules.update(standing)
    import typing

    # msgspec tries what a forward reference accepts. To compile one makes Python set up its syntax trees: 1 ms, 1 MB.
    vars(typing)["compile"] = lambda *_: None
    try:
        for name in names:
            __import__(name)
    finally:
        del vars(typing)["compile"]
        for name, part in standing.items():
            if name in sys.modules and sys.modules[name] is part:
                del sys.modules[name]
