"""Streams and events of the CPU, which PyTorch does not have, for tests of code that needs some."""

import threading
import time
from queue import SimpleQueue

import torch

from placeit.core.address import Address
from placeit.core.cluster import Device


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


class Driver:
    """A thread that lets events happen, some time after they were recorded, and from which nothing may be called.

    Attributes:
        told: how many events it has let happen.
        calls: what was called from it, which is forbidden.
        fail: what waiting for an event raises.
    """

    def __init__(self):
        self.told, self.calls, self.fail = 0, [], None
        self._ahead = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while (happened := self._ahead.get()) is not None:
            time.sleep(1e-4)
            self.told += 1
            happened.release()

    def will(self, happened):
        self._ahead.put(happened)

    def called(self, what):
        if threading.current_thread() is self._thread:
            self.calls.append(what)

    def close(self):
        self._ahead.put(None)
        self._thread.join()


def run_late(monkeypatch):
    """The same, but a driver lets events happen later; to be closed. Returns it."""
    driver = Driver()

    class Late(Eager):
        def wait_event(self, event):
            driver.called("wait_event")

        def query(self):
            driver.called("query")
            return True

        def synchronize(self):
            driver.called("synchronize")
            event = LateEvent(self.device)
            event.record(self)
            with event.ahead:
                pass

    class LateEvent(Recorded):
        ahead = None

        def record(self, stream):
            driver.called("record")
            super().record(stream)
            self.ahead = threading.Lock()
            self.ahead.acquire()
            driver.will(self.ahead)

        def synchronize(self):
            driver.called("synchronize")
            super().synchronize()
            with self.ahead:
                pass
            if driver.fail is not None:
                raise driver.fail

    monkeypatch.setattr(torch, "Stream", Late)
    monkeypatch.setattr(torch, "Event", LateEvent)
    return driver


def devices(*names):
    """Devices that PyTorch drives, called as it spells them."""
    return [Device(name, kind="torch", address=Address(name)) for name in names]
