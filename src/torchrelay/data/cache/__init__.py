"""Shards on the node's disk: bounded, verified, shared by every process of the node."""
