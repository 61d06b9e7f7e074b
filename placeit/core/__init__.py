"""What everything else is written in: graphs, clusters, problems and placements; errors, files, units."""
