"""One command per claim that placeit makes: ``python -m benchmarks.<name>``; all of them: ``python -m benchmarks``."""
