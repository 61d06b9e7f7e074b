"""What things cost: groups, links and plans, measured, corrected by real runs and kept on disk; statistics and traces."""
