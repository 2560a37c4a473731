"""A running stack as views use it: reached over HTTP, started where none runs."""
