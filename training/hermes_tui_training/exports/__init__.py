"""Recorded episodes in the formats that other programs train from. Free of torch.

``formats`` lists the formats, each in a file of its own; ``episode_sources`` reads
episodes from a gateway or from a database file; ``rows`` makes flat token sequences of them.
"""
