"""The amount of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.papers.doppler.graphs import GRAPHS

__all__ = ["FULL", "QUICK", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """Numbers of graphs, trainings, episodes, seconds and rounds.

    Attributes:
        graphs: the graphs to place.
        seeds: trainings on ChainMM where the paper has five.
        other_seeds: trainings on the other graphs of the main part, and trainings of both policies and of either alone.
        episodes: episodes of a training in simulation, by graph; as in the paper.
        main: episodes of a training on the published graphs, by graph.
        few: episodes of the trainings after a transfer, fewer and more.
        placeto: episodes of Placeto in simulation, which take several times as long as DOPPLER's.
        measured: episodes whose placements are run, at most.
        measured_s: seconds after which a stage of such episodes ends.
        search_s: seconds that searches get.
        samples: placements drawn from trained policies.
        rounds: rounds of a race.
        saved: placements of a training for the comparison of simulator and reality.
    """

    graphs: tuple[str, ...] = GRAPHS
    seeds: int = 5
    other_seeds: int = 2
    episodes: tuple[int, ...] = (4000, 4000, 8000, 8000)
    main: tuple[int, ...] = (60_000,) * 4
    few: tuple[int, int] = (2000, 4000)
    placeto: int = 960
    measured: int = 240
    measured_s: float = 120.0
    search_s: float = 15.0
    samples: int = 64
    rounds: int = 30
    saved: int = 48

    def episodes_of(self, graph: str) -> int:
        """Return the episodes of a training in simulation."""
        return self.episodes[GRAPHS.index(graph)]

    def main_of(self, graph: str) -> int:
        """Return the episodes of a training on a published graph."""
        return self.main[GRAPHS.index(graph)]

    def seeds_of(self, graph: str) -> range:
        """Return the numbers of the trainings on a graph in the main part."""
        return range(self.seeds if graph == "chain-mm" else self.other_seeds)

    def at(self, *, seeds: int | None = None, episodes: int | None = None) -> Sizes:
        """Return sizes with other numbers of trainings, and of episodes in each."""
        sizes = self if seeds is None else replace(self, seeds=seeds, other_seeds=seeds)
        return sizes if episodes is None else sizes._of(episodes)

    def _of(self, episodes: int) -> Sizes:
        return replace(
            self,
            episodes=(episodes,) * len(GRAPHS),
            main=(episodes,) * len(GRAPHS),
            few=(max(1, episodes // 2), episodes),
            placeto=min(self.placeto, episodes),
            measured=min(self.measured, episodes),
        )

    def some(self, graphs: Sequence[str]) -> Sequence[str]:
        """Return the given graphs that are placed; all placed graphs if none of the given ones is."""
        return [graph for graph in graphs if graph in self.graphs] or self.graphs


FULL = Sizes()

QUICK = Sizes(
    graphs=("chain-mm",),
    seeds=1,
    other_seeds=1,
    episodes=(500,) * 4,
    main=(500,) * 4,
    few=(250, 500),
    placeto=64,
    measured=64,
    measured_s=60.0,
    rounds=12,
    saved=16,
)
