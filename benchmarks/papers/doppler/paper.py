"""Published figures, which stand beside ours."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "BEST_KNOWN",
    "FOUND_HERE",
    "LIST_SCHEDULING",
    "TABLE_1",
    "TABLE_2",
    "TABLE_3",
    "TABLE_4",
    "TABLE_5",
    "TABLE_6",
    "TABLE_7",
    "TABLE_8",
    "TABLE_9",
    "ZERO_SHOT_GIPH",
]

BEST_KNOWN = {"chain-mm": 1200.1, "ffnn": 56.7, "llama-block": 166.8, "llama-layer": 122.6}
"""Makespans of the published graphs that are known to be possible, in their unit; training is compared with them."""

FOUND_HERE = {"chain-mm": 1200.07, "ffnn": 56.6958, "llama-block": 166.727, "llama-layer": 122.646}
"""Least makespans that any placer of placeit has found since; search is compared with them."""

LIST_SCHEDULING = {"chain-mm": 1300.0, "ffnn": 84.0, "llama-block": 240.0, "llama-layer": 237.0}
"""Makespans of a list scheduler that places each op where it finishes first."""

ZERO_SHOT_GIPH = {"chain-mm": 1400.0, "ffnn": 70.0, "llama-block": 174.0, "llama-layer": 174.0}
"""Makespans of the GiPH policy that ships with placeit."""

TABLE_1: Mapping[str, Mapping[str, float]] = {
    "chain-mm": {"work conserving": 139.0, "synchronous": 185.3},
    "ffnn": {"work conserving": 50.2, "synchronous": 76.9},
}

TABLE_2: Mapping[str, Mapping[str, float]] = {
    "chain-mm": {
        "one device": 439.9,
        "critical path": 230.4,
        "placeto": 137.1,
        "enumerative": 139.0,
        "sim": 122.5,
        "sys": 123.4,
    },
    "ffnn": {"one device": 148.5, "critical path": 217.8, "placeto": 126.3, "enumerative": 50.2, "sim": 49.9, "sys": 47.4},
    "llama-block": {
        "one device": 462.8,
        "critical path": 230.9,
        "placeto": 411.5,
        "enumerative": 172.7,
        "sim": 191.5,
        "sys": 160.3,
    },
    "llama-layer": {
        "one device": 483.2,
        "critical path": 292.6,
        "placeto": 295.1,
        "enumerative": 174.8,
        "sim": 167.0,
        "sys": 150.6,
    },
}
"""Milliseconds on four P100s, also in the other tables; ``sim`` and ``sys`` are DOPPLER without and with measured rewards."""

TABLE_3 = {
    "chain-mm": {"both": 123.4, "select": 127.0, "place": 121.6},
    "ffnn": {"both": 47.4, "select": 59.1, "place": 63.2},
    "llama-block": {"both": 160.3, "select": 175.6, "place": 172.9},
    "llama-layer": {"both": 150.6, "select": 161.7, "place": 159.5},
}

TABLE_4: Mapping[tuple[str, str], Mapping[str, float]] = {
    ("ffnn", "llama-block"): {"zero": 251.0, "2000": 165.3, "4000": 159.4},
    ("chain-mm", "llama-block"): {"zero": 242.3, "2000": 184.9, "4000": 174.0},
    ("ffnn", "llama-layer"): {"zero": 206.1, "2000": 158.2, "4000": 155.8},
    ("chain-mm", "llama-layer"): {"zero": 338.2, "2000": 164.4, "4000": 156.4},
}

TABLE_5 = (123.2, 119.6, 122.7, 123.9, 121.7)

TABLE_6 = {
    "once per episode": {"ms": 122.5, "episodes": 3425, "passings": 3425},
    "once per step": {"ms": 121.7, "episodes": 963, "passings": 107_856},
}

TABLE_7 = {"placeto, imitating first": 99.0, "placeto": 126.3, "doppler": 49.9}

TABLE_8 = {
    "chain-mm": {"one device": 439.8, "critical path": 310.0, "placeto": 243.5, "enumerative": 133.5, "doppler": 122.6},
    "ffnn": {"one device": 148.2, "critical path": 225.8, "placeto": 126.8, "enumerative": 49.2, "doppler": 46.0},
    "llama-block": {"one device": 465.1, "critical path": 216.8, "placeto": 433.5, "enumerative": 233.8, "doppler": 190.2},
    "llama-layer": {"one device": 482.6, "critical path": 292.5, "placeto": 302.1, "enumerative": 172.8, "doppler": 154.0},
}

TABLE_9 = {
    "chain-mm": {"one device": 83.5, "critical path": 69.6, "enumerative": 33.5, "doppler": 32.1},
    "ffnn": {"one device": 51.4, "critical path": 50.0, "enumerative": 20.0, "doppler": 16.2},
    "llama-block": {"one device": 154.4, "critical path": 117.6, "enumerative": 109.6, "doppler": 109.7},
    "llama-layer": {"one device": 105.0, "critical path": 105.4, "enumerative": 97.5, "doppler": 90.6},
}
