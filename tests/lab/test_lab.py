"""A lab from the outside: what programs on its hosts find, and that nothing of it stays. Needs root or user namespaces,
and TUN devices; skipped elsewhere."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.hosts import ECHO, make, said, serving
from shoal import lab as labs
from shoal.errors import LabGone, UserError
from shoal.lab import Change, Lab, namespaces

TESTS = Path(__file__).parent.parent
ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7), timeout=10) as s:
    for _ in range(5):
        start = time.monotonic()
        s.sendall(b"x" * int(sys.argv[2]))
        left = int(sys.argv[2])
        while left:
            left -= len(s.recv(1 << 16))
        print(time.monotonic() - start)
"""
SINK = """
import socket
with socket.create_server(("", 9)) as server:
    print("ready")
    while True:
        connection, _ = server.accept()
        with connection:
            while connection.recv(1 << 16):
                pass
            connection.sendall(b"all")
"""
FILL = """
import socket, time
with socket.create_connection(("h-1", 9), timeout=20) as s:
    start = time.monotonic()
    s.sendall(bytes(1_000_000))
    s.shutdown(socket.SHUT_WR)
    assert s.recv(3) == b"all"
    print(time.monotonic() - start)
"""
SLEEP = "import time; print('ready'); time.sleep(600)"


def round_trips(lab: Lab, to: str, size: int = 1) -> list[float]:
    return [float(line) for line in said(lab, "h-0", ASK, to, str(size)).split()]


def test_hosts_reach_one_another_by_name_and_both_families_not_sooner_than_light(two: Lab) -> None:
    v4, v6 = two.addresses["h-1"]
    with serving(two, "h-1", ECHO):
        for to in ("h-1", v4, v6):
            assert min(round_trips(two, to)) >= 0.010
        two.change(Change(do="set", from_="h-0", to="h-1", latency=0.03, one_way=True))
        assert min(round_trips(two, v4)) >= 0.035


def test_a_link_is_never_faster_than_it_says(two: Lab) -> None:
    """100 Mbit/s for IP packets: a megabyte takes its time on the link, and more on a slower one."""
    with serving(two, "h-1", SINK):
        assert float(said(two, "h-0", FILL)) >= 0.090
        two.change(Change(do="set", from_="h-0", to="h-1", bandwidth=1.25e6, one_way=True))
        assert float(said(two, "h-0", FILL)) >= 0.81


def test_a_host_knows_its_name_and_lives_apart(two: Lab) -> None:
    where = "import os, socket; print(socket.gethostname(), os.environ['SHOAL_LAB_HOST'], socket.if_nameindex())"
    assert said(two, "h-1", where) == "h-1 h-1 [(1, 'lo'), (2, 'lab0')]"
    assert "lab0" not in {name for _, name in __import__("socket").if_nameindex()}


def test_a_cut_link_carries_nothing_and_heals(two: Lab) -> None:
    ask = "import socket; socket.setdefaulttimeout(0.3); print(socket.socket().connect_ex(('h-1', 7)))"
    with serving(two, "h-1", ECHO):
        assert said(two, "h-0", ask) == "0"
        two.change(Change(do="cut", host="h-1"))
        assert said(two, "h-0", ask) != "0"
        two.change(Change(do="heal", from_="h-0", to="h-1"))
        assert said(two, "h-0", ask) == "0"


def test_a_script_happens_at_its_times(two: Lab) -> None:
    two.play([Change(do="cut", at=0.05, from_="h-0", to="h-1"), Change(do="heal", at=0.1, from_="h-0", to="h-1")])
    log = two.folder / "log"
    until = time.monotonic() + 20
    while log.read_text().count("\n") < 2 and time.monotonic() < until:
        time.sleep(0.01)
    (cut, cut_text), (heal, heal_text) = (line.split(" s: ") for line in log.read_text().splitlines())
    assert '"cut"' in cut_text and '"heal"' in heal_text
    assert float(heal) - float(cut) >= 0.049


def stops(pid: int, *, stopped: bool = True) -> bool:
    """Whether process `pid` comes to be `stopped`, or not, in time; gives what it is at the end."""
    until = time.monotonic() + 10
    while True:
        is_stopped = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
        if is_stopped == stopped or time.monotonic() > until:
            return is_stopped
        time.sleep(0.01)


def test_paused_processes_stop_and_killed_ones_end(two: Lab) -> None:
    with serving(two, "h-1", SLEEP) as process:
        two.change(Change(do="pause", host="h-1"))
        assert stops(process.pid)
        two.change(Change(do="resume", host="h-1"))
        assert not stops(process.pid, stopped=False)
        two.change(Change(do="kill", host="h-1"))
        assert process.wait(10) == -signal.SIGKILL
    assert not any(way["up"] for way in two.status()["ways"])


def test_status_counts_what_went_through(two: Lab) -> None:
    with serving(two, "h-1", ECHO):
        round_trips(two, "h-1", 10_000)
        sender, target = two.status()["hosts"]
        until = time.monotonic() + 10
        while (
            sender["sent_bytes"] != target["received_bytes"] and time.monotonic() < until
        ):  # the last ones are under way
            sender, target = two.status()["hosts"]
    assert (sender["name"], target["processes"]) == ("h-0", 1)
    assert sender["sent_bytes"] > 50_000 and sender["sent_bytes"] == target["received_bytes"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (Change(do="cut", host="h-7"), "no such host"),
        (Change(do="set", from_="h-0", to="h-9", loss=0.1), "no such host"),
    ],
)
def test_a_place_that_does_not_exist_is_refused(two: Lab, change: Change, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        two.change(change)
    assert two.alive()


def test_nothing_is_left_when_a_lab_ends(own_labs: None) -> None:
    """Not even what was started on its hosts and does not want to end."""
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(600)"
    with labs.up(make()) as lab, serving(lab, "h-0", stubborn) as process:
        inodes = set(lab.inodes)
        assert namespaces.processes_in(inodes) == [process.pid]
        lab.down()
        assert process.wait(10) == -signal.SIGKILL
    assert namespaces.processes_in(inodes) == []
    assert not lab.folder.exists() and not lab.alive() and labs.running() == []


HOLD = """
import sys, time
from lab.hosts import make
from shoal import lab
import subprocess
with lab.up(make()) as l:
    inside = subprocess.Popen(l.command("h-0", [sys.executable, "-c", "import time; time.sleep(600)"]))
    time.sleep(0.5)
    print(l.pid, inside.pid, flush=True)
    time.sleep(600)
"""


def gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether process `pid` ends in time (one that nobody has reaped has ended)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_lab_ends_with_whoever_started_it(own_labs: None, number: int) -> None:
    argv = [sys.executable, "-c", HOLD]
    holder = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=TESTS)
    assert holder.stdout is not None
    switch, inside = map(int, holder.stdout.readline().split())
    holder.send_signal(number)
    holder.wait()
    assert gone(switch) and gone(inside)


def test_what_a_lost_lab_left_is_cleaned_up(own_labs: None) -> None:
    """The switch is killed: devices and links are gone at once, programs on its hosts stay until somebody cleans up."""
    lab = labs.start(make())
    with serving(lab, "h-0", SLEEP) as process:
        os.kill(lab.pid, signal.SIGKILL)
        assert gone(lab.pid)
        assert not lab.alive()
        with pytest.raises(LabGone, match="does not answer"):
            lab.status()
        with pytest.raises(UserError, match="no lab is up"):
            labs.find()
        (found,) = labs.running()
        found.down()
        assert process.wait(10) == -signal.SIGKILL
    assert labs.running() == []


def test_labs_of_one_cluster_get_names_of_their_own(own_labs: None) -> None:
    with labs.up(make()) as first, labs.up(make()) as second:
        assert (first.name, second.name) == ("two", "two-2")
        with pytest.raises(UserError, match="2 labs are up"):
            labs.find()
        assert labs.find("two-2").pid == second.pid
        with pytest.raises(UserError, match="there is a lab of this name"):
            labs.start(make(), name="two")


WITHOUT_RIGHTS = """
import json, subprocess, sys
from lab.hosts import ECHO, make, said, serving
from shoal import lab as labs
with labs.up(make()) as lab, serving(lab, "h-1", ECHO):
    assert lab.status()["user_namespace"]
    ask = "import socket; s = socket.create_connection(('h-1', 7), 10); s.sendall(b'hello'); print(s.recv(5).decode())"
    print(said(lab, "h-0", ask))
"""


def drop_rights() -> None:
    """Give up the right to make namespaces, as people who are not root have to."""
    pr_capbset_drop, cap_sys_admin = 24, 21
    assert ctypes.CDLL(None).prctl(pr_capbset_drop, cap_sys_admin, 0, 0, 0) == 0


def test_a_lab_in_a_user_namespace(own_labs: None) -> None:
    argv = [sys.executable, "-c", WITHOUT_RIGHTS]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, preexec_fn=drop_rights, cwd=TESTS
    )
    if "does not let us make" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.stdout == "hello\n", done.stderr
