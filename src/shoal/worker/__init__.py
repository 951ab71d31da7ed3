"""The worker: one peer's whole training run as ordinary ``async def`` code on its `World`.

The caller chooses the world; `work` is the same in processes and in virtual time.
"""

from shoal.worker.folder import RunFolder
from shoal.worker.worker import Outcome, Report, work

__all__ = ["Outcome", "Report", "RunFolder", "work"]
