"""Channel selectors: which subpartition each row goes to, decided for a whole Arrow batch at a time.

=======================  =================================================================================
selector                 used by ``ShuffleFrame`` for
=======================  =================================================================================
``HashSelector``         ``repartition(n, keys)``, ``groupBy``, ``join``: Spark's own placement, bit for bit
``RoundRobinSelector``   ``repartition(n)`` of an input whose order is reproducible
``RowHashSelector``      ``repartition(n)`` of any other input
=======================  =================================================================================

The other two doors have no Arrow batches to assign: ``ShuffleRDD`` places Python objects by their own hash,
and with the shuffle manager Spark itself decides and sends the id with each frame.

Beside the selectors: ``hash_columns``, Spark's ``F.hash`` of Arrow columns, and ``check_hashable``, which
refuses on the driver what it can't hash. The package knows Arrow and NumPy, and nothing of files or Spark
sessions.
"""

from sortshuffle.partitioner.hash import HashSelector
from sortshuffle.partitioner.murmur3 import check_hashable, hash_columns
from sortshuffle.partitioner.round_robin import RoundRobinSelector, RowHashSelector
from sortshuffle.partitioner.selector import ChannelSelector, id_dtype

__all__ = [
    "ChannelSelector",
    "HashSelector",
    "RoundRobinSelector",
    "RowHashSelector",
    "check_hashable",
    "hash_columns",
    "id_dtype",
]
