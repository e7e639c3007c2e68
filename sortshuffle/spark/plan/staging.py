"""Puts a chain into Spark's plan as a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from sortshuffle.spark.plan import skew
from sortshuffle.spark.plan.chain import Chain, Origin
from sortshuffle.spark.plan.spark_cache import kept_beginning
from sortshuffle.spark.session.requirements import application_of, check_workers
from sortshuffle.spark.worker.numbered import NUMBER, ReadNumbered
from sortshuffle.spark.worker.reports import wants_log
from sortshuffle.spark.worker.stages import Closing, Opening, Stage, Step, need_number


def plan_stage(
    chain: Chain,
    number: int,
    closing: Closing,
    schema: StructType | str,
    *,
    purpose: str = "",
) -> DataFrame:
    """Return the chain as a stage in Spark's plan, which ends in ``closing``, whose rows have ``schema``.

    ``purpose``: shown in Spark's UI, such as "writes exchange 3". May run jobs: to measure skew, to place
    exchanges and to check the workers. Raises `WorkerSetupError` if the workers cannot run the stage.
    """
    context = chain.context
    check_workers(context.spark, context.services.key is not None)
    kept, steps = kept_beginning(chain, chain.steps)
    origin = skew.sliced_origin(chain) if kept is None else kept
    rows, opening = _numbered(origin.rows(), origin.opening(), steps)
    stage = Stage(
        number,
        context.options,
        application_of(context.spark),
        opening,
        steps,
        closing,
        context.reports.reporter,
        wants_log(),
        context.services.for_stage(context.spark_context(), lambda: context.planner.is_indeterminate(rows)),
    )

    def run(batches: Any) -> Any:
        return stage(batches)

    run.__name__ = stage_name(number, origin, purpose)
    return rows.mapInArrow(run, schema)


def _numbered(rows: DataFrame, opening: Opening, steps: Sequence[Step]) -> tuple[DataFrame, Opening]:
    """Return rows that carry the number of their partition, and what opens them, if a step needs the number
    (`spark.worker.numbered`); otherwise return the same."""
    if not (opening.needs_number or need_number(steps)):
        return rows, opening
    # Spark computes an ordinary column of local rows while it plans, and all of them would have the number 0.
    # It does not do so with a generator. But of `explode` it knows that no rows give no rows: it would leave
    # out the stage over an input that turned out to be empty, though a function may make rows there
    number = sf.inline(sf.array(sf.struct(sf.spark_partition_id().alias(NUMBER))))
    return rows.select("*", number), ReadNumbered(opening)


def stage_name(number: int, origin: Origin, purpose: str = "") -> str:
    """Return the name of a stage in Spark's plans."""
    name = f"sortshuffle stage {number}"
    read = [str(exchange.number) for exchange in origin.exchanges()]
    if read:
        name += f", reads exchange {', '.join(read)}"
    return f"{name}, {purpose}" if purpose else name
