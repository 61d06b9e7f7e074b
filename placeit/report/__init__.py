"""Results for people and for files: text, CSV, figures and pages. No module here imports rich or NumPy before it is needed.

May import ``optimizer`` and all layers below it. Read :mod:`~placeit.report.as_text` first, which prints searches.
"""
