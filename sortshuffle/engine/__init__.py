"""The shuffle engine without Spark, for programs that start their own producer and consumer processes.

A program that schedules processes (with `multiprocessing`, or a scheduler of its own) shuffles like this:

    with Home.of("/data") as home:
        # in each producer; `number` is the producer's
        with open_output(home, KeyGroupSelector((0,), 4, 128), number) as output:
            output.write(records, keys)
            return output.finish()
        # in each consumer; `number` is the consumer's, `outputs` what all producers returned
        with open_input(outputs, number) as stream:
            for record in stream.records():
                ...

    Home       the directory of a job's map outputs on this host; removing it deletes them all
    Output     one result partition while it is written (write, broadcast, send). `finish` returns its
               MapOutput; `abandon`, or leaving the context, deletes it
    MapOutput  a finished output: small and picklable. The caller brings it from producers to consumers
    Input      some subpartitions of all map outputs of an exchange, from files or through services

Each of these has its own module; `checks` validates arguments.

Records are any picklable objects or, if a schema is given, the rows of Arrow batches. A selector decides
where they go: one from `sortshuffle.partitioner`, or the caller's own (`writing.record_writer.KeySelector`).

Rules
* The classes only combine parts that `ShuffleRDD` and `ShuffleFrame` are made of. Spark is never imported.
* A map output can be read only when it is finished, and nothing here waits for that: start consumers after
  the producers have ended.
* Order is fixed: (map index, subpartition, region, position), whatever is read first. Subpartitions come in
  the order in which the caller asked for them.
* The caller runs failed tasks again. `DataLossError` says whose output is lost. If two outputs have one map
  index, pass one of them to consumers and release the other.
* Records are unpickled, which **runs the code that the pickles name**: open only outputs of your own job.
"""

from __future__ import annotations

from sortshuffle.engine.home import Home
from sortshuffle.engine.input import Input, open_input
from sortshuffle.engine.map_output import MapOutput, release
from sortshuffle.engine.output import Output, open_output
from sortshuffle.options import Options
from sortshuffle.payload.events import SUPERSTEP, Barrier, UserEvent
from sortshuffle.reading.records import BufferOrEvent

__all__ = [
    "SUPERSTEP",
    "Barrier",
    "BufferOrEvent",
    "Home",
    "Input",
    "MapOutput",
    "Options",
    "Output",
    "UserEvent",
    "open_input",
    "open_output",
    "release",
]
