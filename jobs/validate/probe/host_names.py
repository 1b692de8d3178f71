"""Unique names of the ranks' hosts."""

from __future__ import annotations

from meshrun import World


def host_names(world: World) -> list[str]:
    """Return the host name of each rank; hosts with the same name are numbered."""
    names = {rank.host_id: rank.host for rank in world.ranks}
    sharing: dict[str, list[str]] = {}
    for identity, name in names.items():
        sharing.setdefault(name, []).append(identity)
    for name, identities in sharing.items():
        for number, identity in enumerate(identities, 1):
            names[identity] = f"{name}#{number}" if len(identities) > 1 else name
    return [names[rank.host_id] for rank in world.ranks]
