"""ralph runs a coding agent in a loop until the work is verifiably done."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ralph.api import LoopIteration, RalphConfig, RalphLoop, RalphLoopResult
    from ralph.loop import Parts, run_loop
    from ralph.supervisor import Supervision, Supervisor

_PUBLIC = {
    "RalphConfig": "ralph.api",
    "RalphLoop": "ralph.api",
    "RalphLoopResult": "ralph.api",
    "LoopIteration": "ralph.api",
    "Supervisor": "ralph.supervisor",
    "Supervision": "ralph.supervisor",
    "run_loop": "ralph.loop",
    "Parts": "ralph.loop",
}
__all__ = [
    "LoopIteration",
    "Parts",
    "RalphConfig",
    "RalphLoop",
    "RalphLoopResult",
    "Supervision",
    "Supervisor",
    "__version__",
    "run_loop",
]


def __getattr__(name: str) -> object:
    """The public names, imported when they are asked for: `import ralph` itself costs nothing."""
    if name in _PUBLIC:
        import importlib

        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'ralph' has no attribute {name!r}")
