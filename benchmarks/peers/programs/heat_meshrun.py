# meshrun -n 2 run heat_meshrun.py IN OUT --steps N
import meshrun


@meshrun.map_blocks(halo=1, boundary="nearest")
def heat(plate, *, rate: float = 0.2):
    sides = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    return plate[1:-1, 1:-1] + rate * (sides - 4 * plate[1:-1, 1:-1])
