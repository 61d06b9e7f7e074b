"""Run a command on an emulated ARM board; see :mod:`tests.arm_board.build`."""

from tests.arm_board.build import main

main()
