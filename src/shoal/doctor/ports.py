"""Which ports workers may listen on, and whether they are free (field cases A3 and A6)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Literal

from shoal.doctor.finding import Finding, fail, ok, warn
from shoal.errors import UserError
from shoal.worlds import process_addresses

PortState = Literal["free", "taken", "forbidden"]
Look = Callable[[int], PortState]
Owner = Callable[[int], str]
_MOST_LOOKED_AT = 2000


def check_ports(
    environment: Mapping[str, str],
    *,
    needed: int = 1,
    look: Look | None = None,
    owner: Owner = process_addresses.port_owner,
) -> Iterator[Finding]:
    """Judge ``SHOAL_PORT_RANGE`` and, where the first worker is, ``MASTER_PORT``.

    Args:
        needed: workers of a run on this machine; each listens at one port.
        look: what a port is like.
        owner: who holds a port.
    """
    look = look or port_state
    try:
        allowed = process_addresses.port_range(environment.get(process_addresses.PORT_RANGE))
    except UserError as error:
        yield fail("ports", f"SHOAL_PORT_RANGE: {error.problem}, got {error.value!r}", error.mend)
    else:
        if allowed is not None:
            yield _judge(allowed, max(needed, _local(environment)), look, owner)
    yield from _meeting(environment, look, owner)


def port_state(port: int) -> PortState:
    """Whether a worker could listen at `port`, whatever its address."""
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as sock:
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind((host, port))
                sock.listen(1)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return "taken"
                if error.errno in (errno.EACCES, errno.EPERM):
                    return "forbidden"
    return "free"


def _judge(allowed: range, needed: int, look: Look, owner: Owner) -> Finding:
    said = f"SHOAL_PORT_RANGE {allowed.start}-{allowed.stop - 1}"
    workers = f"{needed} worker{'s' if needed > 1 else ''} on this machine"
    if len(allowed) < needed:
        return fail("ports", f"{said} has {len(allowed)} of the {needed} ports that {workers} need", "allow more")
    states = {port: look(port) for port in allowed[:_MOST_LOOKED_AT]}
    free = sum(state == "free" for state in states.values())
    if free >= needed:
        return ok("ports", f"{free} ports of {said} are free, for {workers}")
    if "forbidden" in states.values():
        return fail("ports", f"{said}: this user may not listen below 1024", 'write e.g. "40000-40050"')
    port = next(port for port, state in states.items() if state == "taken")
    text = f"{said}: {free} are free, {workers} need {needed}; {port} is held by {owner(port)}"
    return fail("ports", text, "is another run going on here? Allow more ports, or end it")


def _local(environment: Mapping[str, str]) -> int:
    """How many workers a launcher says there are on this machine."""
    said = environment.get("LOCAL_WORLD_SIZE", "")
    return int(said) if said.isdigit() else 1


def _meeting(environment: Mapping[str, str], look: Look, owner: Owner) -> Iterator[Finding]:
    """The first worker keeps the store unless the launcher does: then its port must be taken, otherwise free."""
    port = environment.get("MASTER_PORT", "")
    if not port.isdigit() or not 0 < int(port) < 65536 or environment.get("RANK") != "0":
        return
    kept = environment.get("TORCHELASTIC_USE_AGENT_STORE", "").lower() == "true"
    state = look(int(port))
    if state == "forbidden":
        yield fail("ports", f"MASTER_PORT {port}: this user may not listen there", "choose one from 1024 on")
    elif state == "taken" and not kept:
        text = f"MASTER_PORT {port}, at which this worker must listen, is held by {owner(int(port))}"
        yield fail("ports", text, "is another run going on here? Choose another port, or end it")
    elif state == "free" and kept:
        text = f"MASTER_PORT {port} is said to be kept by a launcher, but nobody listens here"
        yield warn("ports", text, "is torchrun still alive? Unset TORCHELASTIC_USE_AGENT_STORE if it never was")
    else:
        yield ok("ports", f"MASTER_PORT {port} is {'kept by the launcher' if kept else 'free'}")
