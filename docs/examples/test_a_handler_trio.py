"""Test a handler, alone and with a cluster in the same process. Needs pytest-trio; pytest -o trio_mode=true"""

from quorumq.client import Outcome
from quorumq.testing import Message

charged = []


async def charge(message):
    if message.attempt == 1:
        await message.reject(delay=3600.0)  # the bank is closed
    else:
        charged.append(int(message.payload))


async def test_a_closed_bank_is_tried_again_an_hour_later():
    message = Message.fake(b"30", headers={"customer": 7})
    await charge(message)
    assert message.outcome is Outcome.REQUEUED
    assert message.settlement.delay == 3600.0


async def test_an_amount_is_charged_once_while_a_node_is_down(quorumq_trio):
    await quorumq_trio.client.publish("charges", b"30")
    await quorumq_trio.client.publish("charges", b"thirty")
    await quorumq_trio.kill("b")
    worked = await quorumq_trio.work("charges", "bank", charge)  # until nothing is left to do
    assert (worked.done, worked.retried, worked.dead_lettered) == (1, 2, 1)
    assert charged == [30]
