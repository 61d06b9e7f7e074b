"""Calls everything in placeit._core with random arguments, most of them wrong: nothing but Python errors may come of it.

Usage: fuzz_core.py FOLDER [CALLS] [SEED], where FOLDER holds the extension, built with AddressSanitizer.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

FOLDER, CALLS, SEED = sys.argv[1], *(int(a) for a in [*sys.argv[2:], 10_000, 0][:2])
sys.path.insert(0, FOLDER)
import _core  # noqa: E402

_SIZES = (0, 1, 2, 3, 4, 5)
_UNSAFE = {"set_entry", "work"}  # called with the address of a function, and until a run is over: below, by themselves
_ENDLESS = {"last", "steps", "evaluations"}  # of a search, which runs for as long as it is asked to
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
            elif hasattr(what, "__nb_signature__"):
                self.calls.append((name, what, None))

    def _add_class(self, name: str, what: type) -> None:
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
        owner = None if of is None else self.pick(self.made[of])
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
                return self.pick(self.made[name])
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
                )
            )

    def run_lanes(self) -> None:
        """Have a thread work on lanes that were prepared somehow, and stopped."""
        for lanes in self.made["Lanes"]:
            lanes.stop()
            lanes.work(0)


def main() -> None:
    fuzz, found = Fuzz(SEED), Counter[str]()
    for i in range(CALLS):
        if i % 500 == 0:
            fuzz.seed_objects()
        found[fuzz.call()] += 1
        if i % 100 == 0:
            fuzz.run_lanes()
    print(  # noqa: T201
        f"{CALLS} calls of {len(fuzz.calls)} functions:", ", ".join(f"{count} {what}" for what, count in found.most_common())
    )


if __name__ == "__main__":
    main()
