"""What a peer owns: blocks (flat pieces of parameters with their gradients and optimizer), the gate, and checkpoints."""

from shoal.state.block import Block
from shoal.state.gate import Gate

__all__ = ["Block", "Gate"]
