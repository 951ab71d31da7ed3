"""How a block moves from x(t) to x(t+1), and how its owners come to agree.

A mixing owns the update: it decides when the local optimizer steps and what is averaged with whom. It is written
against `World`, `Block` and `Gate` alone, so it runs unchanged in processes and in virtual time. Implementations: one
file each, listed by ``shoal list mixing``.
"""

from shoal.mixing._protocol import Context, Mixing, Traits

__all__ = ["Context", "Mixing", "Traits"]
