"""Who talks to whom, and with what weights: mixing matrices as pure functions of (owners, step, me).

A topology answers for one step t one row of the mixing matrix W(t): `takes` is what I take of whom, `gives` is to whom
I send. Where W(t) is "everybody in my group has the same weight", `group` says so and a mixing may use a collective.
Implementations: one file each, listed by ``shoal list topology``.
"""

from shoal.topology._protocol import Topology, matrix

__all__ = ["Topology", "matrix"]
