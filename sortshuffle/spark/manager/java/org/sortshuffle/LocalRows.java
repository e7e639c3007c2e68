package org.sortshuffle;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import org.apache.spark.rdd.ParallelCollectionRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.plans.JoinType;
import org.apache.spark.sql.catalyst.plans.LeftAnti$;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Deduplicate;
import org.apache.spark.sql.catalyst.plans.logical.Distinct;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.GlobalLimit;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LeafNode;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Offset;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionOperation;
import org.apache.spark.sql.catalyst.plans.logical.Sample;
import org.apache.spark.sql.catalyst.plans.logical.Sort;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.columnar.InMemoryRelation;
import org.apache.spark.util.SizeEstimator;
import scala.Some;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The sizes of what a plan reads, as JSON, and whether its rows may be more: the driver's Python reads each
 * in one call of Py4J (sortshuffle/spark/plan/estimated_sizes.py).
 */
public final class LocalRows {
    private static final JsonFactory JSON = new JsonFactory();

    private LocalRows() {
    }

    /**
     * What Spark says of rows of unknown size, and for each leaf of an optimised plan Spark's estimate; if
     * its rows are an RDD that is made of data that the driver has sent, also the RDD's id and the bytes
     * sent.
     */
    public static String describe(LogicalPlan plan) throws IOException {
        StringWriter text = new StringWriter();
        try (JsonGenerator json = JSON.createGenerator(text)) {
            json.writeStartObject();
            json.writeNumberField("unknown", plan.conf().defaultSizeInBytes());
            json.writeArrayFieldStart("leaves");
            for (LogicalPlan leaf : CollectionConverters.asJava(plan.collectLeaves()))
                write(json, leaf);
            json.writeEndArray();
            json.writeEndObject();
        }
        return text.toString();
    }

    /** Whether an optimised plan may have many more rows than the sizes of its leaves tell. */
    public static boolean mayBeMore(LogicalPlan plan) {
        return plan.exists(node -> !(node instanceof LeafNode ? isMeasured(node) : addsNone(node)));
    }

    /** Whether the size of a leaf is not that of other rows, of which its rows were made. */
    private static boolean isMeasured(LogicalPlan leaf) {
        return !(leaf instanceof InMemoryRelation)
                && !(leaf instanceof LogicalRDD rows && isCheckpoint(rows));
    }

    /** Whether an RDD has the rows of a plan that was cut off. Then it keeps the statistics of that plan. */
    private static boolean isCheckpoint(LogicalRDD rows) {
        return rows.otherCopyArgs().exists(
                each -> each instanceof Some<?> some && some.value() instanceof Statistics);
    }

    /** Whether a node has at most as many rows as its inputs together. */
    private static boolean addsNone(LogicalPlan node) {
        return node instanceof Project || node instanceof Filter || node instanceof Aggregate
                || node instanceof Distinct || node instanceof Deduplicate || node instanceof Window
                || node instanceof Sort || node instanceof GlobalLimit || node instanceof LocalLimit
                || node instanceof Union || node instanceof RepartitionOperation || node instanceof Offset
                || (node instanceof Sample sample && !sample.withReplacement())
                || (node instanceof Join join && onlyLeft(join.joinType()));
    }

    /** Whether a join has at most the rows of its left side. */
    private static boolean onlyLeft(JoinType type) {
        return type == LeftSemi$.MODULE$ || type == LeftAnti$.MODULE$;
    }

    private static void write(JsonGenerator json, LogicalPlan leaf) throws IOException {
        json.writeStartObject();
        json.writeNumberField("size", leaf.stats().sizeInBytes().bigInteger());
        if (leaf instanceof LogicalRDD rows && first(rows.rdd()) instanceof ParallelCollectionRDD<?> sent) {
            json.writeNumberField("rdd", rows.rdd().id());
            json.writeNumberField("sent", SizeEstimator.estimate(sent.partitions()));
        }
        json.writeEndObject();
    }

    /** The RDD that an RDD is made of, through all that are made of one. */
    private static RDD<?> first(RDD<?> rdd) {
        RDD<?> found = rdd;
        while (found.dependencies().length() == 1)
            found = found.dependencies().head().rdd();
        return found;
    }
}
