"""The experiments. Each module has ``jobs(setup)``, the work to do, and ``tell(lab, report, figures)``, which reports it."""
