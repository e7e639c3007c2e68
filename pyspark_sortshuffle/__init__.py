"""Where Spark looks for data sources: in packages of names that begin with ``pyspark_``.

It imports them in a process of its own, the first time that an application names a Python data source.
"""

from sortshuffle.spark.data_source import MapOutputSource as DefaultSource

__all__ = ["DefaultSource"]
