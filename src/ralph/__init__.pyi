from ralph.api.python_loop import LoopIteration as LoopIteration
from ralph.api.python_loop import RalphConfig as RalphConfig
from ralph.api.python_loop import RalphLoop as RalphLoop
from ralph.api.python_loop import RalphLoopResult as RalphLoopResult
from ralph.api.supervisor import Supervision as Supervision
from ralph.api.supervisor import Supervisor as Supervisor
from ralph.loop import Parts as Parts
from ralph.loop import run_loop as run_loop
from ralph.supervise.bus import MessageBus as MessageBus

__version__: str
