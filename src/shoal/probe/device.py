"""Speed of one device: large matrix products, and a large copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

import torch

from shoal.probe.figures import PRECISIONS, Figure, Settings
from shoal.world import Work, World

TARGET_SECONDS = 0.03
"""One run takes about so long: far more than starting it, far less than anybody's patience."""
SMALLEST, LARGEST, STEP = 128, 16384, 64
COPY_BYTES = 256 * 1024**2
"""More than the caches of a processor hold."""


async def measure_device(world: World, memory_bytes: float, settings: Settings) -> dict[str, Any]:
    """FLOP/s by precision, and bytes/s of memory, of this peer's device.

    Args:
        memory_bytes: what it has; the operands take a quarter of it at most.
    """
    flops = {}
    for precision in PRECISIONS:
        figure = await _products(world, getattr(torch, precision), memory_bytes / 4, settings)
        if figure is not None:
            flops[precision] = asdict(figure)
    size = int(min(COPY_BYTES, max(1 << 20, memory_bytes / 16)))
    return {"flops": flops, "memory_bandwidth": asdict(await _copies(world, size, settings))}


async def _products(world: World, dtype: torch.dtype, room: float, settings: Settings) -> Figure | None:
    """FLOP/s of square matrix products of this dtype; None where the device has none."""
    n, largest = SMALLEST, min(LARGEST, int((room / (3 * dtype.itemsize)) ** 0.5))
    try:
        while True:
            operands = Work("probe prepare", touched_bytes=3.0 * n * n * dtype.itemsize)
            run = await world.run(partial(_product, n, dtype, world.device), operands)
            work = Work("probe product", flops=2.0 * n**3)
            await _timed(world, run, work)  # warms up
            seconds = await _timed(world, run, work)
            grown = _larger(n, seconds, largest)
            if seconds >= TARGET_SECONDS / 2 or grown <= n:
                break
            n = grown
        return _figure(work.flops, [seconds, *[await _timed(world, run, work) for _ in range(settings.repeats - 1)]])
    except RuntimeError as error:
        if "not implemented" not in str(error):
            raise
        return None


async def _copies(world: World, size: int, settings: Settings) -> Figure:
    """Bytes/s of memory traffic (read and written) while copying `size` bytes."""
    run = await world.run(partial(_copy, size, world.device), Work("probe prepare", touched_bytes=2.0 * size))
    work = Work("probe copy", touched_bytes=2.0 * size)
    await _timed(world, run, work)
    return _figure(work.touched_bytes, [await _timed(world, run, work) for _ in range(settings.repeats)])


async def _timed(world: World, run: Callable[[], None] | None, work: Work) -> float:
    began = world.now()
    await world.run(run or (lambda: None), work)
    return world.now() - began


def _figure(amount: float, seconds: list[float]) -> Figure:
    """`amount` per median time; its spread is that of the middle half of the runs."""
    times = sorted(seconds)
    middle = median(times)
    if middle <= 0.0:
        return Figure(value=float("inf"))
    low, high = times[len(times) // 4], times[-1 - len(times) // 4]
    return Figure(value=amount / middle, spread=(high - low) / 2 / middle)


def _larger(n: int, seconds: float, largest: int) -> int:
    """The size that would take the target time, at most four times as large: small products run below speed."""
    factor = min(4.0, (TARGET_SECONDS / seconds) ** (1 / 3)) if seconds > 0 else 4.0
    return min(largest, max(n, round(n * factor / STEP) * STEP))


def _product(n: int, dtype: torch.dtype, device: torch.device) -> Callable[[], None]:
    a, b = torch.ones(n, n, dtype=dtype, device=device), torch.ones(n, n, dtype=dtype, device=device)
    out = torch.empty(n, n, dtype=dtype, device=device)

    def run() -> None:
        torch.mm(a, b, out=out)

    return run


def _copy(size: int, device: torch.device) -> Callable[[], None]:
    source, target = (
        torch.ones(size, dtype=torch.uint8, device=device),
        torch.zeros(size, dtype=torch.uint8, device=device),
    )

    def run() -> None:
        target.copy_(source)

    return run
