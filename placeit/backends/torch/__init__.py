"""PyTorch modules, exported programs and tensor programs, and segments cut out of them.

May import ``workloads``, ``devices`` and ``core``, and PyTorch, which is an extra. Read :mod:`~placeit.backends.torch.model`
first.
"""
