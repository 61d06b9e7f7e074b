"""Calls everything in placeit._core with random arguments, most of them wrong: nothing but Python errors may come of it.

A second part calls the same objects from several threads at once, and solves small problems some of whose costs are wrong.

Usage: fuzz_core.py FOLDER [CALLS] [SEED], where FOLDER holds the extension, built with a sanitizer.
"""

from __future__ import annotations

import math
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

FOLDER, CALLS, SEED = sys.argv[1], *(int(a) for a in [*sys.argv[2:], 10_000, 0][:2])
sys.path.insert(0, FOLDER)
import _core  # noqa: E402

_SIZES = (0, 1, 2, 3, 4, 5)
# called with the address of a function or with memory that the caller keeps, or until a run is over, which may be never, or as
# Python exits, after which threads wait for ever
_UNSAFE = {"set_entry", "work", "run", "wait", "watch", "exit", "leave", "RequestQueue", "Submission"}
_ENDLESS = {"last", "steps", "evaluations"}  # of a search, which runs for as long as it is asked to
_STRANGE = (math.nan, -1.0, -math.inf, math.inf, 1e308, 1e99, -0.0, 5e-324)
_THREADS = 4
_DTYPE = re.compile(r"numpy\.typing\.NDArray\[numpy\.(\w+)\]")


class Fuzz:
    """Random calls, on objects that earlier calls have made."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.made: dict[str, list[Any]] = {}
        self.calls: list[tuple[str, Callable[..., Any], str | None]] = []
        for name, what in vars(_core).items():
            if isinstance(what, type):
                self._add_class(name, what)
            elif hasattr(what, "__nb_signature__") and name not in _UNSAFE:
                self.calls.append((name, what, None))

    def _add_class(self, name: str, what: type) -> None:
        if name in _UNSAFE:
            return
        members = [getattr(what, member) for member in dir(what) if isinstance(getattr(what, member), what)]
        self.made[name] = members  # of an enumeration
        if getattr(what.__init__, "__nb_signature__", None):
            self.calls.append((name, what, None))
        for member in vars(what):
            method = getattr(what, member)
            if member.startswith("_") or member in _UNSAFE or isinstance(method, what):
                continue
            self.calls.append((f"{name}.{member}", method, name))

    def call(self) -> str:
        """Make one call and return the name of what came of it."""
        _, what, of = self.pick([call for call in self.calls if call[2] is None or self.made[call[2]]])
        owner = None if of is None else self.pick([*self.made[of]])  # a copy: other threads may add to the list
        try:
            if hasattr(what, "__get__") and not hasattr(what, "__nb_signature__") and owner is not None:
                made = what.__get__(owner)  # an attribute
            else:
                signatures = (what.__init__ if isinstance(what, type) else what).__nb_signature__
                signature = self.pick(signatures)[0]
                arguments = self.arguments(signature)
                made = what(*arguments) if owner is None or "(self" not in signature else what(owner, *arguments)
        except MemoryError:
            return "MemoryError"
        except Exception as error:  # noqa: BLE001
            return type(error).__name__
        for one in made if isinstance(made, list | tuple) else [made]:
            known = self.made.get(type(one).__name__)
            if known is not None and hasattr(_core, type(one).__name__):
                known.append(one)
                del known[:-20]
        return "result"

    def arguments(self, signature: str) -> list[Any]:
        """Arguments for a signature: of the right types, mostly."""
        depth, start, parts = 0, signature.index("(") + 1, list[str]()
        for i in range(start, len(signature)):
            character = signature[i]
            if (character in ",)" and depth == 0) or (character == ")" and depth < 0):
                parts.append(signature[start:i])
                start = i + 1
                if character == ")":
                    break
            depth += (character in "([") - (character in ")]")
        split = [part.partition("=")[0].partition(":") for part in parts]
        return [self.value(kind.strip(), endless=name.strip() in _ENDLESS) for name, _, kind in split if kind]

    def value(self, kind: str, endless: bool = False) -> Any:
        rng = self.rng
        if rng.random() < 0.04:
            return self.pick([None, "text", -1, math.nan, object(), [1, 2], {}, b"bytes", 2**63, np.zeros(3, "datetime64[s]")])
        if match := _DTYPE.search(kind):
            return self.array(match[1])
        if kind in ("int", "float"):
            small = [int(rng.integers(-1, 6)), int(rng.integers(0, 3)), 1]
            if endless:
                return self.pick(small)
            return (
                self.pick([*small, *small, 2**31 - 1, -(2**31)])
                if kind == "int"
                else self.pick([*small, 0.5, math.inf, math.nan])
            )
        if kind == "bool":
            return bool(rng.random() < 0.5)
        if "Callable" in kind:
            return int
        for name in re.findall(r"_core\.(\w+)", kind):
            if self.made.get(name):
                return self.pick([*self.made[name]])
        return None

    def array(self, dtype: str) -> np.ndarray:
        rng = self.rng
        dimensions = int(rng.choice([1, 2, 2, 1, 1, 3, 0], p=[0.4, 0.3, 0.1, 0.1, 0.05, 0.03, 0.02]))
        shape = [int(rng.choice(_SIZES)) for _ in range(dimensions)]
        values = rng.integers(-1, 5, shape) if rng.random() < 0.3 else rng.integers(0, 2, shape)
        made = np.asarray(values).astype(dtype)
        if dtype.startswith("float") and made.size and rng.random() < 0.2:
            made.flat[0] = self.pick([math.nan, math.inf, -math.inf, 1e30, -1.0])
        elif dtype == "int32" and made.size and rng.random() < 0.1:
            made.flat[-1] = self.pick([2**31 - 1, -(2**31), -1])
        spoil = rng.random()
        if spoil < 0.03:
            with np.errstate(all="ignore"):
                return made.astype(self.pick(["float32", "int64", "uint8", ">f8", "complex128", "bool", "float16"]))
        if spoil < 0.06:
            return np.asfortranarray(made) if made.ndim > 1 else made[::-1]
        if spoil < 0.08:
            return np.repeat(made, 2, axis=0)[::2] if made.ndim else made
        if spoil < 0.10:
            made.flags.writeable = False
        if spoil > 0.98:
            raw = np.zeros(made.nbytes + 1, np.uint8)[1:]
            return raw.view(made.dtype) if made.ndim == 1 and made.size else made  # not aligned
        return made

    def pick(self, values: list[Any]) -> Any:
        return values[int(self.rng.integers(len(values)))]

    def seed_objects(self) -> None:
        """Make valid problems, of which everything else depends."""
        for ops, devices, edges in ((1, 1, []), (3, 2, [(0, 1), (0, 2), (1, 2)]), (4, 2, [(0, 1), (2, 3)])):
            pairs, count = np.ones((devices, devices)), len(edges)
            self.made["Tables"].append(
                _core.Tables(
                    np.ones((ops, devices)),
                    np.array(edges, np.int32).reshape(-1, 2),
                    np.ones(count),
                    np.arange(count, dtype=np.int32),
                    pairs,
                    pairs,
                    np.zeros((count, devices)),
                    np.ones(ops),
                    np.full(devices, np.inf),
                    np.zeros((devices, devices), np.bool_),
                    np.zeros((0, devices), np.bool_),
                    np.ones(devices + 1),
                    np.arange(ops, dtype=np.int32),
                    np.array([[0.0, 1.0, 0.0], [0.0, 1.0, ops - 1.0]]),
                )
            )

    def run_all(self) -> None:
        """Stop whatever has begun, have lanes run what they were given, and run each executor for a moment."""
        for lane in self.made["Lane"]:
            lane.close()
            lane.work()
        for executor in self.made["Executor"]:
            executor.stop()
            try:
                executor.wait(time.perf_counter() + 0.01)
                executor.run(1, 2, time.perf_counter() + 0.01)
            except (RuntimeError, ValueError):
                pass


def at_once(calls: list[Callable[[], object]]) -> Counter[str]:
    """Make calls on a thread each and return what came of them."""
    found = Counter[str]()

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
            found["result"] += 1
        except (IndexError, MemoryError, RuntimeError, ValueError) as error:
            found[type(error).__name__] += 1

    threads = [threading.Thread(target=attempt, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def solve(rng: np.random.Generator) -> Counter[str]:
    """Solve a random problem, in which some costs are no costs, from several threads at once."""
    ops, devices = int(rng.integers(2, 30)), int(rng.integers(1, 5))
    edges = [(u, v) for v in range(ops) for u in range(v) if rng.random() < 0.3]
    count, pairs = len(edges), (devices, devices)
    costs = {
        "compute": rng.random((ops, devices)),
        "edge_bytes": rng.random(count),
        "latency": rng.random(pairs),
        "bandwidth": rng.random(pairs) + 0.1,
        "cut": rng.random((count, devices)) * (rng.random() < 0.5),
        "param_bytes": rng.random(ops),
        "memory": np.full(devices, np.inf if rng.random() < 0.5 else float(ops)),
        "host": rng.random(devices + 1) * (rng.random() < 0.5),
    }
    for name in rng.permutation([*costs])[: rng.integers(0, 3)]:
        some = rng.random(costs[name].shape) < rng.choice([0.05, 0.4])
        costs[name][some] = rng.choice(_STRANGE)
    links = np.column_stack([np.array(edges, np.int32).reshape(-1, 2), np.arange(count, dtype=np.int32)])
    order = np.argsort(links[:, 0], kind="stable")
    nothing, apart, free = np.zeros((0, devices), np.bool_), np.zeros(pairs, np.bool_), np.zeros(devices)
    try:
        tables = _core.Tables(
            edges=np.ascontiguousarray(links[:, :2]),
            edge_tensor=np.arange(count, dtype=np.int32),
            conflicts=apart,
            cliques=nothing,
            order=np.arange(ops, dtype=np.int32),
            tied=np.zeros((0, 3)),
            **costs,
        )
        groups = _core.Groups(
            edges=np.ascontiguousarray(links[order]),
            tensor_bytes=costs["edge_bytes"],
            core=costs["compute"],
            cut_per_byte=np.zeros((ops, devices)),
            dispatch=free,
            load=rng.random((ops, devices)),
            beside=np.ones(pairs),
            conflicts=apart,
            read=rng.random(devices),
            latency=costs["latency"],
            bandwidth=costs["bandwidth"],
            passthrough=np.zeros(ops, np.bool_),
            cliques=nothing,
            host=costs["host"],
            in_flight=float(rng.choice([0.0, 1.0, 8.0, np.inf])),
            outside=free,
        )
        options = _core.Options(
            _core.LinkModel(int(rng.integers(2))), _core.Discipline(int(rng.integers(2))), _core.Memory(int(rng.integers(3)))
        )
        place, able = np.zeros(ops, np.int32), np.ones((ops, devices), np.bool_)
        placements, seconds = rng.integers(0, devices, (8, ops)).astype(np.int32), np.zeros(8)
        model = _core.CostModel(tables, np.zeros(0), options)
        walk = _core.Annealing(model, place, 1.0, int(rng.integers(99))) if devices > 1 else None
        exact = _core.ExactSearch(
            tables, np.zeros(ops), np.arange(devices, dtype=np.int32), nothing, np.full(devices, 1 / devices), False
        )
        generator = np.random.default_rng(0).bit_generator
        search = _core.SegmentSearch(groups, place, able, np.ones(ops), np.full(devices, np.inf), 10**6, 0.1, generator)
    except ValueError:
        return Counter(refused=1)
    best = np.empty(ops, np.int32)
    calls: list[Callable[[], object]] = [
        lambda: exact.next(np.empty((99, ops), np.int32), np.inf, 300),
        lambda: exact.over,
        lambda: search.advance(20),
        lambda: search.write_best(best),
        lambda: groups.merge(place, np.empty(ops, np.int32)),
    ]
    if walk is not None:
        calls += [lambda: walk.run(0, 300, 300), lambda: walk.seconds, lambda: walk.best(best)]
    found = at_once([lambda: _core.makespans(tables, placements, np.zeros((0, ops)), options, 0, free[:1], 1, 2, seconds)])
    if np.isnan(seconds).any():
        raise AssertionError(f"A makespan is NaN: {costs}")
    return found + at_once(2 * calls)


def main() -> None:
    fuzz, found = Fuzz(SEED), Counter[str]()
    for i in range(CALLS):
        if i % 500 == 0:
            fuzz.seed_objects()
        found[fuzz.call()] += 1
        if i % 100 == 0:
            fuzz.run_all()
    report(f"{CALLS} calls of {len(fuzz.calls)} functions", found)

    others = [Fuzz(SEED + 1 + i) for i in range(_THREADS)]
    for other in others:
        other.made = fuzz.made
    fuzz.seed_objects()
    report(f"{CALLS} calls from {_THREADS} threads", at_once([lambda one=one: several(one) for one in others]))

    rng, problems = np.random.default_rng(SEED), CALLS // 20
    report(f"{problems} problems, each from several threads", sum((solve(rng) for _ in range(problems)), Counter[str]()))


def several(fuzz: Fuzz) -> None:
    for _ in range(CALLS // _THREADS):
        fuzz.call()


def report(what: str, found: Counter[str]) -> None:
    print(f"{what}:", ", ".join(f"{count} {name}" for name, count in found.most_common()))  # noqa: T201


if __name__ == "__main__":
    main()
