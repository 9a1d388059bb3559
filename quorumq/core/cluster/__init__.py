"""Peers, topics, groups and their registers as one node knows them, and the answers that count."""
