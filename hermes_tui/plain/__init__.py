"""The line-oriented view: for screen readers, pipes and plain terminals."""
