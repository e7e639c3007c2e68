"""The engine, without Spark: what stands under its doors, for processes of one's own.

Whoever schedules processes (`multiprocessing`, a scheduler that somebody wrote) shuffles with it:

    with Home.of("/data") as home:
        # in each producer; `number` is its own
        with open_output(home, KeyGroupSelector((0,), 4, 128), number) as output:
            output.write(records, keys)
            return output.finish()
        # in each consumer; `outputs` is what all producers returned
        with open_input(outputs, number) as stream:
            for record in stream.records():
                ...

    Home       where map outputs lie on this host; all that is in it goes with it
    Output     one result partition: open --write, broadcast, send--> open --finish--> a MapOutput
                                          \\-----abandon, or leaving the context-----> nothing is left
    MapOutput  small and picklable; how it gets from producers to consumers is the caller's affair
    Input      some subpartitions of all map outputs of an exchange, from files or through services

Each has a module of its name; `checks` holds what is refused at the call.

Records are any objects that pickle takes, or, where a schema is given, the rows of Arrow batches. Where they
go says a selector, of `sortshuffle.partitioner` or of one's own (`writing.record_writer.KeySelector`).

Rules
* Nothing new stands here: the classes only put together what `ShuffleRDD` and `ShuffleFrame` are made of.
  Spark is never imported.
* A map output can be read only when it is finished. Nobody waits here for anybody: consumers are started when
  the producers have ended.
* Order is fixed: (map index, subpartition, region, position), whatever is read first. Subpartitions are in
  the order in which they were asked for.
* Running a task again is the caller's affair too. `DataLossError` says whose output is lost. Of two outputs
  with one map index a consumer takes one; the other is to be released.
* Records are unpickled, which **runs what the pickles name**: only outputs of one's own job are to be opened.
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
