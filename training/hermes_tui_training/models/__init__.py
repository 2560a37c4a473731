"""Prepares models: download, verification, conversion."""
