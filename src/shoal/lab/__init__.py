"""Far-away machines on one machine: a network namespace per host, and links as slow as the cluster file says.

`up` brings a cluster's network up and hands out a `Lab`; ordinary processes started with `Lab.command` live on one of
its hosts and find only its links. One process, the switch, holds a TUN device in every namespace and moves the packets;
with it the whole lab is gone, for nothing in it has a name outside. Linux only.
"""

from shoal.lab.blueprint import MEETING_PORT, Settings
from shoal.lab.lab import Lab, find, running, start, up
from shoal.lab.script import Change, load_script

__all__ = ["MEETING_PORT", "Change", "Lab", "Settings", "find", "load_script", "running", "start", "up"]
