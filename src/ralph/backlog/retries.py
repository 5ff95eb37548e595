"""How often each step of a merge is retried before a person has to look. The one place for these numbers."""

from ralph.git.locks import RetryPolicy

# Someone else moved the target while a candidate was checked: make and check a new candidate.
MERGE_RACE = RetryPolicy(attempts=5)
# A lock on the remote: someone is pushing there, or was killed while pushing.
LOCKED_REMOTE = RetryPolicy(attempts=5, delay=0.2, factor=2.0, max_delay=2.0)
# Someone else moved a task's branch on the remote before we could claim it.
CLAIM_BRANCH = RetryPolicy(attempts=5)
# A killed git has left a lock, so branches of merged tasks cannot be deleted.
LOCKED_BRANCHES = RetryPolicy(attempts=3)
# Seconds for a remote that is unreachable.
REMOTE_TIMEOUT = 60.0
# A check that fails on one task's candidate, or on the target itself, runs once more: it may be flaky.
CHECK_RUNS = 2
# A task's loop, or the gate, may exit without a result this often in a row.
MAX_CHILD_DEATHS = 3
# Seconds between two attempts to push a finished task to a remote that is unreachable.
PUSH_INTERVAL = 0.2
