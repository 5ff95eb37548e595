from ralph.api.backlog_api import Backlog as Backlog
from ralph.api.backlog_api import BacklogResult as BacklogResult
from ralph.api.judge_api import judge as judge
from ralph.api.python_api import LoopIteration as LoopIteration
from ralph.api.python_api import RalphConfig as RalphConfig
from ralph.api.python_api import RalphLoop as RalphLoop
from ralph.api.python_api import RalphLoopResult as RalphLoopResult
from ralph.api.python_api import Supervision as Supervision
from ralph.api.python_api import Supervisor as Supervisor
from ralph.loop import Parts as Parts
from ralph.loop import run_loop as run_loop
from ralph.supervise.bus import MessageBus as MessageBus

__version__: str
