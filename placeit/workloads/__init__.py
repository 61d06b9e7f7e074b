"""What there is to place: generated task graphs and device networks, case studies, and models built from their publications."""
