"""Small JSON objects between peers: hellos, verdicts, confirmations. Never pickle."""

from __future__ import annotations

import json
from typing import Any

import torch

from shoal.errors import BadMessage
from shoal.world import Message, Payload, dense


def pack(value: dict[str, Any]) -> Payload:
    """A payload of the object's JSON bytes."""
    return dense(torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8))


def unpack(message: Message) -> dict[str, Any]:
    """The object that `pack` was given.

    Raises:
        BadMessage: the message holds anything else.
    """
    try:
        (raw,) = message.body.tensors
        value = json.loads(raw.cpu().numpy().tobytes())
    except (ValueError, TypeError) as error:
        raise BadMessage(message.source, message.tag.step, f"{message.tag.kind}: not readable") from error
    if not isinstance(value, dict):
        raise BadMessage(message.source, message.tag.step, f"{message.tag.kind}: not an object")
    return value
