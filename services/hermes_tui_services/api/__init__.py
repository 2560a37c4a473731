"""The agent service's public face: what other packages may import."""
