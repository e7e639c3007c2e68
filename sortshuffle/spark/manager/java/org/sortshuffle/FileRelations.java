package org.sortshuffle;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import java.util.List;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.types.StructType;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What a relation of files is, and which files it has, as JSON: the driver's Python reads each in one call of
 * Py4J, however many files there are
 * (sortshuffle/spark/operators/file_relation.py).
 */
public final class FileRelations {
    private static final JsonFactory JSON = new JsonFactory();

    private FileRelations() {
    }

    /** What is known without listing files. Classes are named in full; schemas are Spark's JSON, as texts. */
    public static String describe(HadoopFsRelation relation) throws IOException {
        StringWriter text = new StringWriter();
        try (JsonGenerator json = JSON.createGenerator(text)) {
            json.writeStartObject();
            json.writeStringField("format", relation.fileFormat().getClass().getName());
            json.writeStringField("index", relation.location().getClass().getName());
            json.writeStringField("schema", relation.schema().json());
            json.writeStringField("partitionSchema", relation.partitionSchema().json());
            json.writeBooleanField("bucketed", relation.bucketSpec().isDefined());
            json.writeObjectFieldStart("options");
            for (var option : CollectionConverters.asJava(relation.options()).entrySet())
                json.writeStringField(option.getKey(), option.getValue());
            json.writeEndObject();
            json.writeArrayFieldStart("roots");
            for (Path root : CollectionConverters.asJava(relation.location().rootPaths()))
                json.writeString(root.toString());
            json.writeEndArray();
            json.writeEndObject();
        }
        return text.toString();
    }

    /**
     * All files, as Spark's scan lists them: [[values, [path, bytes, path, bytes, ...]], ...]. The values are
     * those of the partition columns, as Spark stores them, in the texts of Java, or null.
     */
    public static String list(HadoopFsRelation relation) throws IOException {
        Seq<Expression> all = CollectionConverters.asScala(List.<Expression>of()).toSeq();
        StringWriter text = new StringWriter();
        try (JsonGenerator json = JSON.createGenerator(text)) {
            json.writeStartArray();
            for (PartitionDirectory each :
                    CollectionConverters.asJava(relation.location().listFiles(all, all))) {
                json.writeStartArray();
                writeValues(json, each.values(), relation.partitionSchema());
                json.writeStartArray();
                for (FileStatusWithMetadata file : CollectionConverters.asJava(each.files())) {
                    json.writeString(file.getPath().toString());
                    json.writeNumber(file.getLen());
                }
                json.writeEndArray();
                json.writeEndArray();
            }
            json.writeEndArray();
        }
        return text.toString();
    }

    private static void writeValues(JsonGenerator json, InternalRow values, StructType types)
            throws IOException {
        json.writeStartArray();
        for (int at = 0; at < types.length(); at++) {
            if (values.isNullAt(at))
                json.writeNull();
            else
                json.writeString(values.get(at, types.apply(at).dataType()).toString());
        }
        json.writeEndArray();
    }
}
