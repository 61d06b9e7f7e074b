"""GiPH, and the guided search that uses it."""
