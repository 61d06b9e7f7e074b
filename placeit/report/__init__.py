"""Results for people and for files: text, CSV, figures and pages. Nothing here imports rich or NumPy before it is needed.

May import ``optimizer`` and all below it. Read :mod:`~placeit.report.as_text` first.
"""
