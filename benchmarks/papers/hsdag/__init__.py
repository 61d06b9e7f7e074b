"""HSDAG's experiments (Duan et al. 2024, section 3) on real models and unequal cores."""
