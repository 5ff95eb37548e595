from tests.history.conftest import run

__all__ = ["run"]
