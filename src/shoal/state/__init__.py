"""What a peer owns: blocks (flat pieces of parameters, their gradients and optimizer), the gate, and checkpoints."""

from shoal.state.block import Block, make_blocks
from shoal.state.gate import Gate
from shoal.state.layout import plan_blocks
from shoal.state.watch import Watch

__all__ = ["Block", "Gate", "Watch", "make_blocks", "plan_blocks"]
