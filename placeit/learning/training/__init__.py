"""Training of agents: stages, updates, and states for resumption."""
