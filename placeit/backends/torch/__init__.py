"""PyTorch modules, exported programs, and segments cut out of them.

May import ``devices`` and ``core``, and PyTorch, which is an extra. Read :mod:`~placeit.backends.torch.model`
first.
"""
