"""What was recorded, in the forms that other programs train from. Free of torch.

``formats`` names the forms, each in a file of its own; ``sources`` reads episodes from a gateway or
from a database file; ``rows`` makes flat token sequences of them.
"""
