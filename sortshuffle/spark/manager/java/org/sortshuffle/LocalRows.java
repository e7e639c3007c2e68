package org.sortshuffle;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import org.apache.spark.rdd.ParallelCollectionRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.util.SizeEstimator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The sizes of what a plan reads, as JSON: the driver's Python reads them in one call of Py4J
 * (sortshuffle/spark/plan/estimated_sizes.py).
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
