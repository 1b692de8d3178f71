"""The parts on the paths of flows between hosts, and which of them a flow shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshrun.jobs.measure.outliers import healthy_pairs
from meshrun.jobs.validate.localize.findings import HOST_DIRECTIONS, OF_NICS
from meshrun.jobs.validate.localize.host_groups import SlowLeaf, far_hosts, slow_leaves
from meshrun.jobs.validate.localize.observations import Observations, Siblings
from meshrun.jobs.validate.localize.set_cover import (
    Mask,
    PartKind,
    PartName,
    Suspect,
    numbered_kind,
    part_kind,
)
from meshrun.jobs.validate.plan import Plan
from meshrun.jobs.validate.topology import Ints, Topology

LINKS = ("link", "link one way")
# Kinds that also slow flows which do not show them.
WITH_HIDDEN_FLOWS = ("nic", "both", "send", "receive", "flap", "host", *HOST_DIRECTIONS, "rail")
LEAST_NEAR = 2  # other hosts whose flows show a host's NICs, where flows to most are slower
HIDDEN_LISTED = 4  # hosts


class FlowNetwork:
    """What flows between hosts have shown of the network, and so which parts a flow passes.

    far: (hosts, hosts), pairs of hosts whose uplinks are slower than NICs. near: (hosts,), hosts whose NICs
    flows to some others show. leaves: by rail, its slow leaf switch. hosts_of: (models,), numbers of hosts
    with NICs of each model. hidden: (models, models), whether a partner with a NIC of the second model is too
    slow to show a NIC of the first. nic_class: (models, models), equal where flows are equally fast.
    fast_alone: NICs of which flows in one direction were fast, so that flows in both directions at once may
    show another fault.
    """

    def __init__(self, topology: Topology, plan: Plan) -> None:
        self.topology, self.plan = topology, plan
        models = int(topology.nic_kind.max()) + 1
        hosts = [np.unique(topology.host[topology.nic_kind == model]) for model in range(models)]
        self.hosts_of = np.array([len(of_model) for of_model in hosts])
        self.hidden = np.zeros((models, models), np.bool_)
        one, other = np.indices((models, models))
        self.nic_class = np.minimum(one, other) * models + np.maximum(one, other)
        self.far = np.zeros((topology.hosts, topology.hosts), np.bool_)
        self.near = np.full(topology.hosts, topology.hosts > LEAST_NEAR)
        self.leaves: dict[int, SlowLeaf] = {}
        self.fast_alone = set[int]()

    def find_groups(self, table: Observations) -> None:
        """Find the groups of hosts behind slower uplinks. table: of all host pairs."""
        self.far = far_hosts(table, self.topology, self.plan)
        self.near = np.asarray(np.count_nonzero(~self.far, axis=1) > LEAST_NEAR)
        self.hidden = hidden_models(table, self.topology, self.plan.tolerance)
        # Between the only two hosts with NICs of a model, flows have no siblings but those to faster NICs.
        for model in np.flatnonzero(self.hosts_of == 2).tolist():
            faster = self.hidden[:, model] & ~self.hidden[model]
            self.nic_class[faster, model] = self.nic_class[model, faster] = self.nic_class[model, model]

    def find_slow_leaves(self, table: Observations) -> None:
        """Find the slow leaf switch of each rail."""
        self.leaves = slow_leaves(table, self.topology, self.far, self.plan)

    @property
    def gaps(self) -> Sequence[str]:
        """What flows cannot judge, because uplinks limit them."""
        if not self.far.any():
            return ()
        hidden = [self.topology.names[host] for host in np.flatnonzero(~self.near).tolist()]
        if not hidden:
            return ()
        some = ", ".join(hidden[:HIDDEN_LISTED]) + (", ..." if len(hidden) > HIDDEN_LISTED else "")
        return (
            "flows between groups of hosts are limited by uplinks; NICs behind such uplinks cannot be "
            f"judged where a group has fewer than {LEAST_NEAR + 1} hosts: {some}",
        )

    def flow_kind(self, a: Ints, b: Ints) -> Ints:
        """Return the class of each flow from rank a[i] to b[i]: NICs of both ends, whether it crosses rails,
        takes NVLinks, or passes slower uplinks. Flows of different classes are not siblings."""
        topology, host = self.topology, self.topology.host
        nics = self.nic_class[topology.nic_kind[a], topology.nic_kind[b]]
        crosses = 2 * nics + (topology.gpu[a] != topology.gpu[b])
        return np.asarray(2 * (2 * crosses + topology.over_nvlink(a, b)) + self.far[host[a], host[b]])

    def siblings(self, a: Ints, b: Ints) -> Siblings:
        """Compare flows between NICs of the same models, those on one rail and those across rails.

        From three hosts on, compare host pairs.
        """
        topology, kind = self.topology, self.flow_kind(a, b)
        hosts, rails, host = topology.hosts, topology.rails, topology.host
        if hosts == 2:
            return Siblings(kind, None, (rails - 1) / rails)
        fewest = int(self.hosts_of.min())
        if hosts > self.plan.full_mesh_hosts:
            return Siblings(kind, None, healthy_pairs(fewest, 2))
        low, high = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        return Siblings(kind, low * hosts + high, healthy_pairs(fewest, 2) if fewest > 3 else 0.0)

    def part_kinds(self, table: Observations) -> list[PartKind]:
        """Return the parts on the path of each flow; of equally good explanations, the first is named."""
        a, b = table.a, table.b
        host, gpu, size = self.topology.host, self.topology.gpu, self.topology.ranks
        low, high = np.minimum(a, b), np.maximum(a, b)
        first, second = np.minimum(host[a], host[b]), np.maximum(host[a], host[b])
        owner, nvlink = self.topology.owner, self.topology.over_nvlink(a, b)
        rail = np.where((gpu[a] == gpu[b]) & ~nvlink, gpu[owner[a]], -1)
        in_parts = np.isin(rail, list(self.leaves))  # slow in parts only
        whole = np.where(in_parts, -1, rail)
        send, receive = self.shown_by(table)
        # A NIC may be slow only while it sends and receives. Flows in both directions at once show that of
        # NICs whose flows in one direction were fast, and no other fault of these.
        fast_alone = np.isin(owner, list(self.fast_alone))
        both_sender, both_receiver = (
            np.where(table.both_ways & shown & fast_alone[side], owner[side], -1)
            for shown, side in ((send, a), (receive, b))
        )
        paired = table.both_ways & table.retested
        send, receive = send & ~(paired & fast_alone[a]), receive & ~(paired & fast_alone[b])
        whole = np.where(paired, -1, whole)
        sender, receiver = np.where(send, owner[a], -1), np.where(receive, owner[b], -1)
        kinds = [
            numbered_kind("nic", size, sender, receiver),
            numbered_kind("both", size, both_sender, both_receiver),
            numbered_kind("send", size, sender),
            numbered_kind("receive", size, receiver),
            numbered_kind(
                "host", self.topology.hosts, np.where(send, host[a], -1), np.where(receive, host[b], -1)
            ),
            numbered_kind("rail", self.topology.rails, whole),
        ]
        if nvlink.any():
            there, back = np.where(nvlink, a, -1), np.where(nvlink, b, -1)
            kinds += [
                part_kind("nvlink", there, back),
                part_kind("nvlink send", there),
                part_kind("nvlink receive", back),
            ]
        if self.leaves:
            inside, within = np.zeros((2, size), bool)
            for leaf in self.leaves.values():
                inside[leaf.ranks], within[leaf.ranks] = True, leaf.within
            through = (inside[a] != inside[b]) | (within[a] & within[b])
            kinds.append(part_kind("leaf", np.where(in_parts & through, rail, -1)))
        if self.topology.hosts > self.plan.all_pairs_hosts:
            return kinds  # partners are sampled: links are not judged
        if self.topology.rails > 1:
            kinds.append(part_kind("path", low * size + high))
        return [
            *kinds,
            part_kind("link", first * self.topology.hosts + second),
            part_kind("link one way", host[a] * self.topology.hosts + host[b]),
            # Of few hosts, a link has more flows than one of a host's NICs, but not than all of them.
            numbered_kind("host send", self.topology.hosts, np.where(send, host[a], -1)),
            numbered_kind("host receive", self.topology.hosts, np.where(receive, host[b], -1)),
        ]

    def shown_by(self, table: Observations) -> tuple[Mask, Mask]:
        """Return whether each flow shows its sender's NIC, and its receiver's.

        Flows over NVLink do not, nor those across rails with PXN, nor those over uplinks that are slower than
        a NIC: across rails if these are slower by design, and to far hosts unless a host has no others. A
        flow between NICs of two rates shows the slower one only.
        """
        a, b, topology = table.a, table.b, self.topology
        by_nics, cross = ~topology.over_nvlink(a, b), topology.gpu[a] != topology.gpu[b]
        if topology.pxn:
            by_nics &= ~cross
        usual, nics = np.log(table.siblings), self.nic_class[topology.nic_kind[a], topology.nic_kind[b]]
        for one in np.unique(nics[cross & by_nics]).tolist():
            alike = by_nics & (nics == one)
            if (alike & ~cross).any():
                limit = usual[alike & ~cross].min() + 2 * self.plan.tolerance
                by_nics &= ~(alike & cross & (usual > limit))
        near, host, model = self.near, topology.host, topology.nic_kind
        far = self.far[host[a], host[b]]
        hides_sender, hides_receiver = (self.hidden[model[x], model[y]] for x, y in ((a, b), (b, a)))
        return (
            by_nics & ~(far & near[host[a]]) & ~hides_sender,
            by_nics & ~(far & near[host[b]]) & ~hides_receiver,
        )

    def slowed(self, suspect: Suspect, table: Observations) -> Mask | None:
        """Return the rows that a slow part may slow too, though they are no evidence of it.

        Flows across rails pass its NICs, or the leaf switch of its rail, even where they show no NIC.
        """
        names = [name for name in (suspect.name, *suspect.ties) if name[0] in WITH_HIDDEN_FLOWS]
        send, receive = self.shown_by(table)
        hidden = ~(send & receive) & ~self.topology.over_nvlink(table.a, table.b)
        if suspect.kind not in WITH_HIDDEN_FLOWS or not hidden.any():
            return None
        of_parts = np.zeros(self.topology.ranks, bool)
        for name in names:
            of_parts |= np.isin(self.topology.owner, self.topology.owner[self.ranks(name)])
        return np.asarray(hidden & (of_parts[table.a] | of_parts[table.b]))

    def ranks(self, name: PartName) -> list[int]:
        """Return the ranks that a suspect consists of."""
        kind, key = name
        if kind == "leaf":
            return list(self.leaves[key].ranks.tolist())
        if kind in OF_NICS:
            return list(self.topology.sharing(key).tolist())
        if kind in ("host", *HOST_DIRECTIONS):
            return list(self.topology.on(key).tolist())
        if kind == "rail":
            return list(self.topology.rail(key).tolist())
        if kind in LINKS:
            return [
                rank for host in divmod(key, self.topology.hosts) for rank in self.topology.on(host).tolist()
            ]
        return list(divmod(key, self.topology.ranks)) if kind == "path" else [key]

    def only_pair(self, a: int, b: int) -> bool:
        """Return whether flows between two ranks are the only ones that show what their NICs reach."""
        one, other = self.topology.host[[a, b]]
        return bool(self.far.any() and not self.far[one, other] and not self.near[[one, other]].any())


def hidden_models(table: Observations, topology: Topology, tolerance: float) -> Mask:
    """Return (models, models): whether flows with a NIC of the second model show no NIC of the first, as they
    are slower by design than the first model's flows among themselves.

    table: of all host pairs. Of a model that one host has, the fastest flows stand for these.
    """
    model = topology.nic_kind
    count = int(model.max()) + 1
    by_nics = ~topology.over_nvlink(table.a, table.b) & (topology.gpu[table.a] == topology.gpu[table.b])
    usual = np.full((count, count), np.inf)
    a, b, log = model[table.a[by_nics]], model[table.b[by_nics]], np.log(table.siblings[by_nics])
    for one, other in ((a, b), (b, a)):
        np.minimum.at(usual, (one, other), log)
    alone = np.diagonal(usual)
    own = np.where(np.isinf(alone), usual.min(axis=1), alone)
    return np.asarray(np.isfinite(usual) & (usual > own[:, None] + 2 * tolerance))
