"""ralph runs a coding agent in a loop until the work is verifiably done."""

__version__ = "0.1.0"

_PUBLIC = {
    "RalphConfig": "ralph.api.python_api",
    "RalphLoop": "ralph.api.python_api",
    "RalphLoopResult": "ralph.api.python_api",
    "LoopIteration": "ralph.api.python_api",
    "Backlog": "ralph.api.backlog_api",
    "BacklogResult": "ralph.api.backlog_api",
    "judge": "ralph.api.judge_api",
    "Supervisor": "ralph.api.python_api",
    "Supervision": "ralph.api.python_api",
    "MessageBus": "ralph.supervise.bus",
    "run_loop": "ralph.loop",
    "Parts": "ralph.loop",
}
__all__ = [*_PUBLIC, "__version__"]  # their types are in __init__.pyi


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `import ralph` itself costs nothing."""
    if name in _PUBLIC:
        import importlib

        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'ralph' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
