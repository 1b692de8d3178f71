"""Explain measured matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.bench.lessons.matmul.methods import TILES, TimedProduct


def sentences(timed: Sequence[TimedProduct]) -> list[str]:
    rates = {(one.precision, one.method): one.rate for one in timed if one.rate}
    found = []
    for precision in ("float32", "float64"):
        blocks, whole = rates.get((precision, "blocks of 64")), rates.get((precision, "BLAS"))
        if blocks and whole:
            found.append(f"{precision}: BLAS is {whole / blocks:.2f} times as fast as in blocks of 64 x 64.")
    library = rates.get(("float32", "cuBLAS"))
    own = {method: rate for (precision, method), rate in rates.items() if precision == "float32"}
    own = {method: rate for method, rate in own.items() if method in TILES}
    if library and own:
        best = max(own, key=lambda method: own[method])
        found.append(
            f"float32: the best kernel here, {best}, reaches {100 * own[best] / library:.0f} % of cuBLAS' "
            f"{library:.3g} TFLOP/s (without TF32)."
        )
    faster = [
        f"{precision} {rates[precision, 'cuBLAS'] / library:.1f} times"
        for precision in ("tf32", "float16", "bfloat16")
        if library and (precision, "cuBLAS") in rates
    ]
    if faster:
        found.append(f"cuBLAS by precision, against its own float32: {', '.join(faster)}.")
    return found
