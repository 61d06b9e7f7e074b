"""DOPPLER (Yao et al. 2025): one policy selects an op, another one its device."""
