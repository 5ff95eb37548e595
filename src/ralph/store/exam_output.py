"""What exams printed, for the person: in ralph's state folder, because the agent can read the run's own folder."""

import os
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from ralph.files import load_json, read_file, save_file
from ralph.process.descendants import MARK
from ralph.store.orders import order_folder

_FOLDER, _LIST = "exams", "exams.json"


class ExamOutput(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One exam that was run at a `stage`, such as the claim of "iteration 3". `log` holds what it printed."""

    stage: str
    command: str
    passed: bool
    ending: str
    duration: float
    log: str

    def text(self, most: int) -> str:
        """Return the last `most` bytes of what the exam printed; empty if they are gone."""
        try:
            return read_file(self.log)[-most:].decode("utf-8", "replace")
        except OSError:
            return ""


def exam_folder(run_id: str, env: Mapping[str, str] = os.environ) -> str:
    return os.path.join(order_folder(run_id, env), _FOLDER)


def add_exam_output(folder: str, output: ExamOutput) -> None:
    kept = [one for one in _read(folder) if one.log != output.log]
    save_file(os.path.join(folder, _LIST), msgspec.json.encode([*kept, output]))


def load_exam_outputs(run_id: str, env: Mapping[str, str] = os.environ) -> Sequence[ExamOutput]:
    """Return what the exams of a run printed, oldest first; nothing for a program that a run has started."""
    return [] if env.get(MARK) else _read(exam_folder(run_id, env))


def _read(folder: str) -> list[ExamOutput]:
    return load_json(os.path.join(folder, _LIST), list[ExamOutput]) or []
