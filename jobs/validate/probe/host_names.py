"""Names of the hosts that ranks are on."""

from __future__ import annotations

from meshrun import World


def host_names(world: World) -> list[str]:
    """Of each rank, the name of its host; hosts of one name are numbered."""
    names = {rank.host_id: rank.host for rank in world.ranks}
    sharing: dict[str, list[str]] = {}
    for identity, name in names.items():
        sharing.setdefault(name, []).append(identity)
    for name, identities in sharing.items():
        for number, identity in enumerate(identities, 1):
            names[identity] = f"{name}#{number}" if len(identities) > 1 else name
    return [names[rank.host_id] for rank in world.ranks]
