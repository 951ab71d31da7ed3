"""Says what this machine can do and what will go wrong, with a mend for each failure.

Each file looks at one thing. Looking (`Machine.here` and the like) is apart from judging, which takes what was seen as
arguments; so every trap is tested with made inputs.
"""

from shoal.doctor.addresses import check_addresses
from shoal.doctor.clock import check_clock
from shoal.doctor.devices import check_devices
from shoal.doctor.endpoint import Endpoint, parse_endpoint
from shoal.doctor.finding import Finding
from shoal.doctor.fit import check_job, workers_here
from shoal.doctor.launchers import check_launcher
from shoal.doctor.listener import serve
from shoal.doctor.path import Limits, Offer, check_path
from shoal.doctor.ports import check_ports
from shoal.doctor.system import check_system

__all__ = [
    "Endpoint",
    "Finding",
    "Limits",
    "Offer",
    "check_addresses",
    "check_clock",
    "check_devices",
    "check_job",
    "check_launcher",
    "check_path",
    "check_ports",
    "check_system",
    "parse_endpoint",
    "serve",
    "workers_here",
]
