"""Test a handler, alone and with a cluster in the same process. Needs pytest"""

from quorumq.client import Outcome
from quorumq.testing import BlockingMessage as Message

charged = []


def charge(message):
    if message.attempt == 1:
        message.reject(delay=3600.0)  # the bank is closed
    else:
        charged.append(int(message.payload))


def test_a_closed_bank_is_tried_again_an_hour_later():
    message = Message.fake(b"30", headers={"customer": 7})
    charge(message)
    assert message.outcome is Outcome.REQUEUED
    assert message.settlement.delay == 3600.0


def test_an_amount_is_charged_once_while_a_node_is_down(quorumq_threads):
    quorumq_threads.client.publish("charges", b"30")
    quorumq_threads.client.publish("charges", b"thirty")
    quorumq_threads.kill("b")
    worked = quorumq_threads.work("charges", "bank", charge)  # until nothing is left to do
    assert (worked.done, worked.retried, worked.dead_lettered) == (1, 2, 1)
    assert charged == [30]
