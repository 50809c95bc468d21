"""Tells many stories, and shows of each that fails the shortest that does."""

import argparse
import gc
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from tests.stories import disk, engine, machines, network
from tests.stories.bugs import BUGS
from tests.stories.faults import OF_OP, Fault
from tests.stories.shrink import shrunk
from tests.stories.story import STEPS, Shape, calm, drawn, judged, shape_of

SHOWN_S = 60.0  # between two lines of a long run


def main() -> int:
    asked = argparse.ArgumentParser("python -m tests.stories", description=__doc__)
    asked.add_argument("--seed", type=int, default=0, help="of the first story")
    asked.add_argument("--stories", type=int, default=1, help="how many; the seed counts up")
    asked.add_argument("--minutes", type=float, default=0.0, help="no story starts after these")
    asked.add_argument("--devices", type=int, default=3)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--each", choices=OF_OP, help="at each operation of d1 in turn, not drawn")
    asked.add_argument("--ops", type=int, nargs=2, help="of --each: the first and the last")
    asked.add_argument("--steps", choices=sorted(STEPS), help="of all; else as a seed draws them")
    asked.add_argument("--bug", choices=sorted(BUGS), help="planted; the first failure ends it")
    given = asked.parse_args()
    disk.installed()
    machines.installed()
    network.connected()
    engine.stood_in()
    if given.bug:
        BUGS[given.bug]()
    gc.freeze()  # modules stay
    gc.set_threshold(100_000, 50, 100)
    met, failed, virtual_s, number = Counter[str](), list[int](), 0.0, 0
    began_s = shown_s = time.perf_counter()
    for number, (shape, faults) in enumerate(stories(given), 1):
        told = judged(shape, faults)
        met, virtual_s = met + told.met, virtual_s + told.virtual_s
        if told.wrong:
            failed.append(shape.seed)
            show(shape, faults)
        if told.wrong and given.bug:
            break
        now_s = time.perf_counter()
        if now_s - shown_s > SHOWN_S:
            shown_s = now_s
            print(f"{number} stories, {len(failed)} failed, {now_s - began_s:.0f} s", flush=True)
        if given.minutes and now_s - began_s > 60 * given.minutes:
            break
    spent_s = time.perf_counter() - began_s
    rounds = number * given.rounds
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(met.items()))
    print(f"{number} stories ({given.devices} devices, {given.rounds} rounds) in {spent_s:.0f} s:")
    print(f"{number / spent_s:.2f} stories/s, {rounds / spent_s:.2f} rounds/s of real time,")
    print(f"{virtual_s / 3600:.1f} h of virtual time; {met.total()} faults: {kinds}")
    print(f"failed: {', '.join(map(str, failed)) or 'none'}")
    return 1 if failed else 0


def stories(given: argparse.Namespace) -> Iterator[tuple[Shape, list[Fault]]]:
    """What is told, one after the other, with all that happens in it."""
    for seed in range(given.seed, given.seed + given.stories):
        shape = shape_of(seed, given.devices, given.rounds, given.steps)
        if given.each:
            first, last = given.ops or (1, calm(shape).ops["d1"])
            faults = (Fault(given.each, "d1", at, 5.0) for at in range(first, last + 1))
            yield from ((shape, [fault]) for fault in faults)
        else:
            yield shape, drawn(shape, calm(shape))


def show(shape: Shape, faults: Sequence[Fault]) -> None:
    """Print the shortest story that fails as the whole one does, as English."""

    def fails(some: Sequence[Fault]) -> bool:
        return bool(judged(shape, some).wrong)

    few = shrunk(faults, fails)
    told = judged(shape, few)
    print(f"seed {shape.seed}: {shape}")
    for line in map(str, few) if few else ["nothing happens at all"]:
        print(f"  - {line}")
    for line in told.wrong or judged(shape, faults).wrong:
        print(f"  wrong: {line[:300]}")
    print(f"  {few!r}", flush=True)
