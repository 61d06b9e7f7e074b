"""Results for machines and for people: JSON, CSV and text. Nothing here imports rich or NumPy before it is needed.

May import ``optimizer`` and all below it. Read :mod:`~placeit.report.as_json` first.
"""
