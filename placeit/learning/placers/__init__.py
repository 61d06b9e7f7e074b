"""Placers that learn or have learned, one file each.

They are found by their entry points, like placers of plug-ins. No module here imports PyTorch before a placer is asked, so
that ``placeit placers`` lists them at once.
"""
