"""The trainer's public face, without torch: what other packages may import."""
