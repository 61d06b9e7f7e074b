"""The command ``placeit train``."""
