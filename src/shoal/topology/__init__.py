"""Who talks to whom, and with what weights: mixing matrices as pure functions of (peers, islands, step, me).

A topology answers for one step t one row of the mixing matrix W(t): `takes` is what I take of whom, `gives` is to whom
I send. Where W(t) is "everybody in my group has the same weight", `group` says so and a mixing may use a collective.
Implementations: one file each, listed by ``shoal list topology``; ``strategy()`` makes one. `check` refuses a topology
that would lose the mean, deadlock or never agree; `spectral` says how fast it agrees.
"""

from shoal.topology._check import check
from shoal.topology._protocol import Topology, matrix
from shoal.topology._spectral import spectral

__all__ = ["Topology", "check", "matrix", "spectral"]
