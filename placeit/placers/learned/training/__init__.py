"""Training of agents: stages, updates, and states that training goes on from."""
