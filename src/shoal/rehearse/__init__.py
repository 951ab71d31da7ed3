"""Runs in virtual time: rehearsing a job before machines are paid for, and replaying a run that really happened."""

from shoal.rehearse.replay import Difference, Recording, Replayed, replay
from shoal.rehearse.simulate import Rehearsal, rehearse

__all__ = ["Difference", "Recording", "Rehearsal", "Replayed", "rehearse", "replay"]
