"""Run a command with emulated Intel GPUs; see :mod:`tests.emulated_gpu.build`."""

from tests.emulated_gpu.build import main

main()
