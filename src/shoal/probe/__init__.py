"""Measures what there is, devices, links and clocks, and writes it down as a cluster file."""

from shoal.probe.describe import as_text, to_cluster
from shoal.probe.figures import About, Figure, HostFacts, Settings, Survey, Way
from shoal.probe.islands import find_islands
from shoal.probe.measure import Progress, measure
from shoal.probe.merge import Change, merge
from shoal.probe.protocol import survey

__all__ = [
    "About",
    "Change",
    "Figure",
    "HostFacts",
    "Progress",
    "Settings",
    "Survey",
    "Way",
    "as_text",
    "find_islands",
    "measure",
    "merge",
    "survey",
    "to_cluster",
]
