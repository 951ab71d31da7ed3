"""Process groups of our own, of Gloo and NCCL; never torch's global default, so nothing of them outlives a run."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore, PrefixStore, ProcessGroupGloo, Store, TCPStore

from shoal.errors import ShoalError

__all__ = [
    "Group",
    "HashStore",
    "PrefixStore",
    "Store",
    "TCPStore",
    "Work",
    "abandon",
    "brief",
    "gloo_group",
    "keep",
    "nccl_group",
]

_NEVER_SENT = 0x5A0A  # a tag of Gloo's messages


class Work(Protocol):
    """What an operation hands out; only a thread can wait for it."""

    def wait(self, timeout: timedelta = ...) -> bool: ...


class Group(Protocol):
    """What is used of a process group, of any engine."""

    def rank(self) -> int: ...
    def size(self) -> int: ...
    def send(self, tensors: list[Tensor], rank: int, tag: int) -> Work: ...
    def recv(self, tensors: list[Tensor], rank: int, tag: int) -> Work: ...
    def allreduce(self, tensors: list[Tensor]) -> Work: ...
    def abort(self) -> None: ...


def gloo_group(store: Store, *, rank: int, size: int, host: str, deadline: float) -> Group:
    """Connect `size` processes with one another; blocks until all have called this with the same store.

    Args:
        host: address to listen on and to offer to the others. Left to itself Gloo takes what the machine's own name
            resolves to, which on many machines is a loopback address.
        deadline: seconds to wait for the others, and the default time-out of the group's operations.

    Raises:
        ShoalError: Gloo could not connect.
    """
    options = cast(Any, ProcessGroupGloo)._Options()
    options._timeout = timedelta(seconds=deadline)
    try:
        options._devices = [cast(Any, ProcessGroupGloo).create_device(hostname=host)]
        return cast(Group, ProcessGroupGloo(store, rank, size, options))
    except RuntimeError as error:
        raise ShoalError(f"Gloo could not connect {size} peers through {host}: {brief(error)}") from None


def nccl_group(store: Store, *, rank: int, size: int, deadline: float) -> Group:
    """The same for the calling thread's current CUDA device. Not verified on a GPU yet."""
    nccl = cast(Any, torch.distributed).ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timedelta(seconds=deadline)
    return nccl(store, rank, size, options)


def abandon(groups: Iterable[Group]) -> None:
    """End everything that waits for anybody in `groups`, which are of no use any more.

    NCCL can be told so. In Gloo one operation that times out fails the others of its group, but for a send that a peer
    has begun to take and then stopped taking: that one ends with the group's own time-out.
    """
    for group in groups:
        with suppress(RuntimeError):
            if isinstance(group, ProcessGroupGloo):
                neighbour = (group.rank() + 1) % group.size()
                group.recv([torch.empty(1)], neighbour, _NEVER_SENT).wait(timedelta(milliseconds=1))
            else:
                group.abort()


def keep(groups: Iterable[Group]) -> None:
    """Never take `groups` apart, which would wait for what is stuck in them; the process's end does it."""
    for group in groups:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def brief(error: BaseException) -> str:
    """What a message of Gloo says, without the place in its source and the advice."""
    line = (str(error) or type(error).__name__).splitlines()[0]
    text = line.split("] ", 1)[-1] if line.startswith("[") else line
    return text.split(". ", 1)[0][:200]
