"""Draws a run as one page: messages with their senders and receivers, holds, and the faults of the cluster.

`Story` is what a page shows. It is made of a simulated run, a history or a path of the explorer, and each has a file
here. The page is one file that loads nothing; all text in it is put there as text.
"""
