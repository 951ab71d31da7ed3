"""Is a lab as slow as it says? Rate, delay, jitter and loss by paced UDP, and the rate of one steady TCP stream.

    python benchmarks/lab_truth.py            # twelve settings, about three minutes; needs what a lab needs

Rates are IP bytes, headers included; delays are one way, measured with one clock (all hosts are this machine); TCP's
figure is payload over the link's rate. Each goal is printed with its verdict; the exit status is 1 if one is missed.
"""

from __future__ import annotations

import json
import math
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from shoal import cluster as clusters
from shoal import lab as labs

IP_UDP = 28
PORT = 5000


@dataclass(frozen=True)
class Setting:
    mbps: float
    latency_ms: float
    jitter_ms: float = 0.0
    loss: float = 0.0


SETTINGS = (
    Setting(10, 0),
    Setting(10, 20, 2),
    Setting(10, 100, 0, 0.01),
    Setting(50, 5, 1),
    Setting(100, 0, 0, 0.05),
    Setting(100, 20),
    Setting(100, 20, 4, 0.001),
    Setting(100, 100, 10),
    Setting(300, 10, 0, 0.01),
    Setting(500, 50),
    Setting(1000, 0),
    Setting(1000, 100),
)
CLUSTER = """
[defaults.within_island]
latency = "{latency_ms} ms"
bandwidth = "{mbps} Mbps"
jitter = "{jitter_ms} ms"
loss = {loss}
[[device]]
name = "h"
count = 2
speed = "1 GFLOP/s"
memory = "1 GiB"
"""


def receive(kind: str, count: int) -> None:
    """On the second host: take `count` datagrams, or a stream until its end; print what was seen."""
    if kind == "tcp":
        with socket.create_server(("", PORT)) as server:
            print("ready", flush=True)
            connection, _ = server.accept()
            marks: list[tuple[float, int]] = []
            total, buffer = 0, bytearray(1 << 20)
            while got := connection.recv_into(buffer):
                total += got
                marks.append((time.monotonic(), total))
        print(json.dumps(marks[:: max(1, len(marks) // 2000)]))
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.bind(("", PORT))
        print("ready", flush=True)
        seen: list[tuple[int, float, float, int]] = []
        sock.settimeout(20.0)
        try:
            while True:
                packet = sock.recv(1 << 16)
                now = time.monotonic()
                number, sent = struct.unpack_from("Id", packet)
                if number == count:
                    break
                sock.settimeout(2.0)
                seen.append((number, sent, now, len(packet) + IP_UDP))
        except TimeoutError:
            pass
    print(json.dumps(seen))


def send(kind: str, to: str, count: int, size: int, gap: float) -> None:
    """On the first host: `count` datagrams of `size` bytes, one every `gap` seconds; or a stream of `count` bytes."""
    if kind == "tcp":
        with socket.create_connection((to, PORT), timeout=30.0) as connection:
            piece, left = bytes(1 << 18), count
            while left > 0:
                connection.sendall(piece[:left])
                left -= len(piece)
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((to, PORT))
        rest = bytes(size - IP_UDP - struct.calcsize("Id"))
        begin = time.monotonic()
        for number in range(count):
            while (wait := begin + number * gap - time.monotonic()) > 0:
                time.sleep(wait)
            sock.send(struct.pack("Id", number, time.monotonic()) + rest)
        time.sleep(0.5)
        with suppress(ConnectionRefusedError):  # it has heard enough
            for _ in range(20):  # the end may get lost too
                sock.send(struct.pack("Id", count, 0.0))
                time.sleep(0.01)


def exchange(lab: labs.Lab, kind: str, count: int, size: int = 0, gap: float = 0.0) -> list[list[float]]:
    source, target = lab.hosts
    me = [sys.executable, __file__]
    receiver = subprocess.Popen(
        lab.command(target, [*me, "receive", kind, str(count)]), stdout=subprocess.PIPE, text=True
    )
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "ready\n"
    to = lab.addresses[target][0]
    subprocess.run(lab.command(source, [*me, "send", kind, to, str(count), str(size), str(gap)]), check=True)
    out, _ = receiver.communicate(timeout=60)
    return json.loads(out)


def measure(setting: Setting, seed: int) -> dict[str, float]:
    """All figures of one setting."""
    rate = setting.mbps * 1e6 / 8
    cluster = clusters.parse(CLUSTER.format(**asdict(setting)), file="truth.toml")
    with labs.up(cluster, labs.Settings(seed=seed)) as lab:
        count = 4000 if setting.jitter_ms else 1500  # delays are correlated
        few = exchange(lab, "udp", count, 200, max(0.004, 200 / rate * 4))
        delays = [(arrived - sent) * 1e3 for _, sent, arrived, _ in few]
        size = min(60_000, max(1400, round(rate * 0.0015)))
        flood = exchange(lab, "udp", round(1.5 * rate / size), size, size / rate / 1.2)
        flood = [row for row in flood if row[2] > flood[0][2] + 0.1 * (flood[-1][2] - flood[0][2])]
        udp = sum(row[3] for row in flood[1:]) / (flood[-1][2] - flood[0][2])
        tcp = math.nan
        if not setting.loss:
            marks = exchange(lab, "tcp", round(rate * 6))
            late = [mark for mark in marks if mark[0] > marks[-1][0] - 3.0]
            tcp = (late[-1][1] - late[0][1]) / (late[-1][0] - late[0][0]) / rate
        return {
            "rate": udp / rate,
            "delay_ms": statistics.mean(delays),
            "jitter_ms": statistics.stdev(delays),
            "lost": count - len(few),
            "sent": count,
            "tcp": tcp,
            "late": lab.status()["late_turns"],
        }


def share_uplink() -> list[float]:
    """Two TCP streams from one host to two others, at different distances, through its uplink: rates, in its shares."""
    uplink = 50e6 / 8
    text = CLUSTER.format(mbps=100, latency_ms=5, jitter_ms=0, loss=0).replace('name = "h"', 'name = "h"\nhost = "h"')
    hosts = '[[host]]\nname = "h"\ncount = 3\nup = "50 Mbps"\n'
    far = '[[link]]\nfrom = "h-0"\nto = "h-2"\nlatency = "30 ms"\nbandwidth = "100 Mbps"\n'
    cluster = clusters.parse(text.replace("count = 2", "count = 3") + hosts + far, file="uplink.toml")
    me = [sys.executable, __file__]
    with labs.up(cluster) as lab:
        receivers, senders = [], []
        for target in lab.hosts[1:]:
            process = subprocess.Popen(
                lab.command(target, [*me, "receive", "tcp", "0"]), stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            receivers.append(process)
        for target in lab.hosts[1:]:
            to = lab.addresses[target][0]
            argv = [*me, "send", "tcp", to, str(round(uplink * 4)), "0", "0"]
            senders.append(subprocess.Popen(lab.command(lab.hosts[0], argv)))
        marks = [json.loads(process.communicate(timeout=120)[0]) for process in receivers]
        for sender in senders:
            sender.wait()
    begin, end = max(seen[0][0] for seen in marks) + 2.0, min(seen[-1][0] for seen in marks)
    rates = []
    for seen in marks:
        inside = [mark for mark in seen if begin <= mark[0] <= end]
        rates.append((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) / uplink)
    return rates


def verdicts(setting: Setting, got: dict[str, float]) -> list[str]:
    """What misses its goal."""
    missed = []
    if abs(got["rate"] / (1 - setting.loss) - 1) > 0.05:
        missed.append("rate")
    for key in ("delay_ms", "jitter_ms"):
        want = getattr(setting, key.replace("delay", "latency"))
        if abs(got[key] - want) > max(0.05 * want, 0.5):
            missed.append(key)
    n, p = got["sent"], setting.loss
    if abs(got["lost"] - n * p) > 3.3 * math.sqrt(n * p * (1 - p)):  # 99.9 % of the binomial
        missed.append("loss")
    if got["tcp"] < 0.93:
        missed.append("tcp")
    return missed


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["receive"]:
        receive(arguments[1], int(arguments[2]))
        return 0
    if arguments[:1] == ["send"]:
        send(arguments[1], arguments[2], int(arguments[3]), int(arguments[4]), float(arguments[5]))
        return 0
    print("link (one way)                        UDP rate   delay ms   jitter ms   lost        TCP payload  missed")
    failed = 0
    for number, setting in enumerate(SETTINGS):
        got = measure(setting, seed=number + 1)
        missed = verdicts(setting, got)
        failed += bool(missed)
        said = f"{setting.mbps:g} Mbit/s {setting.latency_ms:g} ± {setting.jitter_ms:g} ms {setting.loss:.1%}"
        lost = f"{got['lost']:g}/{got['sent']:g}"
        print(
            f"{said:36}  {got['rate']:8.3f}  {got['delay_ms']:9.2f}  {got['jitter_ms']:10.2f}   {lost:10}"
            f"  {got['tcp']:11.3f}  {', '.join(missed) or '-'}  (late turns {got['late']:g})",
            flush=True,
        )
    near, far = share_uplink()
    print(f"two TCP streams on one uplink of 50 Mbit/s, 5 and 30 ms away: shares {near:.3f} and {far:.3f} of it")
    return 1 if failed or min(near, far) < 0.4 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
