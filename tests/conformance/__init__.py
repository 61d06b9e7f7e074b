"""The table of kinds of devices, places and features: declared in ``table.py``, tested cell by cell, shown in a page."""
