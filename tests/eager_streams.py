"""Streams and events of the CPU, which PyTorch does not have, for tests of code that needs some."""

import time

import torch

from placeit.cluster import Device


class Eager:
    """A stream of the CPU, which PyTorch does not have: everything has ended when it has been launched."""

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def wait_event(self, event):
        assert event.recorded

    def query(self):
        return True

    def synchronize(self):
        pass


class Recorded:
    def __init__(self, device, enable_timing=False):
        self.recorded = False
        self.timed, self.at = enable_timing, 0.0

    def record(self, stream):
        self.recorded = True
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        assert self.timed
        assert end.timed
        return (end.at - self.at) * 1e3

    def synchronize(self):
        assert self.recorded


def run_at_once(monkeypatch):
    """Give PyTorch's device ``cpu`` streams and events, as accelerators have them."""
    monkeypatch.setattr(torch, "Stream", Eager)
    monkeypatch.setattr(torch, "Event", Recorded)


def devices(*names):
    """Devices that PyTorch drives, called as it spells them."""
    return [Device(name, kind="torch", runs_on=name) for name in names]
