"""Turns messages into token ids, and sampled token ids back into messages."""
