"""Runs jobs in worker processes and keeps their outcomes in a folder."""

from __future__ import annotations

import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Report
from placeit.core.errors import PlaceitError

__all__ = ["Job", "JobError", "Lab", "Outcome", "Setup", "column", "read_outcome", "tell"]

Outcome: TypeAlias = Mapping[str, NDArray[Any]]
Sizes = TypeVar("Sizes")


@dataclass(frozen=True)
class Setup(Generic[Sizes]):
    """Common settings of all jobs of a benchmark.

    Attributes:
        sizes: amount of work.
        seed: seed of everything random.
        folder: folder of trained policies and outcomes.
    """

    sizes: Sizes
    seed: int
    folder: Path


class Job(ABC):
    """A piece of work; a frozen dataclass.

    Attributes:
        alone: whether nothing else may run at the same time, because the job measures time.
    """

    alone: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the job's files."""

    @property
    def needs(self) -> Sequence[Job]:
        """Jobs that have to be done before."""
        return ()

    @property
    def big(self) -> bool:
        """Whether the job takes gigabytes of memory, so that two such jobs do not run at the same time."""
        return False

    @abstractmethod
    def run(self, setup: Any) -> Outcome:
        """Do the job, and return its outcome."""


_COMMIT, _UNKNOWN = "commit", "unknown"  # key of the commit in the file of an outcome; its value if the commit is not known


class JobError(PlaceitError):
    """A part asked for the outcome of a job that failed."""


def read_outcome(job: Job, setup: Setup[Any]) -> Outcome:
    """Return the outcome of a finished job, such as one that another job needs."""
    return _read(job, setup)[0]


def _read(job: Job, setup: Setup[Any]) -> tuple[Outcome, str]:
    """Return the outcome of a finished job, and the commit by which it was done."""
    with np.load(_file(job, setup)) as file:
        outcome = dict(file)
    return outcome, str(outcome.pop(_COMMIT, _UNKNOWN))


@dataclass
class Lab:
    """Outcomes of jobs, by job.

    Attributes:
        setup: common settings of all jobs.
        workers: processes; 0 to work in this one.
        commit: commit by which the remaining jobs are done; None if it is not known.
        outcomes: outcomes of the jobs that were done.
        commits: commits by which they were done; a folder may have outcomes of earlier ones.
    """

    setup: Setup[Any]
    workers: int
    commit: str | None = None
    outcomes: dict[Job, Outcome] = field(default_factory=dict)
    commits: set[str] = field(default_factory=set)

    def __getitem__(self, job: Job) -> Outcome:
        if job not in self.outcomes:
            raise JobError(f"'{job.name}' failed; its error is above.")
        return self.outcomes[job]

    def run(self, jobs: Sequence[Job]) -> None:
        """Do jobs and the jobs that they need, unless the folder has their outcomes; failures are reported and left out."""
        self.setup.folder.mkdir(parents=True, exist_ok=True)
        todo = _with_needs(jobs)
        for job in list(todo):
            if _file(job, self.setup).exists():
                self._read(job)
                todo.remove(job)
        self._began, self._done, self._count = time.perf_counter(), 0, len(todo)
        if self.outcomes:
            _tell(
                f"{len(self.outcomes)} outcomes are in {self.setup.folder} already, of commit {', '.join(sorted(self.commits))}"
            )
        with self._pool() as pool:
            self._run([job for job in todo if not job.alone], pool, max(1, self.workers))
        with ThreadPoolExecutor(1, initializer=_prepare) as pool:
            self._run([job for job in todo if job.alone], pool, 1)

    def _read(self, job: Job) -> None:
        self.outcomes[job], commit = _read(job, self.setup)
        self.commits.add(commit)

    def _pool(self) -> Executor:
        if not self.workers:
            return ThreadPoolExecutor(1, initializer=_prepare)
        return ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"), initializer=_prepare)

    def _run(self, todo: list[Job], pool: Executor, width: int) -> None:
        running: dict[Future[float], Job] = {}
        while todo or running:
            waiting = set(todo) | set(running.values())
            for job in [job for job in todo if waiting.isdisjoint(job.needs)]:
                if len(running) == width:
                    break
                if job.big and any(other.big for other in running.values()):
                    continue
                todo.remove(job)
                if all(need in self.outcomes for need in job.needs):
                    running[pool.submit(_do, job, self.setup, self.commit or _UNKNOWN)] = job
                else:
                    self._report(job, "left out: what it needs failed")
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                error = future.exception()
                if error is not None:
                    self._report(job, "failed:\n" + "".join(traceback.format_exception(error)))
                    continue
                self._read(job)
                self._report(job, f"{future.result():.1f} s")

    def _report(self, job: Job, what: str) -> None:
        self._done += 1
        _tell(f"[{time.perf_counter() - self._began:7.1f} s] {self._done}/{self._count} {job.name}: {what}")


def tell(lab: Lab, parts: Mapping[str, ModuleType], chosen: Sequence[str], report: Report, *arguments: object) -> list[str]:
    """Let each part report its outcomes (``tell(lab, report, ...)``), and mark its claims; return the parts that failed."""
    failed = []
    for part in chosen:
        claimed = len(report.claims)
        if not _attempt(f"The part '{part}'", parts[part].tell, lab, report, *arguments):
            failed.append(part)
        for claim in report.claims[claimed:]:
            claim["part"] = part
    for part in failed:
        report.note(f"The part '{part}' failed; its error is above.")
    return failed


def _attempt(what: str, function: object, *arguments: object) -> bool:
    """Call a function; if it fails, print the error and return False."""
    with ThreadPoolExecutor(1) as thread:
        error = thread.submit(function, *arguments).exception()  # type: ignore[arg-type]
    if error is not None:
        _tell(f"{what} failed:\n" + "".join(traceback.format_exception(error)))
    return error is None


def column(name: str) -> str:
    """Return a policy's name in the form of a column's name."""
    return name.replace(",", "").replace("-", "_").replace(" ", "_")


def _with_needs(jobs: Sequence[Job]) -> list[Job]:
    """Return each job once, with the jobs that others need first."""
    needed = dict.fromkeys(need for job in jobs for need in job.needs)
    return list(needed | dict.fromkeys(jobs))


def _do(job: Job, setup: Setup[Any], commit: str) -> float:
    began = time.perf_counter()
    outcome = job.run(setup)
    path = _file(job, setup)
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **outcome, **{_COMMIT: np.array(commit)})
    partial.replace(path)
    return time.perf_counter() - began


def _file(job: Job, setup: Setup[Any]) -> Path:
    return setup.folder / f"{job.name}.npz"


def _prepare() -> None:
    import torch

    from placeit.core.memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
