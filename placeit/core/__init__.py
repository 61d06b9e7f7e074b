"""Data structures that all other packages use: graphs, clusters, problems, placements; errors, files, units."""
