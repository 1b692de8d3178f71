"""What can be measured of a fleet, and how its ranks measure it.

`api` is the protocol: the only thing that measurements, localization and reports know of the machines.
`rank_probe` implements it with the ranks of a run (`single_rank`, `multi_rank`); `jobs.validate.simulation`
implements it with a model. A probe returns seconds; it does not know how they are judged.
"""
