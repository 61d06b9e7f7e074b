"""Placeto (Addanki et al. 2019): a policy that visits every op once and selects its device."""
