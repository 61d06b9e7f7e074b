"""How long placements take, without running them: the rules of execution, compiled, and objectives of what they say."""
