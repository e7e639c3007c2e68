"""PageRank: workers that live for all rounds, and exchange shares of ranks in each.

    python examples/engine/pagerank.py [FILE]      # of edges, a line "from to" each, in numbers

* Each round is an exchange: vertices stay where their key group is, shares of their ranks go to the vertices
  that they point to. A vertex that points nowhere gives its rank to all, so it is broadcast.
* The ranks of all rounds go into one map output of each worker, in which SUPERSTEP ends a round. Whose ranks
  they are does not matter there, so they are rescaled: those of neighbouring workers go to one reporter.

Sums are exact (`math.fsum`), so the result is the same however many workers there are.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from math import fsum
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from sortshuffle.engine import SUPERSTEP, Home, MapOutput, Options, open_input, open_output, release
from sortshuffle.partitioner import KeyGroupSelector, RescaleSelector

DAMPING, ROUNDS, SHOWN = 0.85, 20, 5
WORKERS, REPORTERS, KEY_GROUPS = 4, 2, 128
HISTORY = 0  # an exchange; the others are numbered as the rounds, from 1
SMALL = Options(memory=8 << 20)  # bytes; a worker has two outputs open at a time
Edges = list[tuple[int, int]]


def work(number: int, home: Home, edges: Edges, pipe: Connection) -> None:
    """A worker, and at its end perhaps a reporter. ``pipe``: takes its map output, gives those of all."""
    vertices = sorted({vertex for edge in edges for vertex in edge})
    owners = KeyGroupSelector((0,), WORKERS, KEY_GROUPS).assign(column_of(vertices)).tolist()
    points_to: dict[int, list[int]] = {
        vertex: [] for vertex, owner in zip(vertices, owners, strict=True) if owner == number
    }
    for source, target in edges:
        if source in points_to:
            points_to[source].append(target)
    ranks = dict.fromkeys(points_to, 1 / len(vertices))
    rescaled = RescaleSelector(REPORTERS, number, WORKERS)
    with open_output(home, rescaled, number, exchange=HISTORY, options=SMALL) as history:
        for round_number in range(1, ROUNDS + 1):
            pipe.send(send_shares(home, number, round_number, points_to, ranks))
            ranks = new_ranks(pipe.recv(), number, points_to, len(vertices))
            history.write(list(ranks.items()))
            history.send(SUPERSTEP)
        pipe.send(history.finish())
    histories = pipe.recv()
    if number < REPORTERS:
        pipe.send(reported(histories, number, 1 / len(vertices)))


def send_shares(
    home: Home, number: int, round_number: int, points_to: dict[int, list[int]], ranks: dict[int, float]
) -> MapOutput:
    placed = KeyGroupSelector((0,), WORKERS, KEY_GROUPS)
    with open_output(home, placed, number, exchange=round_number, options=SMALL) as output:
        shares = [
            (to, ranks[vertex] / len(targets)) for vertex, targets in points_to.items() for to in targets
        ]
        output.write(shares, column_of([target for target, _ in shares]))
        for vertex, targets in points_to.items():
            if not targets:
                output.broadcast((None, ranks[vertex]))
        return output.finish()


def new_ranks(outputs: list[MapOutput], number: int, mine: Iterable[int], vertices: int) -> dict[int, float]:
    shares = defaultdict(list)
    with open_input(outputs, number) as stream:
        for target, share in stream.records():
            shares[target].append(share)
    to_all = (1 - DAMPING + DAMPING * fsum(shares[None])) / vertices
    return {vertex: to_all + DAMPING * fsum(shares[vertex]) for vertex in mine}


def reported(histories: list[MapOutput], number: int, first: float) -> tuple[list[float], dict[int, float]]:
    """How far a rank moved at most in each round, and the last ranks."""
    moved = [0.0] * ROUNDS
    rounds: dict[int, int] = defaultdict(int)  # by worker: how many of its rounds have ended
    ranks: dict[int, float] = {}
    with open_input(histories, number) as stream:
        for buffer in stream.buffers():
            if buffer.event == SUPERSTEP:
                rounds[buffer.map_index] += 1
            for vertex, rank in (pair for chunk in buffer.chunks for pair in chunk):
                now = rounds[buffer.map_index]
                moved[now] = max(moved[now], abs(rank - ranks.get(vertex, first)))
                ranks[vertex] = rank
    return moved, ranks


def column_of(vertices: list[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(vertices, pa.int64())], ["vertex"])


def main(edges: Edges) -> None:
    context = get_context("spawn")  # a process that has threads, as Arrow starts them, is not to be forked
    with TemporaryDirectory() as directory, Home.of(directory, "pagerank") as home, ExitStack() as opened:
        pipes = []
        for number in range(WORKERS):
            pipe, its_end = context.Pipe()
            worker = context.Process(target=work, args=(number, home, edges, its_end))
            worker.start()
            its_end.close()  # so that each end is closed when the process of the other one has ended
            opened.callback(worker.join)
            pipes.append(opened.enter_context(pipe))
        read: list[MapOutput] = []
        for _ in range(ROUNDS + 1):  # the last outputs are the histories
            outputs = [pipe.recv() for pipe in pipes]
            release(read)  # who sends an output has read those of the round before
            for pipe in pipes:
                pipe.send(outputs)
            read = outputs
        reports = [pipe.recv() for pipe in pipes[:REPORTERS]]
    for round_number, moved in enumerate(map(max, zip(*(moved for moved, _ in reports), strict=True)), 1):
        print(f"round {round_number}: moved by {moved!r}")
    ranks = {vertex: rank for _, part in reports for vertex, rank in part.items()}
    for vertex, rank in sorted(ranks.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]:
        print(f"vertex {vertex}: {rank!r}")


def some_edges(count: int = 200) -> Edges:
    """A graph in which every seventh vertex points nowhere."""
    return [(v, (v * step + step) % count) for v in range(count) if v % 7 for step in (2, 3, v % 5)]


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines() if sys.argv[1:] else []
    read_edges = [(int(source), int(target)) for source, target in map(str.split, lines)]
    main(read_edges or some_edges())
