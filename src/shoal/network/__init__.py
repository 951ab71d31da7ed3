"""How long a transfer takes: pure state machines on the caller's clock, without I/O.

`FluidNetwork` shares links and the hosts' up- and downlinks max-min fairly among the transfers that cross them.
"""

from shoal.network.fluid import FluidNetwork, Watcher
from shoal.network.maxmin import fill

__all__ = ["FluidNetwork", "Watcher", "fill"]
