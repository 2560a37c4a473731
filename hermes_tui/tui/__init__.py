"""The full-screen view."""
