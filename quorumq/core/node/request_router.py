"""The request router: checks a client's request, and answers it at once or gives it to a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from quorumq.core import messages as m
from quorumq.core.cluster.labels import check_changes
from quorumq.core.cluster.raising import check_raise, check_space
from quorumq.core.cluster.topics import (
    check_alteration,
    check_placing,
    check_topic_request,
)
from quorumq.core.messages.effects import Again, Effect, Raised, Reply, Send
from quorumq.core.messages.records import BatchStored
from quorumq.core.node.request_checks import check_fetch, check_group_name, check_hold_time
from quorumq.core.node.status import metadata, page, status
from quorumq.core.partition.backlog import part_of
from quorumq.core.partition.closed import number_of
from quorumq.core.partition.listing import shown_of, slices_of
from quorumq.core.recovery.survivors import DeclareCoordinator
from quorumq.core.recovery.trust import Trust
from quorumq.core.requests import leaving
from quorumq.core.requests.context import Context, Costly
from quorumq.core.requests.coordinator import Coordinator
from quorumq.core.requests.costs import COSTS, runs
from quorumq.core.requests.creation import CreateTopicCoordinator, check_capacity, full_nodes
from quorumq.core.requests.fetch import FetchCoordinator
from quorumq.core.requests.finding import FindCoordinator, to_find
from quorumq.core.requests.groups import DeleteGroupCoordinator, GroupCoordinator
from quorumq.core.requests.labels import LabelsCoordinator
from quorumq.core.requests.membership import MembersCoordinator, check_change
from quorumq.core.requests.moving import begin_move
from quorumq.core.requests.naming import NameCoordinator
from quorumq.core.requests.pausing import LimitCoordinator, PauseCoordinator, check_limit
from quorumq.core.requests.peek import PeekCoordinator
from quorumq.core.requests.publish import PublishCoordinator
from quorumq.core.requests.purge import PurgeCoordinator
from quorumq.core.requests.raising import RaiseCoordinator
from quorumq.core.requests.registers import AlterTopicCoordinator, DeleteTopicCoordinator, why_away
from quorumq.core.requests.remote import PollCoordinator, SplitCoordinator, SubFetchCoordinator
from quorumq.core.requests.replica_list import ReplicaListCoordinator
from quorumq.core.requests.settle import (
    AckCoordinator,
    ExtendCoordinator,
    RedriveCoordinator,
    RejectCoordinator,
)
from quorumq.core.values import limits
from quorumq.core.values.deadnames import DEAD_SUFFIX, dead_letter_names
from quorumq.core.values.errors import Code
from quorumq.core.values.fairqueue import Caller
from quorumq.core.values.patterns import is_pattern
from quorumq.core.values.printable import plural
from quorumq.core.values.spans import SpanSet
from quorumq.core.values.types import Kind, NodeId, Now, PartitionId, ProducerId, Topic

Routed = Coordinator | m.ClientReply
"""Coordinator that carries a request through, or the answer."""


STAMPED = (
    m.Fetch, m.CreateTopic, m.AlterTopic, m.MovePartition, m.DeleteTopic, m.SetGroup, m.DeleteGroup, m.PauseGroup,
    m.ChangeMembers,
    m.LimitGroup,
)  # fmt: skip
"""Requests that are nothing without a fresh stamp."""
BUG_CHARS_MAX = 200
"""Characters of an exception's text in the answer to the client."""
USED_UP = (
    f"the stamps of this cluster are used up: no stamp reaches {limits.STAMPS_END}, and a node said that it had one "
    "just below. Nothing is lost: export what is there (`quorumq export`), and make another cluster, whose ports "
    "only its nodes and clients reach"
)


@dataclass(slots=True, eq=False)
class RequestRouter:
    """Takes clients' requests, and FETCHes of other nodes."""

    context: Context
    trust: Trust  # decides whether it can serve any client
    sessions: int = 0  # opened in this start

    def on_request(
        self,
        key: int,
        request: m.ClientRequest,
        now: Now,
        *,
        looked: bool = False,
        caller: Caller = 0,
        waits: bool = True,
    ) -> list[Effect]:
        """Take in a client's request. ``looked``: the others were asked for names; ``waits``: it waits for its turn."""
        context = self.context
        price = COSTS.get(type(request)) if waits else None
        if price is not None and (cost := price(context.catalogue, request)) > limits.CHEAP:
            context.costly.put(caller, cost, Again(key, request, looked, caller), key)
            return []
        if isinstance(request, m.Hello):
            return self._on_hello(key, request, now)
        try:
            admitted = self._look(key, request, now, looked=looked)
        except Exception as error:  # nothing has changed yet: it costs this request alone
            detail = (
                f"node {context.state.me} has a bug, and could not begin this request ({type(error).__name__}: "
                f"{str(error)[:BUG_CHARS_MAX]}); nothing was done. Its log has more: report it"
            )
            return [Raised(type(request).__name__, error), Reply(key, m.Failed(Code.NOT_STORED, detail))]
        if isinstance(admitted, Coordinator):
            admitted.caller = caller
            context.requests[key] = admitted
            return admitted.start(context, now)
        effects: list[Effect] = []
        if isinstance(admitted, m.NotedReply) and isinstance(request, m.CloseSession):
            partitions = tuple(dict.fromkeys(request.partitions))
            effects = self.close_session(caller, request.producer_id, partitions, now)
        elif isinstance(admitted, m.NotedReply) and isinstance(request, m.ReleaseRequest):
            effects = context.releases.in_steps(
                caller,
                tuple(
                    m.Released(receipt.partition, receipt.group, receipt.owner, (part,))
                    for receipt, spans in request.items
                    for span in spans
                    for part, _ in context.cut(receipt.partition, receipt.group, span)
                ),
                now,
            )
        return [*effects, Reply(key, admitted)]

    def _look(self, key: int, request: m.ClientRequest, now: Now, *, looked: bool) -> Routed:
        """Return the request's coordinator, or the answer. This and its callees only look: their errors are survived
        (docs/decisions/0011-what-an-exception-ends.md)."""
        context = self.context
        if isinstance(request, m.StatusRequest):
            return self.status(request, now)
        refusal = leaving.refusal(context.state, request)
        lookup = None if looked or refusal is not None else to_find(context, request)
        if isinstance(request, m.Metadata) and lookup is None:
            return metadata(self.context, request, now)
        if refusal is not None:
            return refusal
        if not context.state.trusted:
            return self.trust.refusal(context)
        if lookup is not None:
            return FindCoordinator(key, request, lookup)
        if isinstance(request, STAMPED) and context.state.clock.used_up:
            return m.Failed(Code.NOT_STORED, USED_UP)
        try:
            return ROUTES[type(request)](self, key, request, now)
        except m.RequestRefused as refused:
            return refused.reply

    def status(self, request: m.StatusRequest, now: Now) -> m.StatusReply:
        """Return the state of this node and its partitions, or of the next of them."""
        rows, more = page(self.context, now, request.begin)
        fields = status(self.context, self.trust, now) if request.begin is None else {}
        return m.StatusReply({**fields, "partitions": rows}, more)

    def on_remote_fetch(
        self, sender: NodeId, message: m.RemoteFetch, now: Now, *, waits: bool = True
    ) -> list[Effect]:
        """Serve a FETCH for a node that has no replica of these partitions; a costly one in its turn (``waits``)."""
        context = self.context
        cost = max(len(message.partitions), runs(len(message.request.spans)))
        if waits and cost > limits.CHEAP:
            waiting: Costly = ("remote", sender, message)
            context.costly.put(sender, cost, waiting, (sender, message.round))
            return []
        if (sender, message.round) in context.sub_fetches:
            return []  # a second copy: one sub-fetch is enough
        here = tuple(partition for partition in message.partitions if partition in context.replicas)
        problem = check_fetch(message.request, context.config.hold_time_max)
        if not context.state.trusted or not here:
            problem = problem or f"node {context.state.me} has no replica of what it was asked for"
        if problem:
            return [Send(sender, m.RemoteFetchReply(message.round, Code.TOO_FEW_REPLICAS, problem, ()))]
        key = context.sub_fetches[(sender, message.round)] = context.next_key()
        made = SubFetchCoordinator(key, message, here, self._first_of(here), now, sender)
        made.caller = sender
        return context.begin(made, now)

    def _on_hello(self, key: int, hello: m.Hello, now: Now) -> list[Effect]:
        refusal = self.context.peers.refusal(hello, now)
        if refusal is not None:
            return [Reply(key, refusal)]
        if hello.node and not hello.nodes:
            return [Reply(key, self.context.peers.admission(hello, now))]
        if hello.node:
            self.context.state.on_dialled(hello.node)
        return self.context.peers.on_hello(key, hello, now)

    def _open_session(self) -> m.OpenSessionReply:
        self.sessions += 1
        me, incarnation = self.context.state.me, self.context.state.incarnation
        return m.OpenSessionReply(ProducerId(me, incarnation.n, incarnation.nonce, self.sessions))

    # -------------------------------------------------------------------------- topics

    def _change_members(self, key: int, request: m.ChangeMembers) -> Routed:
        m.refuse_if(check_change(self.context, request))
        if request.dry_run:
            return m.ChangeMembersReply(self.context.catalogue.cluster.layout)
        m.refuse_if(self.context.state.no_capacity(Kind.OPEN), Code.STORAGE_FULL)
        return MembersCoordinator(key, request)

    def _create_topic(self, key: int, request: m.CreateTopic) -> Routed:
        m.refuse_if(check_topic_request(request, *self.context.catalogue.cluster.placing))
        known = self.context.catalogue.topic_named(request.name)
        if known is not None and request.implicit:
            return m.TopicReply(known)
        if request.implicit and not self.context.config.auto_create_topics:
            return self.context.catalogue.not_found(request.name)
        if known is None:
            m.refuse_if(self.context.state.no_capacity(BatchStored), Code.STORAGE_FULL)
            m.refuse_if(check_capacity(self.context, request.rf), Code.STORAGE_FULL)
        no_capacity = self.context.catalogue.why_no_capacity(request) if known is None else None
        return no_capacity or CreateTopicCoordinator(key, request)

    def _alter_topic(self, key: int, request: m.AlterTopic, now: Now) -> Routed:
        topic = self._meant(request.name, request.seen and request.seen.id)
        config, cluster = self.context.config, self.context.catalogue.cluster
        m.refuse_if(check_alteration(request, topic))
        m.refuse_if(check_placing(request, topic, config.nodes, config.machines, cluster.joined))
        if request.rf is not None:
            m.refuse_if(check_raise(request, topic, *cluster.placing))
        m.refuse_if(self.context.state.no_capacity(Kind.OPEN), Code.STORAGE_FULL)
        if request.rf is not None:
            full = full_nodes(self.context)
            m.refuse_if(check_space(topic, request.rf, *cluster.placing, full), Code.STORAGE_FULL)
            return RaiseCoordinator(key, request, topic)
        no_capacity = (
            self.context.catalogue.why_no_capacity(request) if request.partitions is not None else None
        )
        away = why_away(self.context, request, topic, now)
        return no_capacity or away or AlterTopicCoordinator(key, request, topic)

    def _move(self, key: int, request: m.MovePartition) -> Routed:
        self._meant(request.name, request.id)
        return begin_move(self.context, key, request)

    def _labels(self, key: int, request: m.LabelsRequest) -> Routed:
        topic = self._meant(request.topic, request.id)
        m.refuse_if(check_changes(request.changes))
        if request.changes:
            m.refuse_if(self.context.state.no_capacity(Kind.OPEN), Code.STORAGE_FULL)
        return LabelsCoordinator(key, request, topic)

    def _delete_topic(self, key: int, request: m.DeleteTopic) -> Routed:
        topic = self.context.catalogue.register_with(request.id, request.name)
        if topic is not None and topic.name == request.name:
            return DeleteTopicCoordinator(key, request, topic)
        self._meant(request.name, request.id)
        raise AssertionError("its register would have been found")

    def _meant(self, name: str, id_: bytes | None) -> Topic:
        """Return the topic of that name, which is to have this id unless that is None.

        Raises:
            RequestRefused: there is none, or another one.
        """
        topic = self.context.catalogue.named(name)
        if id_ is not None and id_ != topic.id:
            m.refuse_if(
                f"topic {name!r} with the id {id_.hex()} is gone, or never was; another one has its name, and is left "
                "alone: do it again to do it to that",
                Code.NOT_FOUND,
            )
        return topic

    def close_session(
        self, caller: Caller, producer_id: ProducerId, partitions: tuple[PartitionId, ...], now: Now
    ) -> list[Effect]:
        """Inform the replicas that may have something of the session. No client waits: closing takes its time anyway.

        Partitions beyond one step's share follow in later steps, in the caller's turn.
        """
        effects: list[Effect] = []
        for partition in partitions[: limits.RUNS_PER_STEP]:
            topic = self.context.catalogue.topics.get(partition.topic)
            epoch = topic.epoch_of(partition.number) if topic is not None else 0
            ask = m.CloseRequest(0, partition, epoch, (number_of(producer_id),))
            effects += [Send(member, ask) for member in self.context.catalogue.members_of(partition)]
        rest = partitions[limits.RUNS_PER_STEP :]
        if rest:
            self.context.state.at(now.mono, ("close", caller, producer_id, rest))
        return effects

    # -------------------------------------------------------------------------- groups

    def _set_group(self, key: int, request: m.SetGroup) -> Routed:
        if request.start not in ("earliest", "latest", "time"):
            m.refuse_if(f"start is {request.start[:50]!r}: it must be 'earliest', 'latest' or 'time'")
        if request.group.endswith(DEAD_SUFFIX):
            m.refuse_if(f"group {request.group!r} is one of dead letters: redrive or purge them instead")
        m.refuse_if(check_group_name(request.group))
        topic = self._meant(request.topic, request.id)
        full = self._no_capacity_for_group(topic, request.group) or self.context.state.no_capacity(Kind.OPEN)
        m.refuse_if(full, Code.STORAGE_FULL)
        there = request.rewind or self.context.catalogue.reads(topic.id, request.group)
        no_capacity = None if there else self.context.catalogue.why_no_groups((topic,), request.group)
        return no_capacity or GroupCoordinator(key, request, topic.id)

    def _pause_group(self, key: int, request: m.PauseGroup | m.LimitGroup) -> Routed:
        if isinstance(request, m.LimitGroup):
            m.refuse_if(check_limit(request))
        topic = self._meant(request.topic, request.id)
        if not self.context.catalogue.reads(topic.id, request.group):
            return self.context.catalogue.no_group(request.topic, request.group)
        kind = PauseCoordinator if isinstance(request, m.PauseGroup) else LimitCoordinator
        coordinator = kind(key, request, topic.id)
        ends = coordinator.ends(self.context.catalogue.groups[(topic.id, request.group)])
        if not ends:  # acks of a group that goes on make space
            m.refuse_if(self.context.state.no_capacity(Kind.OPEN), Code.STORAGE_FULL)
        return coordinator

    def _no_capacity_for_group(self, topic: Topic, group: str) -> str:
        """Return why a group that is new here cannot be made; "" if it can, or is there.

        Within the disk's reserve it can: it costs little, and in a topic without groups no ack would make space.
        """
        state = self.context.state
        full = state.memory_full or state.no_capacity(Kind.OPEN)
        return full if full and self._is_new(topic, group) else ""

    def _is_new(self, topic: Topic, group: str) -> bool:
        """Return True if there are partitions here and they know nothing of the group."""
        if self.context.catalogue.reads(topic.id, group):
            return False
        replicas = (self.context.replicas.get(PartitionId(topic.id, at)) for at in range(topic.partitions))
        here = [replica for replica in replicas if replica is not None]
        return bool(here) and not any(group in replica.views.groups for replica in here)

    def _purge(self, key: int, request: m.PurgeRequest) -> Routed:
        m.refuse_if(self.context.state.no_capacity(Kind.PURGED), Code.STORAGE_FULL)
        topics, group = dead_letter_names((request.topic,), request.group)
        self._meant(topics[0], request.id)
        partition = self._read_by(topics[0], request.partition, group.removesuffix(DEAD_SUFFIX))
        return PurgeCoordinator(key, partition, group, request)

    def _redrive(self, key: int, request: m.RedriveRequest) -> Routed:
        request = request._replace(group=request.group.removesuffix(DEAD_SUFFIX))
        partition = self._read_by(request.topic, request.partition, request.group)
        return RedriveCoordinator(key, request, partition)

    def _read_by(self, topic: str, number: int, group: str) -> PartitionId:
        """Return a partition that the group reads."""
        partition = self.context.catalogue.partition_named(topic, number)
        if not self.context.catalogue.reads(partition.topic, group):
            raise m.RequestRefused(self.context.catalogue.no_group(topic, group))
        return partition

    def _peek(self, key: int, request: m.PeekRequest, now: Now) -> Routed:
        topics, group = dead_letter_names((request.topic,), request.group)
        partition = self.context.catalogue.partition_named(topics[0], request.partition)
        source = group.removesuffix(DEAD_SUFFIX)
        if self.context.catalogue.is_group_deleted(partition.topic, source):
            return self.context.catalogue.no_group(topics[0], source)
        if request.complete:
            return ReplicaListCoordinator(key, partition, group, request.which, request.after, request.limit)
        request = request._replace(topic=topics[0], group=group)
        replica = self.context.replicas.get(partition)
        if replica is None or replica.learns:
            return PeekCoordinator(key, partition, request)
        return replica.on_peek(request, now)

    def _show(self, request: m.ShowRequest, now: Now) -> Routed:
        replica = self.context.replicas.get(request.partition)
        if replica is None:
            detail = f"node {self.context.state.me} has no replica of that partition: ask one that has"
            return m.Failed(Code.NOT_FOUND, detail)
        if request.span.size != 1:
            return m.Failed(Code.USAGE, f"{request.span.size} messages are named: one can be shown")
        shown = shown_of(replica.batches, replica.views.groups, request.span, now)
        if not request.body:
            return shown
        return shown._replace(slices=slices_of(replica.batches, replica.topic.name, (request.span,)))

    def _describe(self, request: m.DescribeGroups, now: Now) -> Routed:
        """Describe the groups that are known here; the others were deleted, or are to become known."""
        catalogue = self.context.catalogue
        rows = sum(max(1, catalogue.partitions_of(topic)) for topic, _ in request.groups)
        if rows > limits.DESCRIBED_MAX and len(request.groups) > 1:
            detail = (
                f"the groups have {rows} partitions together, over {limits.DESCRIBED_MAX}: name fewer groups"
            )
            return m.Failed(Code.TOO_LARGE, detail)
        named = [(catalogue.topic_named(topic), group) for topic, group in request.groups]
        return m.DescribeGroupsReply(
            tuple(
                self._described(topic, group, now)
                for topic, group in named
                if topic is not None and catalogue.reads(topic.id, group)
            )
        )

    def _described(self, topic: Topic, group: str, now: Now) -> m.DescribedGroup:
        partitions = [PartitionId(topic.id, number) for number in range(topic.partitions)]
        kept = [
            self.context.replicas[partition] for partition in partitions if partition in self.context.replicas
        ]
        here = [replica for replica in kept if not replica.learns]
        return m.DescribedGroup(topic.id, group, tuple(part_of(replica, group, now) for replica in here))

    # ---------------------------------------------------------------------- deliveries

    def _extend(self, key: int, request: m.ExtendRequest) -> Routed:
        m.refuse_if(check_hold_time(request.hold_time, limits.CLAIM_MAX_S))
        return ExtendCoordinator(key, request)

    def _reject(self, key: int, request: m.RejectRequest, now: Now) -> Routed:
        death = request.death
        if death is not None and any(item.receipt.group.endswith(DEAD_SUFFIX) for item in request.items):
            m.refuse_if(
                "a dead letter cannot be dead-lettered again: ack it, or reject it without dead_letter"
            )
        if request.delay != limits.TOPIC_BACKOFF_S and not 0 <= request.delay <= limits.DELAY_MAX_S:
            m.refuse_if(
                f"delay is {request.delay} s: it must be from 0 to {limits.DELAY_MAX_S:.0f} s, or "
                f"{limits.TOPIC_BACKOFF_S} for the topic's backoff"
            )
        if request.interrupted and (death is not None or request.delay):
            m.refuse_if("what is interrupted comes again at once: give no delay and no dead_letter")
        if death is not None:
            death = death._replace(died_ms=now.wall_ms, node=self.context.state.me)
        return RejectCoordinator(key, request._replace(death=death))

    def _fetch(self, key: int, request: m.Fetch, now: Now) -> Routed:
        context = self.context
        topics, group = dead_letter_names(request.topics, request.group)
        most = limits.DEATHS_PER_CHUNK if group.endswith(DEAD_SUFFIX) else limits.FETCH_MESSAGES_MAX
        request = request._replace(
            topics=topics,
            group=group,
            partitions=tuple(sorted(dict.fromkeys(request.partitions))),
            max_messages=min(request.max_messages, most),
            min_messages=min(request.min_messages, most),
            max_bytes=min(request.max_bytes, limits.FETCH_BYTES_MAX),
        )
        if problem := check_fetch(request, context.config.hold_time_max):  # mostly none
            m.refuse_if(problem)
        asked: list[PartitionId] = []
        if request.spans:
            request = request._replace(
                spans=tuple(SpanSet.from_spans(request.spans).items())
            )  # each message once
        seen: dict[bytes, None] = {}  # several patterns may match one topic
        new: list[Topic] = []
        for name in dict.fromkeys(request.topics):
            asked += self._partitions_asked(name, request, seen, new)
        no_capacity = (
            context.catalogue.why_no_groups(new, request.group.removesuffix(DEAD_SUFFIX)) if new else None
        )
        if no_capacity is not None:
            return no_capacity
        context.fetches += 1
        if len(asked) > limits.FETCH_PARTITIONS_MAX:
            start = context.rng.randrange(len(asked))
            asked = (asked[start:] + asked[:start])[: limits.FETCH_PARTITIONS_MAX]
        here = tuple([partition for partition in asked if context.may_coordinate(partition, now)])
        if len(here) < len(asked):
            foreign = tuple(partition for partition in asked if not context.may_coordinate(partition, now))
            return SplitCoordinator(key, request, here + foreign, now)
        kind = FetchCoordinator if request.max_wait else PollCoordinator
        return kind(key, request, here, self._first_of(here), now)

    def _first_of(self, partitions: tuple[PartitionId, ...]) -> int:
        """Return the index of the partition that a FETCH begins with.

        Why by chance: with a counter, two groups that fetch in turn would each begin with the same partition for ever.
        """
        return self.context.rng.randrange(len(partitions)) if len(partitions) > 1 else 0

    def _partitions_asked(
        self, name: str, request: m.Fetch, seen: dict[bytes, None], new: list[Topic]
    ) -> list[PartitionId]:
        """Return the partitions of that topic, or of all that the pattern matches now: none, if it matches none.

        Topics that were ``seen`` for another name are left out; topics in which the group would be made go to ``new``.
        """
        catalogue = self.context.catalogue
        source = request.group.removesuffix(DEAD_SUFFIX)
        partitions: list[PartitionId] = []
        for topic in catalogue.topics_matching(name):
            if topic.id in seen:
                continue
            if not catalogue.reads(topic.id, source):
                if source == request.group and catalogue.makes_group(topic, source):
                    new.append(topic)
                elif is_pattern(name):
                    continue
                else:
                    raise m.RequestRefused(catalogue.no_group(name, source))
            seen[topic.id] = None
            state = self.context.state
            if state.disk_shortage or state.memory_full:
                m.refuse_if(self._no_capacity_for_group(topic, source), Code.STORAGE_FULL)
            for number in request.partitions or range(topic.partitions):
                if number >= topic.partitions:  # nor are the following ones
                    if is_pattern(name):
                        break
                    there = plural(topic.partitions, "partition")
                    m.refuse_if(f"topic {name!r} has {there}: there is no {number}", Code.NOT_FOUND)
                partitions.append(PartitionId(topic.id, number))
        if not partitions and not is_pattern(name) and catalogue.topic_named(name) is None:
            raise m.RequestRefused(catalogue.not_found(name))
        return partitions


ROUTES: Final[dict[type, Callable[[RequestRouter, int, Any, Now], Routed]]] = {
    m.OpenSession: lambda router, key, request, now: router._open_session(),
    m.CloseSession: lambda router, key, request, now: m.NotedReply(),
    m.ReleaseRequest: lambda router, key, request, now: m.NotedReply(),
    m.CreateTopic: lambda router, key, request, now: router._create_topic(key, request),
    m.AlterTopic: lambda router, key, request, now: router._alter_topic(key, request, now),
    m.MovePartition: lambda router, key, request, now: router._move(key, request),
    m.DeleteTopic: lambda router, key, request, now: router._delete_topic(key, request),
    m.LabelsRequest: lambda router, key, request, now: router._labels(key, request),
    m.Publish: lambda router, key, request, now: PublishCoordinator(key, request),
    m.FindName: lambda router, key, request, now: NameCoordinator(key, request, now),
    m.Fetch: lambda router, key, request, now: router._fetch(key, request, now),
    m.AckRequest: lambda router, key, request, now: AckCoordinator(key, request),
    m.RejectRequest: lambda router, key, request, now: router._reject(key, request, now),
    m.ExtendRequest: lambda router, key, request, now: router._extend(key, request),
    m.SetGroup: lambda router, key, request, now: router._set_group(key, request),
    m.DeleteGroup: lambda router, key, request, now: DeleteGroupCoordinator(
        key, request, router._meant(request.topic, request.id).id
    ),
    m.PauseGroup: lambda router, key, request, now: router._pause_group(key, request),
    m.LimitGroup: lambda router, key, request, now: router._pause_group(key, request),
    m.PurgeRequest: lambda router, key, request, now: router._purge(key, request),
    m.RedriveRequest: lambda router, key, request, now: router._redrive(key, request),
    m.PeekRequest: lambda router, key, request, now: router._peek(key, request, now),
    m.ShowRequest: lambda router, key, request, now: router._show(request, now),
    m.DescribeGroups: lambda router, key, request, now: router._describe(request, now),
    m.DeclareSurvivors: lambda router, key, request, now: DeclareCoordinator(key, request),
    m.ChangeMembers: lambda router, key, request, now: router._change_members(key, request),
}
"""Functions that return a request's coordinator or the answer, by kind, if all of its names are known here."""
