"""Between a GPU's memory and the page-locked host memory from which transports send and into which they receive.

Copies run on a stream of their own, so that they overlap with computations. Not verified on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Staging:
    """Copies for one CUDA device. Both calls block until the copies are done: call them in a thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def to_host(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Copies in page-locked memory; what is in host memory already is handed back as it is."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            copies = tuple(_to_host(tensor.detach()) for tensor in tensors)
            self._stream.synchronize()
        return copies

    def to_device(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Copies on the device. `tensors` should be in page-locked memory."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            copies = tuple(tensor.to(self._device, non_blocking=True) for tensor in tensors)
            self._stream.synchronize()
        return copies


def _to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
