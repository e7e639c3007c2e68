package org.sortshuffle;

import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.NoSuchElementException;
import org.apache.spark.serializer.Serializer;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.UnsafeRowSerializer;
import org.apache.spark.sql.execution.UnsafeRowSerializerInstance;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.unsafe.Platform;
import scala.Tuple2;
import scala.collection.AbstractIterator;

/**
 * Rows of Spark SQL, in the format of their serializer: a row's length (four bytes, big endian), and its
 * bytes as they are in memory. They are copied here without its streams, which take four locks for a row on
 * either side.
 *
 * <p>Reads give the same row object again and again, as Spark's do. What it points to stays as it is until
 * the row after it is asked for; {@link #hasNext} leaves it alone.
 */
final class UnsafeRows extends AbstractIterator<Tuple2<Object, Object>> {
    static final VarHandle LENGTH = MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);

    /** Rows that are larger get a buffer as large as they are. Fits the second-level cache, twice. */
    private static final int BUFFER_BYTES = 64 << 10;

    private final RecordStream stream;
    private final UnsafeRow row;
    private final Tuple2<Object, Object> record;
    private byte[] bytes = {};
    private byte[] spare = {}; // the buffer before; the last row may still be in it
    private int at;
    private int end;

    UnsafeRows(Serializer serializer, RecordStream stream) {
        this.stream = stream;
        this.row = new UnsafeRow(
                instance(serializer).org$apache$spark$sql$execution$UnsafeRowSerializerInstance$$numFields);
        this.record = new Tuple2<>(0, row);
    }

    /** Rows lie anywhere in a buffer: a machine that reads aligned words only needs Spark's streams. */
    static boolean areOf(Serializer serializer) {
        return serializer instanceof UnsafeRowSerializer && Platform.unaligned();
    }

    /** What Spark counts the rows' bytes in, for adaptive execution. Null if it does not. */
    static SQLMetric dataSize(Serializer serializer) {
        return instance(serializer).org$apache$spark$sql$execution$UnsafeRowSerializerInstance$$dataSize;
    }

    private static UnsafeRowSerializerInstance instance(Serializer serializer) {
        return (UnsafeRowSerializerInstance) serializer.newInstance();
    }

    @Override
    public boolean hasNext() {
        return at < end || fill(1);
    }

    @Override
    public Tuple2<Object, Object> next() {
        if (!hasNext())
            throw new NoSuchElementException();
        require(Integer.BYTES);
        int size = (int) LENGTH.get(bytes, at);
        require(Integer.BYTES + size);
        row.pointTo(bytes, Platform.BYTE_ARRAY_OFFSET + at + Integer.BYTES, size);
        at += Integer.BYTES + size;
        stream.countRecord();
        return record;
    }

    private void require(int wanted) {
        if (end - at < wanted && !fill(wanted))
            throw RecordStream.sneaky(
                    new IOException("The shuffle engine's records end in the middle of a row"));
    }

    /** Goes on in the other buffer, with what is left, until it has so many bytes. False at the end. */
    private boolean fill(int wanted) {
        try {
            int left = end - at;
            int first = left == 0 ? stream.read() : -1;
            if (left == 0 && first < 0)
                return false; // most readers need one buffer only
            int size = Math.max(wanted, BUFFER_BYTES);
            byte[] next = spare.length == size ? spare : new byte[size];
            System.arraycopy(bytes, at, next, 0, left);
            spare = bytes;
            bytes = next;
            at = 0;
            end = left;
            if (left == 0)
                bytes[end++] = (byte) first;
            int least = Math.max(wanted, Integer.BYTES); // a row has more than the byte that hasNext() wants
            while (end < least) {
                int piece = stream.read(bytes, end, bytes.length - end);
                if (piece < 0)
                    return end >= wanted;
                end += piece;
            }
            return true;
        } catch (IOException e) {
            throw RecordStream.sneaky(e);
        }
    }
}
