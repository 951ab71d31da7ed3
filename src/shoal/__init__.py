"""Shoal trains one model on machines that are far apart, unequal and unreliable.

Importing this package is instant: torch is loaded by the rooms that compute.
"""

__version__ = "0.1.0"
