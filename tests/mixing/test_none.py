"""Without mixing every worker trains alone."""

from __future__ import annotations

import numpy as np

import reference
from mixing.harness import Problem, Setting, adamw, train
from shoal.mixing.none import Alone


def test_every_worker_follows_its_own_optimizer() -> None:
    problem = Problem(3)
    run = train(problem, Setting(mixing=Alone, topology=None, optimizer=adamw))
    for i in range(3):
        want = reference.all_reduce(
            problem.start(i),
            lambda t, _, x, i=i: problem.gradient(t, i, x),
            reference.AdamW(weight_decay=0.1),
            lr=lambda t: 0.05,
            steps=6,
            samples=[1.0],
        )
        np.testing.assert_allclose(np.stack([x[i] for x in run.xs]), np.stack(want), rtol=0, atol=1e-12)


def test_nothing_is_sent() -> None:
    run = train(Problem(3), Setting(mixing=Alone, topology=None))
    assert not any(span.lane == "send" for trace in run.simulation.traces.values() for span in trace.spans)
