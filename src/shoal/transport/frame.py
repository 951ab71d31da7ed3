"""What travels: a frame is a fixed prefix, a small JSON header and the raw bytes of its tensors. No pickle, ever.

    prefix   magic "SHL1" · header bytes (uint32) · payload bytes (uint64), big-endian
    header   {"p": purpose, "t": [kind, step, part], "c": codec, "n": nbytes, "x": [[dtype, [size, ...]], ...]}
    payload  the tensors' elements, contiguous, in the order of the header, in the sender's byte order (little-endian)

Everything that is read is checked against `Limits` before memory is allocated for it, so a peer that sends nonsense
costs at most ``limits.header_bytes + limits.payload_bytes`` and its connection.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from shoal.world import Payload, Tag

if sys.byteorder != "little":
    raise ImportError("Shoal's frames carry tensors in little-endian byte order; this machine is big-endian")

Purpose = Literal["message", "alive", "bye", "abort", "ready", "go"]
"""``message`` is a protocol's own; the others are between worlds: a sign of life, a goodbye, the news of a failure, and
the agreement on the order of an engine's collectives."""

MAGIC = b"SHL1"
PREFIX = struct.Struct("!4sIQ")
_PURPOSES = frozenset(get_args(Purpose))
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "bool"),
        *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Malformed(ValueError):
    """These bytes are no frame, or one that is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that one frame may make its receiver allocate."""

    header_bytes: int = 64 * 1024
    payload_bytes: int = 8 * 1024**3
    tensors: int = 1024
    dims: int = 16
    part_depth: int = 8


LIMITS = Limits()
_NOTHING = Payload((), 0)


@dataclass(frozen=True, slots=True)
class Frame:
    """One unit on the wire. Tensors of `body` are in host memory."""

    tag: Tag
    body: Payload = _NOTHING
    purpose: Purpose = "message"


def pack(frame: Frame, *, limits: Limits = LIMITS) -> tuple[bytes, list[Tensor]]:
    """The prefix and header of `frame`, and its tensors as flat byte vectors that share memory where they can.

    Raises:
        TypeError: the tag's part holds something else than ints, strings and tuples of them, or a tensor is sparse,
            quantised or not in host memory.
        ValueError: the frame exceeds `limits`.
    """
    tag, body = frame.tag, frame.body
    flat = [flat_bytes(tensor) for tensor in body.tensors]
    payload = sum(part.numel() for part in flat)
    fields = {
        "p": frame.purpose,
        "t": [tag.kind, tag.step, _listed(tag.part)],
        "c": body.codec,
        "n": body.nbytes,
        "x": [[_NAMES[tensor.dtype], list(tensor.shape)] for tensor in body.tensors],
    }
    header = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    if len(header) > limits.header_bytes or payload > limits.payload_bytes or len(flat) > limits.tensors:
        raise ValueError(
            f"{tag.kind!r} of {len(flat)} tensors, {payload} bytes and a header of {len(header)} bytes is more than "
            f"{limits.tensors} tensors, {limits.payload_bytes} bytes or a header of {limits.header_bytes} bytes"
        )
    return PREFIX.pack(MAGIC, len(header), payload) + header, flat


def flat_bytes(tensor: Tensor) -> Tensor:
    """The elements of `tensor` as a vector of bytes; a view where it is contiguous, a copy otherwise."""
    if tensor.layout is not torch.strided or tensor.dtype not in _NAMES or tensor.device.type != "cpu":
        raise TypeError(f"cannot send a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}")
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8)


def view(flat: Tensor) -> memoryview:
    """The memory of a vector of bytes, writable."""
    return memoryview(cast(Any, flat.numpy()))


def lengths(prefix: bytes | memoryview, *, limits: Limits = LIMITS) -> tuple[int, int]:
    """Bytes of the header and of the payload, from the prefix.

    Raises:
        Malformed: not a frame, or one too large.
    """
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise Malformed(f"starts with {bytes(magic)!r}, not {MAGIC!r}")
    if header > limits.header_bytes or payload > limits.payload_bytes:
        raise Malformed(
            f"announces a header of {header} and a payload of {payload} bytes; at most {limits.header_bytes} and "
            f"{limits.payload_bytes} are taken"
        )
    return header, payload


def blank(header: bytes | memoryview, payload: int, *, pin: bool = False, limits: Limits = LIMITS) -> Frame:
    """The frame that `header` announces, with tensors allocated and not yet filled.

    Args:
        payload: bytes of the payload, from the prefix; the tensors' sizes must add up to it.
        pin: allocate page-locked memory, from which a GPU copies by itself.

    Raises:
        Malformed: the header is not what `pack` writes, or the sizes do not add up.
    """
    try:
        fields = json.loads(bytes(header))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"header is not JSON: {error}") from None
    if not isinstance(fields, dict) or fields.keys() != {"p", "t", "c", "n", "x"}:
        raise Malformed("header has other fields than p, t, c, n, x")
    purpose, tag, codec, nbytes, shapes = (fields[key] for key in "ptcnx")
    if not isinstance(purpose, str) or purpose not in _PURPOSES or not isinstance(codec, str) or not _is_count(nbytes):
        raise Malformed(f"purpose {purpose!r}, codec {codec!r} or nbytes {nbytes!r}")
    kinds = [_tensor_kind(entry, limits) for entry in _list(shapes, limits.tensors)]
    announced = sum(math.prod(shape) * dtype.itemsize for dtype, shape in kinds)
    if announced != payload:
        raise Malformed(f"tensors of {announced} bytes in a payload of {payload}")
    tensors = tuple(torch.empty(shape, dtype=dtype, pin_memory=pin) for dtype, shape in kinds)
    return Frame(_tag(tag, limits), Payload(tensors, nbytes, codec), cast(Purpose, purpose))


def check(frame: Frame) -> None:
    """Look at values that have arrived: a bool must be 0 or 1, or later computations are undefined.

    Raises:
        Malformed: it is not.
    """
    for tensor in frame.body.tensors:
        if tensor.dtype is torch.bool and tensor.numel() and int(tensor.view(torch.uint8).max()) > 1:
            raise Malformed("a bool that is neither 0 nor 1")


def _listed(part: Any) -> Any:
    if isinstance(part, tuple):
        return [_listed(item) for item in part]
    if isinstance(part, str) or type(part) is int:
        return part
    raise TypeError(f"a tag's part holds ints, strings and tuples of them, not {part!r}")


def _tupled(part: Any, depth: int) -> Any:
    if isinstance(part, list):
        if depth == 0:
            raise Malformed("tag is nested too deeply")
        return tuple(_tupled(item, depth - 1) for item in part)
    if isinstance(part, str) or type(part) is int:
        return part
    raise Malformed(f"tag holds {part!r}")


def _tag(raw: Any, limits: Limits) -> Tag:
    kind, step, part = raw if isinstance(raw, list) and len(raw) == 3 else (None, None, None)
    if not isinstance(kind, str) or type(step) is not int or not isinstance(part, list):
        raise Malformed(f"tag {str(raw)[:80]}")
    return Tag(kind, step, _tupled(part, limits.part_depth))


def _tensor_kind(entry: Any, limits: Limits) -> tuple[torch.dtype, Sequence[int]]:
    name, shape = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
    if not isinstance(name, str) or name not in _DTYPES:
        raise Malformed(f"tensor of {str(name)[:80]}")
    sizes = _list(shape, limits.dims)
    if not all(_is_count(size) for size in sizes) or math.prod(size or 1 for size in sizes) > limits.payload_bytes:
        raise Malformed(f"shape {str(sizes)[:80]}")
    return _DTYPES[name], sizes


def _list(raw: Any, most: int) -> list[Any]:
    if not isinstance(raw, list) or len(raw) > most:
        raise Malformed(f"expected a list of at most {most}, got {str(raw)[:80]}")
    return raw


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
