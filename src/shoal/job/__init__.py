"""What to train: the `Job`, as a person writes it in ``job.toml``."""

from shoal.job.job import Batch, Data, Job, Mix, Model, Optim, Run, Schedule, Simulate, dump, load
from shoal.job.options import validate_options
from shoal.job.template import template

__all__ = [
    "Batch",
    "Data",
    "Job",
    "Mix",
    "Model",
    "Optim",
    "Run",
    "Schedule",
    "Simulate",
    "dump",
    "load",
    "template",
    "validate_options",
]
