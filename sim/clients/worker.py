"""A consumer whose process dies on a poison message, and loses all that it has in hand.

It buffers some messages, as the client library does, but nothing beside a lot of suspects, and makes room if some wait.
A dead process reports nothing of its messages. A supervisor starts it again at once. If workers join and leave, they
join late, and one may stop: it gives back its messages in hand as interrupted, as a pool does when its grace is over,
and is started as another process. Each life has a name of its own in the history.
"""

from __future__ import annotations

from quorumq.core.messages import FetchReply, ReceiptPart
from quorumq.core.values.types import Batch, Receipt, Span
from sim.clients.consumer import Consumer
from sim.clients.outputs import Taken
from sim.clients.surroundings import Surroundings

HANDLING_S = 0.02
RESTART_S = 0.3
LATE_S = 2.0
"""Most seconds that a worker joins late if workers join and leave."""


def is_poison(seq: int, share: float) -> bool:
    """Return True if the message with that number ends any process that handles it."""
    return (seq * 0x9E3779B1 & 0xFFFFFFFF) < share * 2**32


class Worker(Consumer):
    """One process of a pool; arguments as there."""

    def __init__(self, around: Surroundings, name: str, group: str) -> None:
        super().__init__(around, name, group)
        self.hand: list[tuple[Receipt, int]] = []
        self.life = 0
        self.alone = False  # suspects are in hand, or some wait until nothing is in hand

    def begin(self, _: object = None, __: object = None) -> None:
        self.later(LATE_S * self.rng.random() if self.options.stops else 0.0, self.fetch)

    def fetch(self) -> None:
        if not self.fetching and not self.alone and len(self.hand) < self.options.fetch_messages:
            super().fetch()

    def on_fetched(self, answer: FetchReply, batches: tuple[Batch, ...], asked: float, node: str) -> None:
        has_suspects = any(delivery.suspect for part in answer.slices for delivery in part.deliveries)
        self.alone = has_suspects or (answer.suspects and bool(self.hand))
        super().on_fetched(answer, batches, asked, node)

    def work(self, taken: list[Taken], hold: float) -> None:
        """Put it into the stock, and fetch more while there is room."""
        begins = not self.hand
        for receipt, _, _ in taken:
            self.hand += [(receipt, seq) for seq in range(receipt.span.start, receipt.span.stop)]
        self.in_hand = len(self.hand)
        self.alone = self.alone and bool(self.hand)
        if begins:
            self.later(HANDLING_S, self.handle, self.life)
        self.fetch()

    def handle(self, life: int) -> None:
        """End the work on the oldest in hand: it is acked, or has taken the process along."""
        if life != self.life:
            return
        if self.hand:
            if self.options.stops and not self.world.healed and self.rng.random() < self.options.stops:
                self.end(tuple(_one(receipt, seq) for receipt, seq in self.hand))
                return
            receipt, seq = self.hand[0]
            if is_poison(seq, self.options.poison) and not self.world.healed:
                self.end()
                return
            del self.hand[0]
            self.in_hand = len(self.hand)
            self.alone = self.alone and bool(self.hand)
            self.call("ack", (_one(receipt, seq),), 6)
        if self.hand:
            self.later(HANDLING_S, self.handle, self.life)
        self.fetch()

    def end(self, rejected: tuple[ReceiptPart, ...] = ()) -> None:
        """End all connections; messages in hand are lost, if not ``rejected``. Then the worker starts again."""
        for op in list(self.pending):
            self.give_up(op)
        if rejected:
            self.call("reject", rejected, 6, interrupted=True)
        self.hand.clear()
        self.life += 1
        self.who = f"client:{self.name}.{self.life}"
        self.in_hand, self.alone, self.fetching = 0, False, False
        self.later(RESTART_S, self.fetch)


def _one(receipt: Receipt, seq: int) -> ReceiptPart:
    """Return one message of those."""
    return ReceiptPart(receipt, (Span(receipt.span.producer_id, seq, seq + 1),))
