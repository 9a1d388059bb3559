# quorumq/core/versions.py: which version of the protocol has which messages.
#
# Two sides of a connection speak the highest version that both know (docs/wire-format.md, "Versions"). The core has to
# know which one that is: a node of an older version is never asked what it cannot understand, and what only works when
# all replicas understand it is refused while one does not, by name. Fields are the wire's business (wire/versions.py).
"""The versions of the protocol, and since when each message exists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from quorumq.core import messages as m

OLDEST: Final = 1
NEWEST: Final = 2
VERSIONS: Final = (OLDEST, NEWEST)
"""The lowest and highest version that this software speaks."""

SINCE: Final[Mapping[type, int]] = {
    m.HoldsAsk: 2, m.HoldsTold: 2, m.Survey: 2, m.Surveyed: 2, m.GroupsAsk: 2, m.GroupsTold: 2,
    m.AlterTopic: 2, m.TopicAltered: 2, m.DeleteTopic: 2, m.TopicDeleted: 2, m.SetGroup: 2, m.GroupSet: 2,
    m.PurgeRequest: 2, m.Purged: 2, m.CloseAsk: 2, m.CloseTold: 2, m.CloseSession: 2, m.SessionClosed: 2,
    m.ResyncAsk: 2, m.ResyncTold: 2, m.RegistersAsk: 2, m.RegistersTold: 2, m.SurvivorsAsk: 2, m.SurvivorsTold: 2,
    m.DeclareSurvivors: 2, m.SurvivorsDeclared: 2,
}  # fmt: skip
"""The version that a message came with; 1 for those that are not here."""


def has(version: int, kind: type) -> bool:
    """Whether a version has messages of that class."""
    return SINCE.get(kind, OLDEST) <= version
