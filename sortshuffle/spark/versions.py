"""Which release of Spark a session runs. Spark 4.0 is the oldest that is supported, and tested.

What newer ones have is used where it is there. The places that ask are few:

    by_id        ``repartitionById`` came with 4.1
    planner      partitions of several RDDs can be put side by side from 4.1 on (`joined_zip` before)
    session      4.1 brought the setting by which Spark refuses to go on after a map task ran again

Others look whether a class, a function or an argument is there: types in `schema`, PySpark's conversions in
`functions.conversion`, the arguments of `LogicalRDD` in `hints`.
"""

from __future__ import annotations

from typing import Any

from pyspark.loose_version import LooseVersion


def at_least(spark: Any, release: str) -> bool:
    """Whether the Spark of a session, which may be another than PySpark's, is of this release or later."""
    return bool(LooseVersion(str(spark.version)) >= LooseVersion(release))
