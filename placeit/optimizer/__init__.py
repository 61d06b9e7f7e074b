"""The search for a placement under a budget: candidates, races between them, and the decision."""
