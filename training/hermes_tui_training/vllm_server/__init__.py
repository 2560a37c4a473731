"""A vLLM server as a process of the stack, from a Python environment of its own."""
