"""Feasible placements, with respect to supported ops and memory: sampling, packing and repair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import InfeasibleError
from placeit.core.problem import Problem
from placeit.planning.room import of_one_op, too_little

__all__ = ["FEWER_STEPS", "PACKING_STEPS", "fits", "has_room", "pack", "packed", "random_placements", "repair"]

PACKING_STEPS, FEWER_STEPS = 200_000, 2_000
"""Maximum steps of packing: to find a placement, and to estimate how much more memory would suffice."""
_MEMORY_FACTORS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0)  # tried in turn if no placement fits, to advise on memory


def fits(problem: Problem, placement: NDArray[np.int32]) -> bool:
    """Return whether every device can run the ops placed on it and hold their weights."""
    if not np.isfinite(problem.compute[np.arange(len(problem)), placement]).all():
        return False
    return bool((problem.held(placement[None]) <= problem.memory).all())


def has_room(problem: Problem, placement: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return whether each device has room for each op's weights if only this op moves there, ``bool[V, D]``."""
    needed = np.repeat(problem.param_bytes[:, None], problem.devices, axis=1)
    for size, ops in problem.shared:
        holds = np.bincount(placement[list(ops)], minlength=problem.devices) > 0
        needed[ops[0]] -= size * holds
        needed[list(ops[1:])] += size * ~holds
    room: NDArray[np.bool_] = problem.held(placement[None]) + needed <= problem.memory
    return room


def random_placements(problem: Problem, count: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Draw random placements: each op on one of its feasible devices, uniformly; repaired if memory is exceeded.

    Returns:
        ``int32[count, V]``.

    Raises:
        InfeasibleError: no feasible placement is found.
    """
    choices = problem.feasible.sum(axis=1)
    options = np.argsort(~problem.feasible, axis=1, kind="stable")  # feasible devices first in each row
    rows = np.arange(len(problem))
    placements = np.empty((count, len(problem)), np.int32)
    for i in range(count):
        placements[i] = repair(problem, options[rows, rng.integers(choices)])
    return placements


def repair(problem: Problem, placement: NDArray[np.int32]) -> NDArray[np.int32]:
    """Make a placement feasible with few moves; a feasible placement is returned unchanged.

    Ops that cannot run on their device move to their fastest device. Then ops leave each overfull device, in the order of the
    time lost per byte freed. If the result still does not fit, the placement of :func:`pack` is returned.

    Raises:
        InfeasibleError: no feasible placement is found.
    """
    if fits(problem, placement):
        return placement
    rows = np.arange(len(problem))
    able = np.isfinite(problem.compute[rows, placement])
    fixed: NDArray[np.int32] = np.where(able, placement, problem.compute.argmin(axis=1)).astype(np.int32)
    used = problem.held(fixed[None])[0]
    for device in np.flatnonzero(used > problem.memory).tolist():
        leaving = rows[(fixed == device) & (problem.param_bytes > 0)]
        lost = (problem.compute[leaving] - problem.compute[leaving, device][:, None]) / problem.param_bytes[leaving][:, None]
        lost[:, device] = np.inf
        for flat in np.argsort(lost, axis=None, kind="stable").tolist():
            if used[device] <= problem.memory[device]:
                break
            row, to = divmod(flat, problem.devices)
            op, size = leaving[row], problem.param_bytes[leaving[row]]
            if lost[row, to] < np.inf and fixed[op] == device and used[to] + size <= problem.memory[to]:
                fixed[op] = to
                used[device] -= size
                used[to] += size
    return fixed if fits(problem, fixed) else pack(problem)


def pack(problem: Problem) -> NDArray[np.int32]:
    """Return a placement that fits into memory, regardless of cost: large weights first, with backtracking.

    Returns:
        ``int32[V]``.

    Raises:
        InfeasibleError: no placement fits, or none was found in a limited number of steps (packing is NP-hard). The message
            tells how much more memory would suffice.
    """
    if (found := packed(problem, PACKING_STEPS)) is not None:
        return found
    size, names, memory = problem.param_bytes, problem.device_names, problem.memory
    why, advice = of_one_op(problem.op_names, size, problem.feasible, names, memory), ""
    for factor in _MEMORY_FACTORS if not why else ():
        if packed(replace(problem, memory=memory * factor), FEWER_STEPS) is not None:
            advice = f"With {factor:g} times the memory of each device, they would fit."
            break
    raise InfeasibleError(too_little(size, names, memory, why, *([advice] if advice else [])))


def packed(problem: Problem, steps: int) -> NDArray[np.int32] | None:
    """Return a placement that fits into memory, as :func:`pack` does; None if none was found within ``steps`` steps."""
    shared_by: list[list[int]] = [[] for _ in range(len(problem))]  # numbers of the shared weights that each op reads
    own, total = problem.param_bytes.copy(), problem.param_bytes.copy()
    sizes, readers = [size for size, _ in problem.shared], np.zeros((len(problem.shared), problem.devices), int)
    for w, (size, ops) in enumerate(problem.shared):
        own[ops[0]] -= size
        total[list(ops[1:])] += size
        for v in ops:
            shared_by[v].append(w)

    def needed(op: int) -> NDArray[np.float64]:
        """Return the bytes that an op adds on each device, ``float64[D]``, without shared weights that are there already."""
        added = np.full(problem.devices, own[op])
        for w in shared_by[op]:
            added += sizes[w] * (readers[w] == 0)
        return added

    placement: NDArray[np.int32] = problem.compute.argmin(axis=1).astype(np.int32)
    heavy = np.flatnonzero(total > 0)
    heavy = heavy[np.lexsort((problem.feasible[heavy].sum(axis=1), -total[heavy]))].tolist()
    room = problem.memory.copy()
    untried: list[list[int]] = [[] for _ in heavy]  # devices left to try, for each op up to the current depth
    depth, descending = 0, True
    for _ in range(steps):
        if depth == len(heavy):
            return placement
        op = heavy[depth]
        if descending:
            added = needed(op)
            able = np.flatnonzero(problem.feasible[op] & (added <= room))
            untried[depth] = able[np.lexsort((problem.compute[op, able], added[able]))[::-1]].tolist()
        else:
            readers[shared_by[op], placement[op]] -= 1
            room[placement[op]] += needed(op)[placement[op]]
        if untried[depth]:
            device = untried[depth].pop()
            placement[op] = device
            room[device] -= needed(op)[device]
            readers[shared_by[op], device] += 1
            depth, descending = depth + 1, True
        elif depth == 0:
            break
        else:
            depth, descending = depth - 1, False
    return None
