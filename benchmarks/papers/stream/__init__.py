"""The experiments of Ni et al. (2020) on stream graphs."""
