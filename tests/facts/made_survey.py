"""Made facts of ranks with nothing wrong: hosts n1, n2 ... with H200s."""

from __future__ import annotations

from meshrun.runner.world.preflight.survey import GpuFacts, Interface, Port, Survey

GIB = 1 << 30


def gpu(host: int, local: int) -> GpuFacts:
    near = local // 4
    return GpuFacts(
        name="NVIDIA H200",
        uuid=f"GPU-{host:04}-{local}",
        bus_id=f"0000:{local + 16:02x}:00.0",
        index=local,
        driver="580.95.05",
        cuda="12.9",
        cuda_driver="13.0",
        on_host=8,
        nvlinks_up=18,
        nvlinks=18,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        numa_node=near,
        cpus=tuple(range(48 * near, 48 * near + 48)),
    )


def made(host: int, local: int, per_host: int, *, with_gpu: bool = True) -> Survey:
    device = gpu(host, local) if with_gpu else None
    return Survey(
        rank=host * per_host + local,
        host=f"n{host + 1}",
        host_id=f"n{host + 1}/boot{host}",
        local_rank=local,
        pid=1000 + local,
        gpu=device,
        nccl=("2.28.9", "/lib/libnccl.so.2") if with_gpu else None,
        mpi="Open MPI v5.0.11",
        meshrun="0.1.0",
        python="3.11.7",
        cpus=device.cpus if device else tuple(range(96)),
        numa=(local // 4,) if device else (0, 1),
        interfaces=(Interface("lo", "127.0.0.1", True), Interface("eth0", f"10.0.{host}.1", True)),
        ports=(Port("mlx5_0", 1, "ACTIVE", 400.0, "InfiniBand"),) if local == 0 else (),
        shm_total=64 * GIB,
        shm_free=60 * GIB,
        settings={"NCCL_IB_HCA": "mlx5"},
    )
