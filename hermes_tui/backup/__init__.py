"""Copies of a run directory: made while it runs, restored into an empty one."""
