"""HSDAG (Duan et al. 2024): structural features, groups from learned edge scores, and a device for each group."""
