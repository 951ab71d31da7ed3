"""Ring all-reduce over point-to-point messages: reduce-scatter, then all-gather.

The vector is cut into n chunks. Chunk c starts at peer c and travels once around the ring; each peer adds its own part,
so the sum is ``((x[c] + x[c+1]) + x[c+2]) + ...`` whatever arrives first: the bits depend on the order of the peers
alone. A second round hands the finished chunks out. Each peer sends 2(n-1) chunks, which is the least any all-reduce
can send (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from shoal.world import Message, Payload, Peer, Tag, Work, World, only_bytes


def chunk_bounds(numel: int, n: int) -> list[tuple[int, int]]:
    """Where each of the n chunks of a vector starts and stops. The last ones may be shorter or empty."""
    size = -(-numel // n)
    return [(min(c * size, numel), min((c + 1) * size, numel)) for c in range(n)]


def chunk_nbytes(numel: int, n: int, nbytes: int) -> list[int]:
    """What each chunk costs on the wire when the whole vector costs `nbytes`."""
    if numel == 0:
        return [hi - lo for lo, hi in chunk_bounds(nbytes, n)]
    return [hi * nbytes // numel - lo * nbytes // numel for lo, hi in chunk_bounds(numel, n)]


async def ring_all_reduce(
    world: World, x: Tensor, peers: Sequence[Peer], tag: Tag, *, nbytes: int | None = None
) -> None:
    """Replace `x` by its sum over `peers`, in place. All peers call this with the same peers, tag, shape and dtype.

    Additions run on the lane ``"serve"``. In timing mode only byte counts travel and `x` is left alone.

    Args:
        nbytes: what `x` costs on the wire; its own size by default.

    Raises:
        ValueError: this peer is not among `peers`, or one is named twice.
        PeerLost, Late: as `World.send` and `World.recv`.
        BadMessage: a peer sent a chunk of another shape or dtype.
    """
    n, me = len(peers), position(peers, world.me)
    if n == 1:
        return
    to, source = peers[(me + 1) % n], peers[me - 1]
    costs = chunk_nbytes(x.numel(), n, x.numel() * x.element_size() if nbytes is None else nbytes)
    flat = x.detach().reshape(-1)
    own = [flat[lo:hi] for lo, hi in chunk_bounds(x.numel(), n)]
    done: dict[int, Tensor] = {}
    out = own[me]
    sending = None
    for k in range(2 * (n - 1)):
        body = _body(world, out, costs[(me - k) % n])
        if sending is not None:
            await sending  # one chunk at a time: the next would only share the link with it
        step_tag = Tag(tag.kind, tag.step, (*tag.part, "ring", k))
        sending = world.spawn(world.send(to, step_tag, body), f"ring {tag.kind} {k}")
        message = await world.recv(step_tag, source=source)
        chunk = (me - k - 1) % n
        if k < n - 1:
            work = Work("reduce", touched_bytes=3.0 * costs[chunk], lane="serve")
            out = await world.run(partial(_add, message, own[chunk]), work, timing=own[chunk])
        elif world.numeric:
            out = message.one(own[chunk], finite=False)
        if k >= n - 2:
            done[chunk] = out
    # The last send goes on by itself: it carries no part of `x`, and nobody here waits for it. But it has begun, so its
    # bytes count.
    await world.sleep(0.0)
    await world.run(partial(_write, x, done, n), Work("reduce", touched_bytes=2.0 * sum(costs), lane="serve"))


def position(peers: Sequence[Peer], me: Peer) -> int:
    """The place of `me` on the ring.

    Raises:
        ValueError: `me` is not among `peers`, or one is named twice.
    """
    if len(set(peers)) != len(peers) or me not in peers:
        raise ValueError(f"a collective of {me!r} needs distinct peers with {me!r} among them, got {list(peers)}")
    return list(peers).index(me)


def ring_sum(tensors: Sequence[Tensor]) -> Tensor:
    """The sum that `ring_all_reduce` leaves with every peer, to the bit, from all peers' inputs in ring order.

    Inputs have one shape and dtype; none is written. The result has their shape and is contiguous.
    """
    n, first = len(tensors), tensors[0]
    out = torch.empty(first.shape, dtype=first.dtype, device=first.device)
    total, parts = out.view(-1), [tensor.detach().reshape(-1) for tensor in tensors]
    bounds = chunk_bounds(first.numel(), n)
    # Chunk c adds peers c, c+1, ..., n-1 and then 0, ..., c-1. So a first round over peers adds peer p to all chunks
    # up to p, and a second one to all chunks after p: long stretches instead of n² short ones.
    for part, (start, stop) in zip(parts, bounds, strict=True):
        total[:start].add_(part[:start])
        total[start:stop].copy_(part[start:stop])
    for part, (_, stop) in zip(parts[:-1], bounds[:-1], strict=True):
        total[stop:].add_(part[stop:])
    return out


def _body(world: World, chunk: Tensor, nbytes: int) -> Payload:
    return Payload((chunk,), nbytes) if world.numeric else only_bytes(nbytes)


def _add(message: Message, own: Tensor) -> Tensor:
    """The travelling chunk plus mine, in the tensor that arrived: no part of `x` is written while it is being sent."""
    return message.one(own, finite=False).add_(own)


def _write(x: Tensor, chunks: dict[int, Tensor], n: int) -> None:
    flat = x.detach().reshape(-1)
    for c, (lo, hi) in enumerate(chunk_bounds(x.numel(), n)):
        flat[lo:hi].copy_(chunks[c])
    if flat.data_ptr() != x.data_ptr():  # `x` is not contiguous, so `flat` is a copy
        x.detach().copy_(flat.reshape(x.shape))
