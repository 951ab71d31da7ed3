"""From a job and a cluster to a plan: who does what."""
