"""Training data: corpora, tokenizers, token files, and who gets which sample.

Which samples belong to which step is a pure function of (seed, step); nothing has to be checkpointed.
"""

from shoal.data.corpus import Corpus, Dataset, load
from shoal.data.order import step_samples

__all__ = ["Corpus", "Dataset", "load", "step_samples"]
