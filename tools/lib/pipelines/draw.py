"""Draws pipelines. A pipeline is a list of `Step`s, each a line of PySpark code, so that it can be pasted.

Plain PySpark says which columns each step has, while the pipeline is drawn. It also refuses steps that are
wrong: some are kept as the last one, because both sides must raise the same error then.

What is not drawn, because plain PySpark itself does not decide it: sums of doubles (their last digits depend
on the order), which of several equal rows a limit or a dropDuplicates keeps, and samples. Nor are functions
on rows without columns, on which plain PySpark 4.3 fails, and what else its errors spoil (`_cogroups`).

Joins of a frame with what a function makes of it are drawn, but not kept if PySpark takes their columns for
ambiguous: docs/spark.md says that frames are not so strict.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st

from pipelines import functions
from pipelines.actions import ACTIONS

MOST_STEPS = 9
MOST_JOINS = 2  # each may multiply the rows
KEPT_ERRORS = 0.15  # the share of wrong steps that are kept
AMBIGUOUS = "_LEGACY_ERROR_TEMP_1182"  # the condition of PySpark's error for an ambiguous self join
SORTED = 0.25  # the share of pipelines that end with a sort, whose order is compared

JOINS = ("inner", "left", "right", "full", "semi", "anti")
WHOLE = (st.ByteType, st.ShortType, st.IntegerType)  # whose sums fit into a long, in any order
NUMBERS = (*WHOLE, st.LongType)
UNORDERED = (st.MapType, st.ArrayType, st.StructType, st.VariantType)
PLAIN = (*NUMBERS, st.StringType, st.BooleanType, st.DateType, st.DecimalType, st.BinaryType)
"""Types whose equal values print alike, which cannot be said of doubles."""

Names: TypeAlias = "list[str]"


@dataclass(frozen=True, slots=True)
class Step:
    """``name = code``. ``parent``: the frame that it continues; None for a source."""

    name: str
    code: str
    parent: str | None

    def __str__(self) -> str:
        return f"{self.name} = {self.code}"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps, of which the last is the result. ``seed``: what it was drawn from. ``order``: the columns by
    which the last step sorts, if it does. ``action``: what is done with the result besides `collect`."""

    seed: int
    steps: tuple[Step, ...]
    order: tuple[str, ...] = ()
    action: str = "count"

    def __str__(self) -> str:
        return "\n".join(map(str, self.steps))

    def run(self, session: SparkSession, directory: str) -> DataFrame:
        """Return the frame of the last step. ``directory``: of `functions.write_tables`."""
        names = namespace(session, directory)
        for step in self.steps:
            exec(str(step), names)  # the code is this module's own
        frame: DataFrame = names[self.steps[-1].name]
        return frame


def namespace(session: SparkSession, directory: str) -> dict[str, Any]:
    """Return what the code of steps refers to."""
    from pyspark.sql import functions as sf
    from pyspark.sql.window import Window

    return {"spark": session, "sf": sf, "Window": Window, "fn": functions, "directory": directory}


def draw(seed: int, session: SparkSession, directory: str) -> Pipeline:
    """Return the pipeline of a seed. ``session``: plain PySpark's."""
    return _Drawing(seed, session, directory).pipeline()


class _Drawing:
    """A pipeline that is being drawn."""

    def __init__(self, seed: int, session: SparkSession, directory: str) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.names = namespace(session, directory)
        self.steps: list[Step] = []
        self.joins = 0
        self.current = ""

    def pipeline(self) -> Pipeline:
        self.add_source()
        order: Names = []
        for _ in range(self.random.randint(2, MOST_STEPS)):
            kind = self.random.choices(list(STEPS), list(STEPS.values()))[0]
            code = kind(self)
            if code is not None and not self.add(code, self.current):
                break
        else:
            order = self.add_order() if self.random.random() < SORTED else []
        return Pipeline(self.seed, tuple(self.steps), tuple(order), self.pick(list(ACTIONS)))

    def add_order(self) -> Names:
        """Add a sort, perhaps with a limit. Return the columns by which it sorts."""
        names = self.some(self.columns(*PLAIN), 3)
        parts = []
        for name in names:
            direction = self.pick(["asc", "desc", "asc_nulls_last", "desc_nulls_first"])
            parts.append(f"sf.col({name!r}).{direction}()")
        code = f"{self.current}.{self.pick(['sort', 'orderBy'])}({', '.join(parts)})"
        if names and self.random.random() < 0.3:  # of these columns alone, so that equal rows are alike
            code += f".select({', '.join(map(repr, names))}).limit({self.pick([2, 10])})"
        before = self.current
        if names:
            self.add(code, before)
        return names if self.current != before else []

    def add_source(self) -> None:
        added = False
        while not added:
            added = self.add(self.pick(SOURCES)(self), None)

    def add(self, code: str, parent: str | None) -> bool:
        """Add a step, unless plain PySpark refuses it. Return whether the pipeline may go on."""
        name = f"f{len(self.steps)}"
        step = Step(name, code, parent)
        try:
            exec(str(step), self.names)
            _ = self.names[name].schema
        except PySparkException as error:
            is_kept = parent is not None and self.random.random() < KEPT_ERRORS
            is_kept = is_kept and error.getCondition() != AMBIGUOUS
            if is_kept:
                self.steps.append(step)
            return not is_kept and parent is not None
        self.steps.append(step)
        self.current = name
        return True

    # ---- what steps are made of ---------------------------------------------------------------------

    @property
    def schema(self) -> st.StructType:
        schema: st.StructType = self.names[self.current].schema
        return schema

    def columns(self, *kinds: type[st.DataType], unless: tuple[type[st.DataType], ...] = ()) -> Names:
        """Return the names of the columns of some types, if they are unique."""
        fields = [field for field in self.schema if self.schema.names.count(field.name) == 1]
        return [
            field.name
            for field in fields
            if (not kinds or isinstance(field.dataType, kinds)) and not isinstance(field.dataType, unless)
        ]

    def one(self, *kinds: type[st.DataType], unless: tuple[type[st.DataType], ...] = ()) -> str | None:
        names = self.columns(*kinds, unless=unless)
        return self.pick(names) if names else None

    def pick(self, choices: Sequence[Any]) -> Any:
        return self.random.choice(choices)

    def written(self, name: str) -> str:
        """Return the code of a column as methods take it: a text or a Column."""
        code: str = self.pick([repr(name), self.column(name)])
        return code

    def some(self, names: Names, most: int = 6) -> Names:
        return self.random.sample(names, self.random.randint(1, min(most, len(names)))) if names else []

    def column(self, name: str) -> str:
        """Return the code of a column: by its name, or of this frame, or of an earlier one."""
        earlier = [step.name for step in self.steps if name in self.names[step.name].columns]
        frame = self.pick([self.current, self.current, *earlier])
        return self.pick([f"sf.col({name!r})", f"{frame}[{name!r}]"])

    def condition(self) -> str | None:
        """Return the code of a boolean Column."""
        drawn = self.random
        choices: list[str] = []
        if (number := self.one(*NUMBERS)) is not None:
            comparison = drawn.choice([">", "<=", "==", "!="])
            choices.append(f"({self.column(number)} {comparison} {drawn.choice([0, 1, -1, 7])})")
            choices.append(f"{self.column(number)}.isin(0, 1, {drawn.choice([5, -1])})")
            choices.append(f"({self.column(number)} % 2 == 0)")
        if (text := self.one(st.StringType)) is not None:
            choices.append(f"({self.column(text)} >= {drawn.choice(['a', '', 'é'])!r})")
            choices.append(f"{self.column(text)}.like('%a%')")
            choices.append(f"(sf.length({self.column(text)}) > 1)")
        if (double := self.one(st.DoubleType, st.FloatType)) is not None:
            choices.append(f"({self.column(double)} < 1.5)")
            choices.append(f"sf.isnan({self.column(double)})")
        if (day := self.one(st.DateType)) is not None:
            choices.append(f"({self.column(day)} > sf.lit('2000-01-01').cast('date'))")
        if (name := self.one()) is not None:
            choices.append(f"{self.column(name)}.isNull()")
            choices.append(f"{self.column(name)}.isNotNull()")
        if not choices:
            return None
        first, second = drawn.choice(choices), drawn.choice(choices)
        return drawn.choice([first, first, f"({first} & {second})", f"({first} | {second})", f"~{first}"])

    def value(self) -> str:
        """Return the code of a Column of any type."""
        drawn = self.random
        choices = ["sf.lit(3)", "sf.lit('x')", "sf.lit(None).cast('int')"]
        if (number := self.one(*WHOLE)) is not None:
            column = self.column(number)
            choices += [
                f"({column}.cast('long') + 1)",
                f"{column}.cast('string')",
                f"sf.abs({column}.cast('long'))",
            ]
        if (text := self.one(st.StringType)) is not None:
            column = self.column(text)
            choices += [f"sf.upper({column})", f"sf.concat({column}, sf.lit('-'))", f"sf.length({column})"]
            choices.append(f"sf.coalesce({column}, sf.lit('none'))")
        if (condition := self.condition()) is not None:
            choices += [condition, f"sf.when({condition}, 1).otherwise(0)"]
        if (name := self.one()) is not None:
            choices += [self.column(name), f"sf.struct({self.column(name)})"]
        return drawn.choice(choices)

    def other(self) -> str:
        """Return the name of another frame of the pipeline: a new source, or an earlier step."""
        if len(self.steps) > 1 and self.random.random() < 0.5:
            return self.pick(self.steps).name
        current = self.current
        self.add_source()
        other, self.current = self.current, current
        if self.random.random() < 0.4:
            self.steps.append(
                Step(f"f{len(self.steps)}", f"{other}.mapInArrow(fn.same_batches, {other}.schema)", other)
            )
            other = self.steps[-1].name
            exec(str(self.steps[-1]), self.names)
        return other


# ---- sources ----------------------------------------------------------------------------------------------


def _table(drawing: _Drawing) -> str:
    names = [
        "id",
        *drawing.some([name for name in functions.every_type(1, 0).column_names if name != "id"], 7),
    ]
    return f"fn.table(spark, {drawing.pick(list(functions.ROWS))!r}, {names})"


def _range(drawing: _Drawing) -> str:
    count = drawing.pick([0, 5, 30])
    return f"spark.range({count}).withColumn('i', (sf.col('id') % 5).cast('int'))"


def _parquet(drawing: _Drawing) -> str:
    return f"spark.read.parquet(directory + '/{drawing.pick(['plain', 'parts'])}')"


def _sql(drawing: _Drawing) -> str:
    return 'spark.sql("select id, cast(id % 3 as int) as i, cast(id as string) as st from range(20)")'


SOURCES: list[Callable[[_Drawing], str]] = [_table, _table, _table, _range, _parquet, _parquet, _sql]


# ---- steps ------------------------------------------------------------------------------------------------


def _select(drawing: _Drawing) -> str | None:
    parts = [drawing.written(name) for name in drawing.some(drawing.columns())]
    for number in range(drawing.random.randint(0, 2)):
        parts.append(f"{drawing.value()}.alias('n{len(drawing.steps)}{number}')")
    return f"{drawing.current}.select({', '.join(parts)})" if parts else None


def _select_all_but(drawing: _Drawing) -> str | None:
    names = drawing.columns()
    kept = [name for name in names if drawing.random.random() < 0.8]
    return f"{drawing.current}.select({', '.join(map(repr, kept))})" if kept else None


def _select_expr(drawing: _Drawing) -> str | None:
    number = drawing.one(*WHOLE)
    if number is None:
        return None
    return f"{drawing.current}.selectExpr('*', 'cast({number} as long) * 2 as n{len(drawing.steps)}')"


def _with_column(drawing: _Drawing) -> str:
    name = drawing.pick([f"n{len(drawing.steps)}", drawing.one() or "id"])
    return f"{drawing.current}.withColumn({name!r}, {drawing.value()})"


def _rename(drawing: _Drawing) -> str | None:
    name = drawing.one()
    return f"{drawing.current}.withColumnRenamed({name!r}, 'n{len(drawing.steps)}')" if name else None


def _to_df(drawing: _Drawing) -> str:
    names = [f"c{number}" for number in range(len(drawing.schema))]
    return f"{drawing.current}.toDF({', '.join(map(repr, names))})"


def _drop(drawing: _Drawing) -> str | None:
    name = drawing.one()
    return f"{drawing.current}.drop({drawing.written(name)})" if name else None


def _filter(drawing: _Drawing) -> str | None:
    condition = drawing.condition()
    return f"{drawing.current}.filter({condition})" if condition else None


def _where(drawing: _Drawing) -> str | None:
    name = drawing.one()
    kind = drawing.pick(["is not null", "is null"])
    return f"{drawing.current}.where('`{name}` {kind}')" if name else None


def _distinct(drawing: _Drawing) -> str | None:
    names = drawing.some(drawing.columns(*PLAIN))
    return f"{drawing.current}.select({', '.join(map(repr, names))}).distinct()" if names else None


def _drop_duplicates(drawing: _Drawing) -> str | None:
    names = drawing.some(drawing.columns(*PLAIN), 3)
    return (
        f"{drawing.current}.dropDuplicates({names}).select({', '.join(map(repr, names))})" if names else None
    )


def _sort(drawing: _Drawing) -> str | None:
    parts = []
    for name in drawing.some(drawing.columns(unless=UNORDERED), 3):
        column = drawing.column(name)
        parts.append(drawing.pick([column, f"{column}.desc()", f"{column}.asc_nulls_last()"]))
    return f"{drawing.current}.sort({', '.join(parts)})" if parts else None


def _first_rows(drawing: _Drawing) -> str | None:
    """A limit behind a sort by all columns, so that equal rows are alike."""
    names = drawing.some(drawing.columns(*PLAIN))
    if not names:
        return None
    listed = ", ".join(map(repr, names))
    return f"{drawing.current}.select({listed}).sort({listed}).limit({drawing.pick([0, 3, 20])})"


def _sort_partitions(drawing: _Drawing) -> str | None:
    name = drawing.one(unless=UNORDERED)
    return f"{drawing.current}.sortWithinPartitions({name!r})" if name else None


def _repartition(drawing: _Drawing) -> str:
    count, keys = drawing.pick([1, 3, 5]), drawing.some(drawing.columns(unless=(st.MapType,)), 2)
    columns = ", ".join(drawing.written(key) for key in keys)
    forms = [f"repartition({count})", f"coalesce({count})"]
    if keys:
        forms += [f"repartition({count}, {columns})", f"repartition({columns})"] * 2
    if (name := drawing.one(unless=UNORDERED)) is not None:
        forms.append(f"repartitionByRange({count}, {drawing.column(name)})")
    if (name := drawing.one(st.IntegerType)) is not None:
        forms.append(f"repartitionById({count}, {name!r})")
    return f"{drawing.current}.{drawing.pick(forms)}"


def _union(drawing: _Drawing) -> str:
    other = drawing.other()
    if drawing.names[other].columns == drawing.names[drawing.current].columns:
        return f"{drawing.current}.{drawing.pick(['union', 'unionByName'])}({other})"
    form = drawing.pick([f"union({drawing.current})", f"unionByName({other}, allowMissingColumns=True)"])
    return f"{drawing.current}.{form}"


def _sets(drawing: _Drawing) -> str | None:
    names = drawing.some(drawing.columns(*PLAIN), 3)
    if not names:
        return None
    listed = ", ".join(map(repr, names))
    method = drawing.pick(["intersect", "subtract", "exceptAll", "intersectAll"])
    return f"{drawing.current}.select({listed}).{method}({drawing.current}.limit(9999).select({listed}))"


def _join(drawing: _Drawing) -> str | None:
    if drawing.joins == MOST_JOINS:
        return None
    other = drawing.other()
    frame, how = drawing.current, drawing.pick(JOINS)
    shared = [name for name in drawing.columns(*PLAIN) if drawing.names[other].columns.count(name) == 1]
    if not shared:
        return None
    drawing.joins += 1
    key = drawing.pick(shared)
    right = drawing.pick([other, other, f"sf.broadcast({other})", f"{other}.hint('broadcast')"])
    if drawing.random.random() < 0.5:
        return f"{frame}.join({right}, {key!r}, {how!r})"
    if drawing.random.random() < 0.5:
        left, theirs = f"sf.col('l.{key}')", f"sf.col('r.{key}')"
        joined = f"{frame}.alias('l').join({right}.alias('r'), {left} == {theirs}, {how!r})"
    else:
        left, theirs = f"{frame}[{key!r}]", f"{other}[{key!r}]"
        joined = f"{frame}.join({right}, {left} == {theirs}, {how!r})"
    wanted = left if how in ("semi", "anti") else f"{left}, {theirs}.alias('right')"
    return f"{joined}.select({wanted})"


def _aggregate(drawing: _Drawing) -> str | None:
    keys = drawing.some(drawing.columns(*PLAIN, st.DoubleType), 2)
    calls = ["sf.count('*').alias('rows')"]
    for name in drawing.some(drawing.columns(*WHOLE), 2):
        function = drawing.pick(["sum", "avg", "min", "max"])
        calls.append(f"sf.{function}({drawing.column(name)}).alias('a_{name}')")
    for name in drawing.some(drawing.columns(*PLAIN), 2):
        function = drawing.pick(["count", "min", "max", "count_distinct"])
        calls.append(f"sf.{function}({name!r}).alias('b_{name}')")
    for name in drawing.some(drawing.columns(*PLAIN), 1):
        calls.append(f"sf.sort_array(sf.collect_list({name!r})).alias('c_{name}')")
    grouped = drawing.pick(["groupBy"] * 6 + ["rollup", "cube"])
    aggregates = f"agg({', '.join(drawing.some(calls, 3))})"
    form = drawing.pick([aggregates, aggregates, aggregates, "count()"])
    return f"{drawing.current}.{grouped}({', '.join(map(drawing.written, keys))}).{form}"


def _pivot(drawing: _Drawing) -> str | None:
    key, name = drawing.one(*PLAIN), drawing.one(st.BooleanType)
    if key is None or name is None:
        return None
    return f"{drawing.current}.groupBy({key!r}).pivot({name!r}, [True, False]).count()"


def _window(drawing: _Drawing) -> str | None:
    key, order = drawing.one(*PLAIN), drawing.one(unless=UNORDERED)
    if key is None or order is None:
        return None
    window = f"Window.partitionBy({drawing.column(key)}).orderBy({order!r})"
    call = drawing.pick(["rank", "dense_rank"])
    return f"{drawing.current}.withColumn('n{len(drawing.steps)}', sf.{call}().over({window}))"


def _explode(drawing: _Drawing) -> str | None:
    name = drawing.one(st.ArrayType)
    return (
        f"{drawing.current}.withColumn('n{len(drawing.steps)}', sf.explode_outer({name!r}))" if name else None
    )


def _missing_values(drawing: _Drawing) -> str:
    form = drawing.pick(["na.fill(7)", "na.fill('none')", "na.drop('all')", "fillna({'i': 1})", "dropna()"])
    return f"{drawing.current}.{form}"


def _keep(drawing: _Drawing) -> str:
    form = drawing.pick(["cache()", "localCheckpoint()", "hint('broadcast')"])
    return f"{drawing.current}.{form}"


def _view(drawing: _Drawing) -> str:
    return f"spark.sql('select * from {{frame}}', frame={drawing.current})"


def _map(drawing: _Drawing) -> str | None:
    if not drawing.schema.names:
        return None
    forms = ["mapInArrow(fn.same_batches", "mapInArrow(fn.reversed_batches", "mapInArrow(fn.valid_batches"]
    forms += ["mapInPandas(fn.same_frames", "mapInPandas(fn.doubled_frames"]
    return f"{drawing.current}.{drawing.pick(forms)}, {drawing.current}.schema)"


def _loop(drawing: _Drawing) -> str:
    keys = drawing.some(drawing.columns(*PLAIN), 1) if drawing.random.random() < 0.5 else []
    listed = "".join(f", {key!r}" for key in keys)
    return f"fn.digits_of_loop({drawing.current}, 'n{len(drawing.steps)}'{listed})"


def _groups(drawing: _Drawing) -> str | None:
    if not drawing.schema.names:
        return None
    keys = drawing.some(drawing.columns(*PLAIN, st.DoubleType), 2)
    listed = ", ".join(drawing.written(key) for key in keys)
    frame = drawing.current
    form = drawing.pick(
        [
            f"applyInPandas(fn.same_group, {frame}.schema)",
            f"applyInArrow(fn.same_group, {frame}.schema)",
            "applyInPandas(fn.size_in_pandas, 'key string, size long')",
            "applyInArrow(fn.size_in_arrow, 'key string, size long')",
        ]
    )
    return f"{frame}.groupBy({listed}).{form}"


def _cogroups(drawing: _Drawing) -> str | None:
    other = drawing.other()
    theirs = drawing.names[other].schema
    shared = [
        name
        for name in drawing.columns(*PLAIN)
        if theirs.names.count(name) == 1
        and theirs[name].dataType == drawing.schema[name].dataType
        # plain PySpark looks for nulls in both keys only if there may be some in the left one
        and (drawing.schema[name].nullable or not theirs[name].nullable)
    ]
    if not shared:
        return None
    key = drawing.pick(shared)
    form = drawing.pick(
        [
            "applyInPandas(fn.sizes_in_pandas, 'left long, right long')",
            "applyInArrow(fn.sizes_in_arrow, 'key string, left long, right long')",
        ]
    )
    return f"{drawing.current}.groupBy({key!r}).cogroup({other}.groupBy({key!r})).{form}"


STEPS: dict[Callable[[_Drawing], str | None], int] = {
    _map: 9,
    _loop: 2,
    _groups: 6,
    _cogroups: 3,
    _repartition: 8,
    _select: 4,
    _select_all_but: 2,
    _select_expr: 1,
    _with_column: 4,
    _rename: 2,
    _to_df: 1,
    _drop: 2,
    _filter: 5,
    _where: 1,
    _distinct: 2,
    _drop_duplicates: 2,
    _sort: 3,
    _first_rows: 1,
    _sort_partitions: 1,
    _union: 3,
    _sets: 1,
    _join: 5,
    _aggregate: 5,
    _pivot: 1,
    _window: 1,
    _explode: 1,
    _missing_values: 1,
    _keep: 2,
    _view: 1,
}
"""The kinds of steps, with their weights: about half of the pipelines have two functions and an exchange."""


def without(pipeline: Pipeline, dropped: Step) -> Pipeline:
    """Return a pipeline without a step, whose parent takes its place."""
    assert dropped.parent is not None
    kept = []
    for step in pipeline.steps:
        if step is dropped:
            continue
        code = re.sub(rf"\b{dropped.name}\b", dropped.parent, step.code)
        parent = dropped.parent if step.parent == dropped.name else step.parent
        kept.append(replace(step, code=code, parent=parent))
    order = () if dropped is pipeline.steps[-1] else pipeline.order
    return replace(pipeline, steps=tuple(kept), order=order)
