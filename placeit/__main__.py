"""Entry point of ``placeit`` and ``python -m placeit``; until it has loaded anything, Ctrl-C simply ends the process."""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from placeit.cli import main as run  # a second of imports, in which a KeyboardInterrupt would be a traceback

    run()


if __name__ == "__main__":
    main()
