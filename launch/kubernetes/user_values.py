"""Check the user's values in a manifest: an API server rejects some late, the operator only by an event.

The fields themselves are fixed by `manifest`, whose tests compare them with the operator's CRD.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

DNS_LABEL = r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1035: a host's name
DNS_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
LABEL = r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?"
KEY = r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
QUANTITY = r"\d+(\.\d+)?(m|k|[MGTPE]|[KMGTPE]i)?"
# Mappings whose keys are the user's.
FREE = ("labels", "limits", "nodeSelector")
# End of a path, the form of the value there, and what that is.
RULES = (
    (r"^metadata\.name", DNS_LABEL, "a DNS label: at most 63 of a-z, 0-9 and -, a letter first"),
    (r"^metadata\.namespace", DNS_LABEL, "a namespace's name"),
    (r", key", KEY, "a name, or DOMAIN/NAME"),
    (r"(labels|nodeSelector)\[.*\]", LABEL, "a label of at most 63 letters, digits and ._-"),
    (r"(limits\[.*\]|\.sizeLimit)", QUANTITY, "a quantity such as 16Gi or 500m"),
    (r"\.image", r"[^\s:@][^\s]*", "an image such as registry/name:tag"),
    (r"\.env\[\d+\]\.name", r"[A-Za-z_.-][A-Za-z0-9_.-]*", "a variable's name"),
    (r"(slotsPerWorker|replicas)", r"\d{1,9}", "a whole number below 10^9"),
    (r"\.mountPath", r"/[^:]*", "an absolute path"),
    (r"\.claimName", DNS_NAME, "a claim's name"),
    (r"\.serviceAccountName", DNS_NAME, "a service account's name"),
    (r"tolerations\[\d+\]\.key", KEY, "a taint's key"),
    (r"tolerations\[\d+\]\.value", LABEL, "a taint's value"),
)


def problems(manifest: dict[str, Any]) -> list[str]:
    """The errors in a manifest's values, each with the path of its field; empty if valid."""
    found = [
        f"{path}: got {value!r}, expected {what}"
        for path, value in _values(manifest, "")
        for end, form, what in RULES
        if re.search(f"{end}$", path) and not re.fullmatch(form, str(value))
    ]
    return found or list(_pod_names(manifest))


def _values(part: Any, path: str) -> Iterator[tuple[str, str | int]]:
    """Yield the path and the value of every text and number, and of every key of FREE mappings."""
    if isinstance(part, str | int):
        yield path, part
    elif isinstance(part, list):
        for number, element in enumerate(part):
            yield from _values(element, f"{path}[{number}]")
    elif isinstance(part, dict):
        free = path.endswith(FREE)
        for key, element in part.items():
            if free:
                yield f"{path}, key", key
            yield from _values(element, f"{path}[{key}]" if free else f"{path}.{key}".lstrip("."))


def _pod_names(manifest: dict[str, Any]) -> Iterator[str]:
    """Check that the names of an MPIJob's pods are valid host names."""
    if manifest["kind"] == "MPIJob":
        workers = manifest["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        name = f"{manifest['metadata']['name']}-worker-{workers - 1}"
        if not re.fullmatch(DNS_LABEL, name):
            yield (
                f"metadata.name: a pod would be named {name}, with {len(name)} characters, "
                "at most 63 are valid"
            )
