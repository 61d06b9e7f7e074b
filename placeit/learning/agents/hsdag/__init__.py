"""HSDAG: features of structure, groups found by learned edge scores, and a device for each group."""
