"""From ops to compiled programs: groups of ops, and segments of groups."""
