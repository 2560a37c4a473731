"""Messages to token ids, and sampled token ids back to messages."""
