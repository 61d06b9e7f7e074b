"""DOPPLER (Yao et al. 2025): one policy selects an op, another policy selects its device."""
