"""Running placements: compiled segments, executors, races between plans, and the output check."""
