"""From a reward to served weights."""
