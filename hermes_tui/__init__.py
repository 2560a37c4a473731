"""Talk to a Hermes agent, watch its tokens, judge it, and see the model learn."""

__version__ = "0.1.0"
