"""The experiments. Each module has ``jobs(setup)``, which work is to be done, and ``tell(lab, report, figures)``."""
