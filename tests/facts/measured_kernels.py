"""The instances of each kernel file that measurements and the jobs airflow and matmul launch."""

from meshrun.jobs.bench.lessons.transpose.methods import SINGLE, variants
from meshrun.jobs.kernels import FLOAT32, instance

WORDS = ("float", "unsigned short", "unsigned", "unsigned long long")
REALS = ("float", "__half", "__nv_bfloat16")

INSTANCES: dict[str, tuple[str, ...]] = {
    "chase.cu": ("chase",),
    "chase_tma.cu": ("chase_tma",),
    "copy_tma.cu": ("copy_tma",),
    "read_streaming.cu": ("read_streaming",),
    "write_streaming.cu": ("write_streaming",),
    "copy_small.cu": ("copy_small",),
    "copy_split.cu": ("copy_split",),
    "copy_streaming.cu": ("copy_streaming",),
    "gate.cu": ("gate",),
    "affine.cu": ("affine",),
    "links.cu": tuple(
        f"{kernel}<{kind}>" for kernel in ("set_slots", "momentum") for kind in ("float", "__half")
    ),
    "peer.cu": ("peer_copy",),
    "round_bfloat16.cu": tuple(
        instance("round_bfloat16", kind, together)
        for kind in ("uint8", "int64", "float16", "float32", "float64")
        for together in (1, 4)
    ),
    "strided.cu": ("strided<8>",),
    "touch.cu": ("touch",),
    "transpose_naive.cu": tuple(f"transpose_naive<{word}>" for word in WORDS),
    "transpose_peers.cu": tuple(f"transpose_peers<{word}>" for word in WORDS),
    "transpose_tiled.cu": tuple(f"transpose_tiled<{word}>" for word in WORDS),
    "transpose_vectorised.cu": (
        FLOAT32["transpose_vectorised"],
        *(variant.instance(size, 16 // size) for size in (2, 4, 8) for variant in variants(size)),
        *(SINGLE.instance(size, 1) for size in (2, 4, 8)),
    ),
    "matmul_naive.cu": tuple(f"matmul_naive<{kind}, float>" for kind in REALS),
    "matmul_tiled.cu": tuple(f"matmul_tiled<{kind}, float>" for kind in REALS),
    "matmul_register.cu": ("matmul_register<true>", "matmul_register<false>"),
}
