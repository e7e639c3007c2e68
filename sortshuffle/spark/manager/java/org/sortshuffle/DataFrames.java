package org.sortshuffle;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import scala.collection.immutable.Seq;

/**
 * What a frame is made of, as JSON: the driver's Python reads it of each DataFrame in one call of Py4J
 * (sortshuffle/spark/operators/dataframe_facts.py).
 */
public final class DataFrames {
    private static final JsonFactory JSON = new JsonFactory();

    private DataFrames() {
    }

    /** The schema, the class of the only source, and whether rows come without an end. */
    public static String describe(Dataset<?> rows) throws IOException {
        StringWriter text = new StringWriter();
        try (JsonGenerator json = JSON.createGenerator(text)) {
            json.writeStartObject();
            json.writeBooleanField("streaming", rows.isStreaming());
            json.writeStringField("source", source(rows.queryExecution().analyzed().collectLeaves()));
            json.writeFieldName("schema");
            json.writeRawValue(rows.schema().json());
            json.writeEndObject();
        }
        return text.toString();
    }

    /** The class of the only leaf of a plan, or of its relation if it has one. Empty: there are several. */
    private static String source(Seq<LogicalPlan> leaves) {
        if (leaves.length() != 1)
            return "";
        LogicalPlan leaf = leaves.head();
        return (leaf instanceof LogicalRelation found ? found.relation() : leaf).getClass().getName();
    }
}
