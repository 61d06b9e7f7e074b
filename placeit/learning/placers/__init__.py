"""Placers that learn or have learned, one file each.

They are found by name as those of plug-ins are. No module here imports PyTorch before a placer is asked, so that
``placeit optimize --help`` lists them at once.
"""
