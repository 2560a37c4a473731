"""One module for each API that clients speak."""
