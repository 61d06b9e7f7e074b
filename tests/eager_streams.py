"""Streams and events of the CPU, which PyTorch does not have, for tests of code that needs some."""


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
    def __init__(self, device):
        self.recorded = False

    def record(self, stream):
        self.recorded = True

    def synchronize(self):
        assert self.recorded
