"""What to train: the `Job`, as a person writes it in ``job.toml``."""

from shoal.job.job import Batch, Data, Job, Mix, Model, Optim, Run, Schedule, Simulate, load

__all__ = ["Batch", "Data", "Job", "Mix", "Model", "Optim", "Run", "Schedule", "Simulate", "load"]
