"""From ops to what runs as one program: groups of ops, and segments of groups."""
