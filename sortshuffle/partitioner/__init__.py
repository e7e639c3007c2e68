"""Channel selectors: they decide which subpartition each row goes to, one Arrow batch at a time.

=======================  =================================================================================
selector                 used for
=======================  =================================================================================
``HashSelector``         ``repartition(n, keys)``, ``groupBy``, ``join``: Spark's own placement, bit for bit
``RangeSelector``        ``repartitionByRange``: Spark's own placement for the same bounds
``IdSelector``           ``repartitionById``: Spark's own placement
``RoundRobinSelector``   ``repartition(n)`` of an input whose order is reproducible
``RowHashSelector``      ``repartition(n)`` of any other input
``GlobalSelector``       every exchange into one subpartition
``RescaleSelector``,     exchanges that leave most rows where they are: only through `engine`. A frame makes
``forward``              none, not even for ``coalesce``, which reads several partitions in a task
``BroadcastSelector``    joins with a side marked ``broadcast``
``FunctionSelector``     functions on batches: only through `engine`
``KeyGroupSelector``     exchanges whose number of consumers is set after writing: only through `engine`
=======================  =================================================================================

The methods are ``ShuffleFrame``'s; ``ShuffleRDD`` has its own selectors, which place rows by Python keys. All
of these selectors can be used through `engine`, without Spark.

Other names: ``hash_columns`` computes Spark's ``F.hash`` of Arrow columns, and ``check_hashable`` refuses, on
the driver, types that it can't hash; ``Reservoir``, ``shorten_texts`` and ``determine_bounds`` make the
bounds of ranges.

    selector                          the protocol of selectors
    hash, murmur3, rounds             Spark's placement, its hash of columns, MurmurHash3
    round_robin, row_hash             even placement without keys, the hash of whole rows
    ranges, range_bounds, reservoir   placement by ranges, their bounds, the sample that bounds come from
    key_order                         the keys of an order as int64 columns
    caller_ids, key_group, pointwise  the other selectors
    arrow_views                       Arrow arrays as NumPy arrays

The package knows Arrow and NumPy, and nothing of files or Spark sessions.
"""

from sortshuffle.partitioner.caller_ids import FunctionSelector, IdSelector
from sortshuffle.partitioner.hash import HashSelector
from sortshuffle.partitioner.key_group import KeyGroupSelector
from sortshuffle.partitioner.key_order import SortKey
from sortshuffle.partitioner.murmur3 import check_hashable, hash_columns
from sortshuffle.partitioner.pointwise import BroadcastSelector, GlobalSelector, RescaleSelector, forward
from sortshuffle.partitioner.range_bounds import determine_bounds, shorten_texts
from sortshuffle.partitioner.ranges import RangeSelector
from sortshuffle.partitioner.reservoir import Reservoir
from sortshuffle.partitioner.round_robin import RoundRobinSelector, RowHashSelector
from sortshuffle.partitioner.selector import ChannelSelector, id_dtype

__all__ = [
    "BroadcastSelector",
    "ChannelSelector",
    "FunctionSelector",
    "GlobalSelector",
    "HashSelector",
    "IdSelector",
    "KeyGroupSelector",
    "RangeSelector",
    "RescaleSelector",
    "Reservoir",
    "RoundRobinSelector",
    "RowHashSelector",
    "SortKey",
    "check_hashable",
    "determine_bounds",
    "forward",
    "hash_columns",
    "id_dtype",
    "shorten_texts",
]
