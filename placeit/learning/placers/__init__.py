"""Placers with learned policies, one file each.

They are found by their entry points, like placers of plug-ins. No module here imports PyTorch before a placer is used, so that
``placeit placers`` lists them without delay.
"""
