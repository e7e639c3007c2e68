"""Snapshots of balances: branches write their ledgers, auditors read them through a shuffle service.

    python examples/engine/snapshots.py [FILE ...]     # a branch each: "unit cent" or "unit euro", then lines
                                                       # "day account amount", in whole units, days in order
* Forward: what branch i has written goes to auditor i, and to nobody else.
* A user event says in which unit the amounts behind it are.
* A barrier ends a day in every stream. Its id is the snapshot's: all balances as they were at the barriers
  with that id make snapshot ``id``, though no two streams are read at the same time.
* Auditors read through the service as if the branches were on another host.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import sortshuffle
from sortshuffle.engine import Barrier, Home, MapOutput, UserEvent, open_input, open_output
from sortshuffle.partitioner import forward

CENTS = {"cent": 1, "euro": 100}
SOME_LEDGERS = [
    "unit cent\n1 alice 500\n1 bob 300\n2 alice -250\n3 bob 25",
    "unit euro\n1 carol 7\n2 alice 4\n2 carol -2\n3 carol 1",
]


def write_ledger(home: Home, ledgers: list[str], number: int) -> MapOutput:
    """A branch."""
    unit, *lines = map(str.split, ledgers[number].splitlines())
    with open_output(home, forward(number, len(ledgers)), number) as output:
        output.send(UserEvent("unit", unit[1].encode()))
        for day, entries in groupby(lines, key=lambda line: int(line[0])):
            output.write([(account, int(amount)) for _, account, amount in entries])
            output.send(Barrier(day, time.time_ns() // 1000))
        return output.finish()


def audit(outputs: list[MapOutput], services: dict[str, str], number: int) -> dict[int, Counter[str]]:
    """An auditor: the balances of its branch, in cents, in each snapshot."""
    balances: Counter[str] = Counter()
    snapshots: dict[int, Counter[str]] = {}
    cents = 1
    with open_input(outputs, number, services=services) as stream:
        for buffer in stream.buffers():
            if buffer.map_index != number:
                continue  # events of another branch, which has no records for this auditor
            for account, amount in (entry for chunk in buffer.chunks for entry in chunk):
                balances[account] += cents * amount
            if isinstance(buffer.event, UserEvent) and buffer.event.name == "unit":
                cents = CENTS[buffer.event.data.decode()]
            elif isinstance(buffer.event, Barrier):
                snapshots[buffer.event.id] = balances.copy()
    return snapshots


def main(ledgers: list[str]) -> None:
    pool = ProcessPoolExecutor(len(ledgers), get_context("spawn"))
    branches = range(len(ledgers))
    with TemporaryDirectory() as directory, Home.of(directory, "snapshots") as home, pool:
        outputs = list(pool.map(partial(write_ledger, home, ledgers), branches))
        with sortshuffle.serve([home.directory]) as service:
            services = {output.host: service.address for output in outputs}
            audits = list(pool.map(partial(audit, outputs, services), branches))
            sent = service.status().bytes_sent_total
    for day in sorted(set.intersection(*map(set, audits))):  # a snapshot is whole when all streams have it
        balances: Counter[str] = Counter()
        for snapshots in audits:
            balances.update(snapshots[day])
        print(f"snapshot {day}:", ", ".join(f"{account} {balances[account]}" for account in sorted(balances)))
    print(f"{sent} bytes came through the service")


if __name__ == "__main__":
    main([Path(file).read_text(encoding="utf-8") for file in sys.argv[1:]] or SOME_LEDGERS)
