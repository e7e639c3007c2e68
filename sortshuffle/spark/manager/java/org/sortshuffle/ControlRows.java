package org.sortshuffle;

import java.lang.invoke.SerializedLambda;
import java.lang.reflect.Field;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.rdd.MapPartitionsRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.execution.UnsafeRowSerializer;
import org.apache.spark.util.IndylambdaScalaClosures$;
import scala.Option;
import scala.collection.Seq;

/**
 * Which shuffles move the control rows of this package's own frames and RDDs. They have a name that nobody
 * else gives: a column of a frame's control rows has it, and so has the RDD of an RDD's.
 *
 * <p>A shuffle of SQL does not say which columns it moves. But its RDD has the function that tells each row
 * its partition, and that function has the columns (`ShuffleExchangeExec.prepareShuffleDependency`, alike in
 * Spark 4.1 to 4.3). This asks no plan, no session and no thread, so it holds however Spark came to plan the
 * shuffle. Control rows must never be missed: a shuffle of SQL whose columns are not found stays Spark's.
 */
final class ControlRows {
    /** As in `spark/control_rows.py`. */
    static final String MARK = "sortshuffle_control_rows";

    private static final String FOUND = "control rows of sortshuffle's own frames and RDDs";
    static final String UNKNOWN = "rows whose columns are not found, which may be control rows";

    private ControlRows() {
    }

    /** Why a shuffle must be left to Spark; null if it moves no control rows. */
    static String reasonForSpark(ShuffleDependency<?, ?, ?> dependency) {
        if (MARK.equals(dependency.rdd().name()))
            return FOUND;
        if (!(dependency.serializer() instanceof UnsafeRowSerializer))
            return null;
        Seq<?> columns = columnsOf(dependency.rdd());
        if (columns == null)
            return UNKNOWN;
        return columns.exists(column -> ((Attribute) column).name().equals(MARK)) ? FOUND : null;
    }

    private static Seq<?> columnsOf(RDD<?> rdd) {
        if (!(rdd instanceof MapPartitionsRDD))
            return null;
        try {
            Field function = MapPartitionsRDD.class.getDeclaredField("f");
            function.setAccessible(true);
            return columnsIn(function.get(rdd));
        } catch (ReflectiveOperationException e) {
            return null;
        }
    }

    /** The columns that a function of Scala's holds, itself or in a function that it calls. */
    private static Seq<?> columnsIn(Object value) {
        if (value instanceof Seq<?> found)
            return found.forall(each -> each instanceof Attribute) ? found : null;
        if (value == null)
            return null;
        Option<SerializedLambda> held = IndylambdaScalaClosures$.MODULE$.getSerializationProxy(value);
        Seq<?> columns = null;
        for (int at = 0; held.isDefined() && columns == null && at < held.get().getCapturedArgCount(); at++)
            columns = columnsIn(held.get().getCapturedArg(at));
        return columns;
    }
}
