"""Draws a run as one page: messages with their senders and receivers, holds, and the faults of the cluster.

`Story` is the content of a page. It is made of a simulated run, a history or a path of the explorer, each in a file
here. The page is one file that loads nothing; all text in it is put there as text.
"""
