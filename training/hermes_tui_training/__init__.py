"""The trainer: an inference gateway that records every token, an engine, and the learner."""
