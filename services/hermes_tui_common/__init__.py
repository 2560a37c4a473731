"""What every process that serves HTTP shares: errors, settings, keys, serving, streaming."""
