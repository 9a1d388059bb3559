"""Makes a failing schedule as small as it gets, while the same checker still sees it fail.

A run that is changed in one place is another run from there on, as long as what becomes of packets is drawn. So the
options and faults are made small first, with other random streams if the seed's own does not fail; then what becomes
of each packet is written out, and the list made small: of the packets, of the faults, of the options again.
"""
