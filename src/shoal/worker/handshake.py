"""Before the first step: do all peers hold the same plan, data and weights, and where do they go on?

Every peer sends the leader a description of what it is about to train; the leader compares and answers with a verdict.
A peer with another model is named with the first parameter that differs, before any gradient could be mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shoal.errors import BadMessage, UserError
from shoal.worker.letters import pack, unpack
from shoal.world import Message, Tag, World

ASK, VERDICT = "hello", "verdict"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a peer is about to train. `checkpoints` are the steps it could resume from; `model` lists (name, digest)."""

    plan: str
    corpus: str
    engine: str
    checkpoints: tuple[int, ...]
    model: tuple[tuple[str, str], ...]


async def agree(world: World, mine: Hello) -> int | None:
    """Compare with all peers. Returns the newest step that every peer can resume from, or None to start afresh.

    Raises:
        UserError: the peers hold different models, plans or data; names the first peer that differs and in what.
    """
    leader, others = world.peers[0], world.peers[1:]
    if world.me != leader:
        await world.send(leader, Tag(ASK), pack(asdict(mine)))
        verdict = unpack(await world.recv(Tag(VERDICT), source=leader))
    else:
        hellos = {peer: _hello(await world.recv(Tag(ASK), source=peer)) for peer in others}
        verdict = judge({leader: mine, **hellos})
        for peer in others:
            await world.send(peer, Tag(VERDICT), pack(verdict))
    if verdict["problem"]:
        raise UserError(verdict["problem"], mend=verdict["mend"])
    return verdict["resume"]


def judge(hellos: Mapping[str, Hello]) -> dict[str, Any]:
    """The leader's verdict over all hellos, its own first in sorted order: the problem (or "") and the resume step."""
    leader = min(hellos)
    mine = hellos[leader]
    for peer in sorted(hellos):
        problem, mend = _difference(leader, mine, peer, hellos[peer])
        if problem:
            return {"problem": problem, "mend": mend, "resume": None}
    common = set(mine.checkpoints).intersection(*(h.checkpoints for h in hellos.values()))
    return {"problem": "", "mend": "", "resume": max(common, default=None)}


def _difference(leader: str, mine: Hello, peer: str, other: Hello) -> tuple[str, str]:
    who = f"peers {leader!r} and {peer!r}"
    for (name, here), (their_name, there) in zip(mine.model, other.model, strict=False):
        if name != their_name:
            return f"{who} hold different models: {name!r} here, {their_name!r} there", "start all peers from one job"
        if here != there:
            return f"{who} differ in {name!r}: {here} here, {there} there", "build the model from the job's seed alone"
    if len(mine.model) != len(other.model):
        return f"{who} hold {len(mine.model)} and {len(other.model)} tensors", "start all peers from one job"
    if mine.plan != other.plan:
        return f"{who} were handed different plans", "give all peers the same job and cluster files"
    if mine.corpus != other.corpus:
        return f"{who} read different data", "give all peers the same files"
    if mine.engine != other.engine:
        return f"{who} run {mine.engine} and {other.engine}", "install one version everywhere"
    return "", ""


def _hello(message: Message) -> Hello:
    raw = unpack(message)
    try:
        pairs: Sequence[Sequence[str]] = raw["model"]
        return Hello(
            plan=raw["plan"],
            corpus=raw["corpus"],
            engine=raw["engine"],
            checkpoints=tuple(raw["checkpoints"]),
            model=tuple((name, text) for name, text in pairs),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BadMessage(message.source, 0, "hello: not readable") from error
