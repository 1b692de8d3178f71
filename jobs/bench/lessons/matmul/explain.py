"""What the lesson `matmul` says about its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.bench.lessons.protocol import Stage

# Arithmetic operations for each byte that a block reads from global memory, of 4-byte elements: a tile of
# h x w reads (h + w) * 4 bytes for 2 h w operations.
INTENSITY = {"naive": 0.25, "tiled": 8.0, "register": 32.0}


@dataclass(frozen=True)
class Timed:
    """seconds: of one product. error, bound: as `freivalds` has them; error None where not checked."""

    precision: str
    way: str
    shape: tuple[int, int, int]
    seconds: float
    error: float | None
    bound: float

    @property
    def flops(self) -> int:
        m, n, k = self.shape
        return 2 * m * n * k

    @property
    def rate(self) -> float | None:
        """TFLOP/s."""
        return self.flops / self.seconds / 1e12 if self.seconds > 0 else None


def paragraphs(stage: Stage, timed: Sequence[Timed]) -> list[str]:
    rates = {(one.precision, one.way): one.rate for one in timed if one.rate}
    said = _on_cpu(rates) if stage.box is None else _on_gpu(rates)
    checked = [one for one in timed if one.error is not None]
    if checked:
        said.append(
            "Checked by Freivalds' method, C r against A (B r) in float64 for a random r: with factors of "
            "-1, 0 and 1, whose products are exact, for equality; with these random numbers, the largest "
            "difference, as a part of a row of |A| times the norms of B's rows, is the error, and "
            "8 (n eps + the rounding of inputs and results) its bound."
        )
    return said


def _on_cpu(rates: dict[tuple[str, str], float]) -> list[str]:
    said = []
    for precision in ("float32", "float64"):
        blocks, whole = rates.get((precision, "blocks of 64")), rates.get((precision, "BLAS"))
        if blocks and whole:
            said.append(
                f"{precision}: BLAS reaches {whole:.3g} TFLOP/s, {whole / blocks:.2f} times what the same "
                "library does in blocks of 64 x 64, one call each: calls have a cost of their own, and "
                "factors are read again for every block."
            )
    return said


def _on_gpu(rates: dict[tuple[str, str], float]) -> list[str]:
    said = []
    single = {way: rate for (precision, way), rate in rates.items() if precision == "float32"}
    own = {way: rate for way, rate in single.items() if way in INTENSITY}
    if own:
        figures = ", ".join(
            f"{way} {INTENSITY[way]:g} operations a byte, {rate:.3g} TFLOP/s" for way, rate in own.items()
        )
        said.append(
            "What sets the kernels apart is how often an element is used once it is there. Of float32, "
            f"without any cache's help: {figures}. The tiled kernel still loads two elements from shared "
            "memory for each multiplication and addition, the register-tiled one 16 for 64 of them."
        )
    if "cuBLAS" in single and own:
        best = max(own, key=lambda way: own[way])
        said.append(
            f"The best own kernel for float32, {best}, reaches {100 * own[best] / single['cuBLAS']:.0f} % of "
            f"cuBLAS' {single['cuBLAS']:.3g} TFLOP/s (TF32 off)."
        )
    faster = [
        f"{precision} {rates[precision, 'cuBLAS'] / single['cuBLAS']:.1f} times"
        for precision in ("tf32", "float16", "bfloat16")
        if (precision, "cuBLAS") in rates and "cuBLAS" in single
    ]
    if faster:
        said.append(
            f"cuBLAS beside its own float32: {', '.join(faster)}. These precisions it can multiply on tensor "
            "cores, with sums in float32; the kernels here use none."
        )
    return said
