"""From a job file to running workers: prepare the run, start its processes, watch them, and leave nothing behind.

Modules are imported one by one, because the command line needs some of them before torch is loaded.
"""
