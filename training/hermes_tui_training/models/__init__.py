"""Where a model comes from: fetched, verified, converted."""
