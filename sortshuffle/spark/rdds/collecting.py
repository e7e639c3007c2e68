"""Pairs on their way into a map output: held for a while, then placed and pickled together.

    keys and values -> two lists --full--> ids of all keys -> by subpartition -> chunks -> result partition

It is for pairs what `write.record_writer` is for single objects, and holds as much. But keys and values stand
apart, and are put in order when the lists are full, instead of one by one as they come: no tuple lives longer
than the batch it came in, and the loops over records are Python's own, in C. Pairs of an int and a short
string into 64 subpartitions took 435 ns each as tuples in a list for each subpartition, and 180 so, on a busy
machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sortshuffle.metrics import TaskMetrics
from sortshuffle.spark.rdds.aggregations import Kind, pairs_of_kind
from sortshuffle.spark.rdds.by_value import pack_any, pack_any_pairs
from sortshuffle.write.pickled_sizes import COLLECTED_BYTES, PickledSizes
from sortshuffle.write.record_writer import FrameTarget, KeySelector


class PairCollector:
    """Sends pairs where their keys say.

    ``whole``: there are no values; what are keys here are the records. ``memory``: bytes that may be
    collected, as far as that can be told. ``records``, ``bytes``: what went to the target so far.
    """

    def __init__(
        self,
        selector: KeySelector,
        target: FrameTarget,
        metrics: TaskMetrics,
        whole: bool = False,
        memory: int = COLLECTED_BYTES,
    ) -> None:
        self.records = 0
        self.bytes = 0
        self._selector = selector
        self._target = target
        self._metrics = metrics
        self._whole = whole
        self._sizes = PickledSizes(memory)
        self._kind = Kind.PLAIN
        self._keys: list[Any] = []
        self._values: list[Any] = []
        self._frames = 0

    def add(self, keys: Sequence[Any], values: Sequence[Any], kind: Kind = Kind.PLAIN) -> None:
        """Values of one kind; of another than before, what is held is sent first. Raises what the selector
        raises for keys, which may be later ones' call."""
        if kind is not self._kind:
            self.flush()
            self._kind = kind
        for place in self._sizes.due(len(keys)):
            alone = self._packed(list(keys[place : place + 1]), list(values[place : place + 1]))
            self._sizes.probed(len(alone), self.flush)
        self._keys += keys
        self._values += values
        if len(self._keys) >= self._sizes.most_held:
            self.flush()

    def flush(self) -> None:
        """Send what is held."""
        keys, values = self._keys, self._values
        if not keys:
            return
        ids = self._selector.assign(keys)
        order = ids.argsort(kind="stable")
        subpartitions, starts = np.unique(ids[order], return_index=True)
        places = order.tolist()
        ends = [*starts[1:].tolist(), len(keys)]
        for subpartition, start, end in zip(subpartitions.tolist(), starts.tolist(), ends, strict=True):
            while start < end:
                stop = min(end, start + self._sizes.most_in_chunk)  # which changes with each chunk
                taken = places[start:stop]
                part = list(map(keys.__getitem__, taken))
                self._send(subpartition, part, list(map(values.__getitem__, taken)) if values else [])
                start = stop
        self._keys, self._values = [], []

    def finish(self) -> None:
        """Send what is held, and count what was sent."""
        self.flush()
        self._metrics.add(records_out=self.records, frames_out=self._frames, bytes_out=self.bytes)

    def _send(self, subpartition: int, keys: list[Any], values: list[Any]) -> None:
        chunk = self._packed(keys, values)
        self._target.emit(chunk, subpartition)
        self.records += len(keys)
        self._frames += 1
        self.bytes += len(chunk)
        self._sizes.sent(len(chunk), len(keys))

    def _packed(self, keys: list[Any], values: list[Any]) -> bytearray:
        return pack_any(keys) if self._whole else pack_any_pairs(pairs_of_kind(self._kind, keys, values))
