"""Settings: where they come from, what they mean, and errors in them."""
