"""Training of agents: stages, updates, and saved states for resumption."""
