"""The one process of a lab: makes the hosts' namespaces, moves their packets, and takes orders at a socket.

Started by `shoal.lab.lab.up`, which writes a blueprint to its standard input. An attached switch ends with that input,
however whoever started it ends. Nothing here loads torch.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from shoal.errors import UserError
from shoal.lab import namespaces
from shoal.lab.blueprint import packet_bytes, route
from shoal.lab.namespaces import Namespace
from shoal.lab.shaper import Shaper, Way

BURST = 32
"""Packets taken from one host before others have their turn, and timers theirs."""
LONGEST_WAIT = 1.0
LATE_S = 0.001
"""Steps later than this are counted: the machine is too busy for the lab to be true."""
TERM_GRACE = 1.0
_TCP, _UDP = 6, 17


class Switch:
    """A running lab."""

    def __init__(self, plan: dict[str, Any], folder: Path) -> None:
        self.folder, self.plan = folder, plan
        self.names = [host["name"] for host in plan["hosts"]]
        self.in_user_namespace = namespaces.become_able()
        self.notes: list[str] = []
        self.hosts: list[Namespace] = []
        for host in plan["hosts"]:
            made, failed = namespaces.make(host["commands"], [(path, value) for path, value in host["sysctls"]])
            self.hosts.append(made)
            self.notes += [f"{host['name']}: cannot set net.{path.replace('/', '.')}" for path in failed]
        addresses = [host["addresses"] for host in plan["hosts"]]
        self._number = {socket.inet_pton(socket.AF_INET, v4): n for n, (v4, _) in enumerate(addresses)}
        self._number |= {socket.inet_pton(socket.AF_INET6, v6): n for n, (_, v6) in enumerate(addresses)}
        self.shaper = Shaper(
            self._deliver,
            up={n: host["up"] for n, host in enumerate(plan["hosts"])},
            down={n: host["down"] for n, host in enumerate(plan["hosts"])},
            ways={(w.pop("from"), w.pop("to")): Way(**w) for w in plan["ways"]},
            pipes=plan["pipes"],
            depth_s=plan["queue_s"],
            seed=plan["seed"],
        )
        self.began, self.turns, self.late, self.latest_s, self.refused = monotonic(), 0, 0, 0.0, 0
        self._over = False
        self._tuns = {host.tun: n for n, host in enumerate(self.hosts)}
        self._readers: dict[int, Callable[[int], None]] = dict.fromkeys(self._tuns, self._take)

    # ----------------------------------------------------------------------------------------------- packets

    def serve(self, listener: socket.socket, lifeline: int | None) -> None:
        """Move packets and take orders until told to stop, or until `lifeline` is closed."""
        listener.setblocking(False)
        self._readers[listener.fileno()] = lambda _: self._accept(listener)
        if lifeline is not None:
            self._readers[lifeline] = self._feel
        agenda = self.shaper.agenda
        while not self._over:
            wait = min(max(agenda.next_time() - monotonic(), 0.0), LONGEST_WAIT)
            ready, _, _ = select.select(list(self._readers), (), (), wait)
            late = agenda.advance(monotonic())
            self.turns += 1
            if late > LATE_S:
                self.late += 1
                self.latest_s = max(self.latest_s, late)
            for descriptor in ready:
                self._readers.get(descriptor, _nothing)(descriptor)

    def _take(self, tun: int) -> None:
        """Packets that a host sends."""
        src = self._tuns[tun]
        now = monotonic()
        for _ in range(BURST):
            try:
                packet = os.read(tun, 1 << 16)
            except BlockingIOError:
                return
            except OSError:  # somebody on the host has taken the interface down
                del self._readers[tun]
                self.shaper.agenda.at(now + LONGEST_WAIT, self._listen_again, tun)
                return
            found = sort(packet)
            dst = self._number.get(found[0]) if found else None
            if found is not None and dst is not None and dst != src:
                self.shaper.offer(now, src, dst, found[1], packet, len(packet))

    def _listen_again(self, _: float, tun: int) -> None:
        self._readers[tun] = self._take

    def _deliver(self, dst: int, packet: bytes) -> None:
        try:
            os.write(self.hosts[dst].tun, packet)
        except OSError:
            self.refused += 1  # the host's own queue is full: lost, as in a real one

    def _feel(self, lifeline: int) -> None:
        if not os.read(lifeline, 1 << 12):
            self._over = True

    # ------------------------------------------------------------------------------------------------ orders

    def _accept(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        heard = bytearray()

        def read(descriptor: int) -> None:
            with contextlib.suppress(BlockingIOError):
                try:
                    chunk = connection.recv(1 << 16)
                except ConnectionError:
                    chunk = b""
                heard.extend(chunk)
                if chunk and not heard.endswith(b"\n"):
                    return
                del self._readers[descriptor]
                with contextlib.suppress(OSError):
                    connection.settimeout(LONGEST_WAIT)
                    if heard:
                        connection.sendall(json.dumps(self._answer(bytes(heard))).encode() + b"\n")
                connection.close()

        self._readers[connection.fileno()] = read

    def _answer(self, order: bytes) -> dict[str, Any]:
        try:
            asked = json.loads(order)
            return {"ok": self._obey(asked.pop("do"), asked)}
        except UserError as error:
            return {"error": {"problem": error.problem, "mend": error.mend, "key": error.key, "value": error.value}}
        except Exception as error:  # an order must not end the lab
            return {"error": {"problem": f"{type(error).__name__}: {error}"}}

    def _obey(self, what: str, asked: dict[str, Any]) -> Any:
        match what:
            case "status":
                return self.status()
            case "play":
                start = monotonic()
                for change in asked["changes"]:
                    self.shaper.agenda.at(start + change["at"], self._change, change)
                return len(asked["changes"])
            case "down":
                self._over = True
                return None
            case _:
                self._change(monotonic(), {"do": what, **asked})
                return None

    def _change(self, _: float, change: dict[str, Any]) -> None:
        what = change["do"]
        print(f"{monotonic() - self.began:.3f} s: {json.dumps(change)}", file=sys.stderr, flush=True)  # noqa: T201
        match what:
            case "cut" | "heal":
                for pair in self._pairs(change):
                    self.shaper.ways[pair].up = what == "heal"
            case "set":
                for pair in self._pairs(change):
                    self._set(pair, change)
            case "pause" | "resume" | "kill":
                self._signal(change["host"], what)
            case _:
                raise UserError("no such order", value=what)

    def _pairs(self, change: dict[str, Any]) -> list[tuple[int, int]]:
        """The ways that a change is about: from one place to another (and back), or all of one host."""
        if host := change.get("host"):
            n = self.names.index(host)
            return [pair for pair in self.shaper.ways if n in pair]
        src, dst = self.names.index(change["from"]), self.names.index(change["to"])
        return [(src, dst), *([] if change.get("one_way") else [(dst, src)])]

    def _set(self, pair: tuple[int, int], change: dict[str, Any]) -> None:
        way = self.shaper.ways[pair]
        for key in ("latency_s", "jitter_s", "loss"):
            if change.get(key) is not None:
                setattr(way, key, change[key])
        if (rate := change.get("bandwidth")) is not None:
            self.shaper.pipes[way.pipe].rate = rate
            back = (pair[1], pair[0])
            mtu = packet_bytes(min(self._rate(pair), self._rate(back)))
            for here, there in (pair, back):
                commands = [route(address, mtu) for address in self.plan["hosts"][there]["addresses"]]
                namespaces.change(self.hosts[here], commands)

    def _rate(self, pair: tuple[int, int]) -> float:
        pipe = self.shaper.pipes[self.shaper.ways[pair].pipe]
        return min(self.shaper.up[pair[0]].rate, pipe.rate, self.shaper.down[pair[1]].rate)

    def _signal(self, host: str, what: str) -> None:
        number = {"pause": signal.SIGSTOP, "resume": signal.SIGCONT, "kill": signal.SIGKILL}[what]
        if what == "kill":
            self._change(0.0, {"do": "cut", "host": host})
        kill_all({self.hosts[self.names.index(host)].inode}, number)

    def status(self) -> dict[str, Any]:
        """What there is and what has happened, for people and scripts."""
        shaper = self.shaper
        return {
            "cluster": self.plan["cluster"],
            "pid": os.getpid(),
            "seconds": monotonic() - self.began,
            "user_namespace": self.in_user_namespace,
            "notes": self.notes,
            "turns": self.turns,
            "late_turns": self.late,
            "latest_s": self.latest_s,
            "lost_packets": shaper.lost,
            "hosts": [
                {
                    "name": name,
                    "addresses": host["addresses"],
                    "processes": len(namespaces.processes_in({space.inode})),
                    "sent_bytes": shaper.up[n].count.bytes,
                    "received_bytes": shaper.down[n].count.bytes,
                    "dropped_packets": shaper.up[n].count.dropped + shaper.down[n].count.dropped,
                }
                for n, (name, host, space) in enumerate(zip(self.names, self.plan["hosts"], self.hosts, strict=True))
            ],
            "ways": [
                {
                    "from": self.names[src],
                    "to": self.names[dst],
                    "up": way.up,
                    "latency_s": way.latency_s,
                    "jitter_s": way.jitter_s,
                    "loss": way.loss,
                    "bandwidth_bytes_per_s": shaper.pipes[way.pipe].rate,
                    "queued_bytes": shaper.pipes[way.pipe].backlog_bytes,
                    "dropped_packets": shaper.pipes[way.pipe].count.dropped,
                }
                for (src, dst), way in shaper.ways.items()
            ],
        }

    def close(self) -> None:
        """End what lives on the hosts, then the hosts."""
        inodes = {host.inode for host in self.hosts}
        if kill_all(inodes, signal.SIGTERM):
            kill_all(inodes, signal.SIGCONT)
            until = monotonic() + TERM_GRACE
            while monotonic() < until and namespaces.processes_in(inodes):
                select.select((), (), (), 0.02)
            kill_all(inodes, signal.SIGKILL)
        for host in self.hosts:
            host.close()


def sort(packet: bytes) -> tuple[bytes, bytes] | None:
    """The destination of an IP packet and the flow it belongs to; None for what is not ours to carry."""
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        whole = packet[0] == 0x45 and not (packet[6] & 0x3F or packet[7])  # no options, no fragment
        ports = packet[20:24] if whole and packet[9] in (_TCP, _UDP) else b""
        return packet[16:20], packet[9:10] + packet[12:20] + ports
    if version == 6 and len(packet) >= 40:
        ports = packet[40:44] if packet[6] in (_TCP, _UDP) else b""
        return packet[24:40], packet[6:7] + packet[8:40] + ports
    return None


def kill_all(inodes: set[int], number: int) -> int:
    """Send a signal to every process in these network namespaces; returns to how many."""
    pids = namespaces.processes_in(inodes)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    return len(pids)


def hurry() -> str:
    """Ask the system to run this process before others, and to wake it on time; says what was granted."""
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
        return "real-time"
    with contextlib.suppress(OSError):
        os.nice(-10)
        return "raised"
    return "normal"


def _nothing(_: int) -> None:
    """A descriptor that was closed in this very turn."""


def main(folder: Path, *, detached: bool) -> int:
    """Read the blueprint, bring the lab up, say so in one line of JSON, and serve."""
    plan = json.loads(sys.stdin.buffer.readline())
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's Ctrl-C is for whoever started the lab
    signal.signal(signal.SIGTERM, _stop)
    try:
        switch = Switch(plan, folder)
    except UserError as error:
        print(json.dumps({"error": {"problem": error.problem, "mend": error.mend}}), flush=True)  # noqa: T201
        return error.exit_status
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "orders"))
            listener.listen(16)
            priority = hurry()
            nets = {name: f"/proc/{os.getpid()}/fd/{host.net}" for name, host in zip(switch.names, switch.hosts)}  # noqa: B905
            print(  # noqa: T201
                json.dumps(
                    {
                        "pid": os.getpid(),
                        "user": f"/proc/{os.getpid()}/ns/user" if switch.in_user_namespace else None,
                        "nets": nets,
                        "inodes": [host.inode for host in switch.hosts],
                        "priority": priority,
                        "notes": switch.notes,
                    }
                ),
                flush=True,
            )
            gc.disable()  # it makes no cycles, and a pause would delay packets
            switch.serve(listener, None if detached else sys.stdin.fileno())
    finally:
        switch.close()
    return 0


def _stop(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), detached="--detached" in sys.argv[2:]))
