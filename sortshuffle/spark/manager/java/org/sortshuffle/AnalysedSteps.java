package org.sortshuffle;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import java.util.HashSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.classic.Dataset;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * How Spark analysed a call, as JSON: the driver's Python reads it in one call of Py4J
 * (sortshuffle/spark/operators/catalyst.py).
 */
public final class AnalysedSteps {
    private static final JsonFactory JSON = new JsonFactory();

    private AnalysedSteps() {
    }

    /**
     * The one filter or selection that is the plan of a result, directly on the plan of the rows: the names
     * and ids of the rows' columns, the result's schema and ids, and Spark's JSON of the expressions. Null
     * stands for a column that is passed on, and for an expression that Spark cannot print. Empty: the
     * result's plan is anything else.
     */
    public static String describe(Dataset<?> rows, Dataset<?> result) throws IOException {
        LogicalPlan below = rows.queryExecution().analyzed();
        LogicalPlan plan = result.queryExecution().analyzed();
        boolean isFilter = plan instanceof Filter;
        if (!(isFilter || plan instanceof Project) || !plan.children().head().equals(below))
            return "";
        Set<Long> passedOn = new HashSet<>();
        StringWriter text = new StringWriter();
        try (JsonGenerator json = JSON.createGenerator(text)) {
            json.writeStartObject();
            json.writeFieldName("schema");
            json.writeRawValue(result.schema().json());
            json.writeBooleanField("filter", isFilter);
            json.writeArrayFieldStart("columns");
            for (Attribute each : CollectionConverters.asJava(below.output())) {
                passedOn.add(each.exprId().id());
                json.writeNumber(each.exprId().id());
            }
            json.writeEndArray();
            json.writeArrayFieldStart("names");
            for (Attribute each : CollectionConverters.asJava(below.output()))
                json.writeString(each.name());
            json.writeEndArray();
            json.writeArrayFieldStart("results");
            for (Attribute each : CollectionConverters.asJava(plan.output()))
                json.writeNumber(each.exprId().id());
            json.writeEndArray();
            json.writeArrayFieldStart("expressions");
            Seq<Expression> expressions = plan.expressions();
            for (int at = 0; at < expressions.length(); at++) {
                boolean isNew = isFilter || !passedOn.contains(plan.output().apply(at).exprId().id());
                json.writeString(isNew ? print(expressions.apply(at)) : null);
            }
            json.writeEndArray();
            json.writeEndObject();
        }
        return text.toString();
    }

    private static String print(Expression expression) {
        try {
            return expression.toJSON();
        } catch (RuntimeException | AssertionError error) {
            return null; // a class whose fields differ from the arguments of its constructor
        }
    }
}
