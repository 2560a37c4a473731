"""What was sampled, scored and trained, on disk."""
