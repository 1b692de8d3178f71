"""`meshrun selftest` in a process of its own: first this process, then ranks under the launcher."""

from __future__ import annotations

import click


def check_installation(mutate: bool, device: str, debug: bool) -> int:
    """Test what runs without MPI, then start ranks and see that they find each other; 0 or 1."""
    from launch import local, mpiexec
    from runner.errors import UserError
    from runner.selftest import launcher_ranks
    from runner.selftest import main as test

    alone = test(mutate, device, 1, None, False)
    try:
        launcher = mpiexec.find()
    except UserError as reason:
        return _conclude({"one rank": alone == 0}, f"more ranks were not tested: {reason}")
    ranks = launcher_ranks(device)
    words = ["selftest", "--rank-part", "--device", device, *(["--debug"] if debug else [])]
    together = local.start(ranks, words, debug=debug)
    return _conclude({"one rank": alone == 0, f"{ranks} ranks under {launcher}": together == 0})


def _conclude(parts: dict[str, bool], remark: str = "") -> int:
    works = all(parts.values())
    listed = ", ".join(f"{part} {'passed' if passed else 'FAILED'}" for part, passed in parts.items())
    sentence = f"This installation {'works' if works else 'does NOT work'}: {listed}"
    click.echo(f"{sentence}; {remark}" if remark else f"{sentence}.")
    return 0 if works else 1
