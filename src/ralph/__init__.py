"""ralph runs a coding agent in a loop until the work is verifiably done."""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ralph.api.python_loop import LoopIteration, RalphConfig, RalphLoop, RalphLoopResult
    from ralph.api.supervisor import Supervision, Supervisor
    from ralph.loop import Parts, run_loop

_PUBLIC = {
    "RalphConfig": "ralph.api.python_loop",
    "RalphLoop": "ralph.api.python_loop",
    "RalphLoopResult": "ralph.api.python_loop",
    "LoopIteration": "ralph.api.python_loop",
    "Supervisor": "ralph.api.supervisor",
    "Supervision": "ralph.api.supervisor",
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
