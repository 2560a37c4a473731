"""From scored episodes to a loss: pure functions without I/O."""
