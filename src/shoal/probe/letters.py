"""What surveyors write to one another: a small JSON object inside the tag of an empty message.

The tag crosses in every world; a tensor would have no values in timing mode, in which a survey of a thousand devices
takes seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from shoal.errors import BadMessage
from shoal.world import Message, Payload, Peer, Tag, World

_EMPTY = Payload((), 0)


async def tell(world: World, to: Peer, kind: str, number: int, what: Mapping[str, Any]) -> None:
    """Write `what` to a peer, under a kind and a number."""
    await world.send(to, Tag(kind, number, (json.dumps(what),)), _EMPTY)


async def hear(world: World, source: Peer, kind: str, number: int, *, within: float) -> dict[str, Any]:
    """Read what `source` has told under this kind and number.

    Raises:
        Late: nothing came within so many seconds.
        BadMessage: something else came.
    """

    def meant(message: Message) -> bool:
        return message.source == source and message.tag.step == number

    message = await world.recv_any(kind, match=meant, within=within)
    try:
        (text,) = message.tag.part
        what = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        what = None
    if not isinstance(what, dict):
        raise BadMessage(source, number, f"{kind}: not readable")
    return what
