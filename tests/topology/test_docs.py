"""The contraction table of docs/topologies.md is what the code computes."""

from __future__ import annotations

from pathlib import Path

from shoal import registry
from shoal.topology import spectral

DOC = Path(__file__).parents[2] / "docs" / "topologies.md"
COLUMNS = [
    ("complete", 1),
    ("ring", 1),
    ("one-peer-exponential", 1),
    ("alternating-exponential-ring", 1),
    ("alternating-exponential-ring", 2),
    ("alternating-exponential-ring", 4),
]


def cell(name: str, size: int, n: int) -> str:
    """``factor in period``; islands of `size`, the last one smaller where `size` does not divide n."""
    topology = registry.strategy("topology", name)()
    peers = tuple(f"d{i:02d}" for i in range(n))
    island = {peer: i // size for i, peer in enumerate(peers)}
    factor, period = spectral(topology, peers, island), topology.period(peers, island)
    return f"{'exact' if factor < 1e-12 else f'{factor:.4f}'} in {period}"


def test_the_contraction_table_is_computed() -> None:
    lines = DOC.read_text(encoding="utf-8").splitlines()
    for n in (3, 4, 6, 8, 16, 32):
        assert f"| {n} | {' | '.join(cell(name, size, n) for name, size in COLUMNS)} |" in lines


def test_every_topology_has_its_section() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert all(f"\n## `{name}`\n" in text for name in registry.names("topology"))
