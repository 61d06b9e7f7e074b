"""Running placements: segments compiled for devices, executors that drive them, races between plans, and their simulation."""
