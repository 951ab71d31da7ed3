"""How bytes really travel between named peers: frames (a small header and the raw bytes of tensors) over a connection.

A transport moves frames and reports what arrives and who is lost; it knows nothing of training. Implementations: one
file each, listed by ``shoal list transport``. Tensors are in host memory here; `shoal.transport.staging` brings those
of a GPU to and fro.
"""

from shoal.transport._protocol import Hello, Meeting, Transport, refusal
from shoal.transport.frame import LIMITS, Frame, Limits, Malformed

__all__ = ["LIMITS", "Frame", "Hello", "Limits", "Malformed", "Meeting", "Transport", "refusal"]
