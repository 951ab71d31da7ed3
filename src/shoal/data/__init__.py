"""Training data: corpora, tokenizers, token files, and who gets which sample.

Which samples belong to which step is a pure function of (seed, step); nothing has to be checkpointed.
"""

from shoal.data.corpus import Corpus, Dataset
from shoal.data.order import share, step_samples
from shoal.data.sources import load

__all__ = ["Corpus", "Dataset", "load", "share", "step_samples"]
