"""The amount of work."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """Numbers of trainings, problems, updates and tests.

    Attributes:
        seeds: trainings of GiPH and Placeto on random graphs, each on different problems.
        updates: updates of GiPH and its variants.
        placeto_updates: updates of Placeto.
        problems: problems of an update.
        paper_episodes: episodes of the paper's REINFORCE, one problem each.
        train: problems to train on, at most; None for the paper's numbers.
        held_out: further problems, on which trainings are evaluated.
        evaluations: evaluations of a training, besides the one before it.
        tests: test problems of random graphs.
        recurrent_tests: test problems of deep-learning graphs.
        fusion_tests: test problems of the case study.
        budget_tests: test problems of each kind on which searches get equal evaluations or equal seconds.
        hdp_cases: test problems that HDP is trained on, one after the other.
        hdp_updates: most updates of such a training, which ends earlier if 100 bring no better placement.
        churn_graphs: task graphs on the changing network.
        churn_changes: changes of the network.
        hdp_churn_graphs: number of these graphs that HDP is trained on for each network.
        relocations: network changes of the case study for which relocation costs are counted.
        timed: problems on which time is measured.
        timed_tasks: tasks of each of these, on 20 devices.
        timed_sizes: tasks of further problems, on which GiPH is timed.
        max_tasks: most tasks of a random graph.
    """

    seeds: int = 3
    updates: int = 80
    placeto_updates: int = 80
    problems: int = 6
    paper_episodes: int = 200
    train: int | None = None
    held_out: int = 16
    evaluations: int = 3
    tests: int = 100
    recurrent_tests: int = 40
    fusion_tests: int = 80
    budget_tests: int = 40
    hdp_cases: int = 30
    hdp_updates: int = 1000
    churn_graphs: int = 20
    churn_changes: int = 10
    hdp_churn_graphs: int = 4
    relocations: int = 30
    timed: int = 2
    timed_tasks: int = 40
    timed_sizes: tuple[int, ...] = (10, 20, 80, 160)
    max_tasks: int = 100


FULL = Sizes()

QUICK = Sizes(
    seeds=1,
    updates=45,
    placeto_updates=40,
    problems=6,
    paper_episodes=40,
    timed_sizes=(20,),
    train=60,
    held_out=8,
    evaluations=3,
    tests=40,
    recurrent_tests=16,
    fusion_tests=16,
    budget_tests=8,
    hdp_cases=2,
    hdp_updates=60,
    churn_graphs=5,
    churn_changes=3,
    hdp_churn_graphs=1,
    relocations=8,
    timed=1,
    max_tasks=40,
)
