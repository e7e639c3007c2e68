"""A word count over processes, which Python's own process pool runs.

    python examples/engine/word_count.py [FILE ...]      # by default the documents of this checkout

* The stop words are broadcast: stored once, read by every mapper.
* Words go where their key group says. Key groups are dealt in ranges, so the number of reducers is decided
  when the mappers have said how much there is to read.
* Counts go where a function says: by their words' initials, so that the printed list is in order.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sortshuffle.engine import Home, MapOutput, open_input, open_output
from sortshuffle.partitioner import BroadcastSelector, FunctionSelector, KeyGroupSelector

STOP_WORDS = frozenset(
    ["a", "an", "and", "in", "is", "it", "its", "no", "not", "of", "on", "or", "the", "to"]
)
INITIALS = 26
MAPPERS, SUBPARTITIONS, KEY_GROUPS = 3, 8, 128
BYTES_PER_REDUCER = 16_384
DICTIONARY, WORDS, COUNTS = range(3)  # the exchanges


def send_dictionary(home: Home) -> MapOutput:
    with open_output(home, BroadcastSelector(MAPPERS), 0, exchange=DICTIONARY) as output:
        output.broadcast(STOP_WORDS)
        return output.finish()


def count_words(home: Home, dictionary: MapOutput, files: list[str], number: int) -> MapOutput:
    """A mapper: its share of the files."""
    with open_input([dictionary], number) as stream:
        (stop_words,) = stream.records()
    counts: Counter[str] = Counter()
    for file in files[number::MAPPERS]:
        words = re.findall("[a-z]+", Path(file).read_text(encoding="utf-8").lower())
        counts.update(word for word in words if word not in stop_words)
    placed = KeyGroupSelector((0,), SUBPARTITIONS, KEY_GROUPS)
    with open_output(home, placed, number, exchange=WORDS) as output:
        output.write(list(counts.items()), words_of(counts))
        return output.finish()


def reducers_for(outputs: list[MapOutput]) -> int:
    """As many as there is work for; each reads a range of the subpartitions."""
    size = sum(sum(output.subpartition_bytes) for output in outputs)
    return min(SUBPARTITIONS, 1 + size // BYTES_PER_REDUCER)


def add_counts(home: Home, outputs: list[MapOutput], reducers: int, number: int) -> MapOutput:
    """A reducer: its range of the subpartitions of all mappers."""
    share = range(number * SUBPARTITIONS // reducers, (number + 1) * SUBPARTITIONS // reducers)
    counts: Counter[str] = Counter()
    with open_input(outputs, share) as stream:
        for word, count in stream.records():
            counts[word] += count
    with open_output(home, FunctionSelector(by_initial, INITIALS), number, exchange=COUNTS) as output:
        output.write(list(counts.items()), words_of(counts))
        return output.finish()


def words_of(counts: Counter[str]) -> pa.RecordBatch:
    """The keys, as selectors take them: one row for each record."""
    return pa.record_batch([pa.array(list(counts), pa.string())], ["word"])


def by_initial(words: pa.RecordBatch) -> npt.NDArray[np.int64]:
    return np.array([ord(word[0]) - ord("a") for word in words["word"].to_pylist()], np.int64)


def main(files: list[str]) -> None:
    # spawned, not forked: a process that has threads, as Arrow starts them, is not to be forked
    pool = ProcessPoolExecutor(MAPPERS, get_context("spawn"))
    with TemporaryDirectory() as directory, Home.of(directory, "word-count") as home, pool:
        count = partial(count_words, home, send_dictionary(home), files)
        outputs = list(pool.map(count, range(MAPPERS)))
        reducers = reducers_for(outputs)
        counted = list(pool.map(partial(add_counts, home, outputs, reducers), range(reducers)))
        for initial in range(INITIALS):
            with open_input(counted, initial) as stream:
                for word, times in sorted(stream.records()):
                    print(word, times)


if __name__ == "__main__":
    here = Path(__file__).parents[2]
    main(sys.argv[1:] or [str(here / "README.md"), *map(str, sorted((here / "docs").glob("*.md")))])
