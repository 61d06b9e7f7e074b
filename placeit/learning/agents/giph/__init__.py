"""GiPH (Hu et al. 2023): a policy that improves a placement by moving one op at a time."""
