package org.sortshuffle;

import java.io.IOException;
import java.io.OutputStream;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;

/**
 * Records that go to the engine together, and the stream through which a serializer writes them.
 *
 * <p>A record is what is written between two calls of {@link #endRecord}. The frame begins small and doubles
 * as far as its task is granted memory. A frame that is full, or may not grow, is sent when the next bytes do
 * not fit; what has begun of a record moves to the beginning of the next frame. A single record that is
 * larger than a frame gets all the memory that it needs, granted or not, in a frame of its own.
 */
final class Frame extends OutputStream {
    /** Bytes of records in a frame, at most: the protocol's limit. */
    static final int MOST_BYTES = 4 << 20;

    /** Records in a frame, at most: the protocol's limit. */
    static final int MOST_ROWS = 1 << 18;

    /** Bytes that a frame has if nothing is granted, and begins with: tasks of small jobs need no more. */
    static final int LEAST_BYTES = 64 << 10;

    private static final int LEAST_ROWS = LEAST_BYTES / 64;
    private static final int ROW_BYTES = 2 * Integer.BYTES;

    /** The longest array that every JVM allocates. */
    private static final int MOST_ARRAY = Integer.MAX_VALUE - 8;

    private final FrameMemory memory;
    private final MapOutput output;
    private int allowed = LEAST_BYTES; // bytes that it keeps; only a single record makes it larger
    private byte[] bytes = new byte[LEAST_BYTES];
    private int[] ids = new int[LEAST_ROWS];
    private int[] ends = new int[LEAST_ROWS];
    private long extra; // bytes that are charged for a single large record
    private int rows;
    private int begun; // where the record that is being written begins
    private int end;

    Frame(FrameMemory memory, MapOutput output) {
        this.memory = memory;
        this.output = output;
        memory.acquire(LEAST_BYTES + ROW_BYTES * LEAST_ROWS);
    }

    @Override
    public void write(int value) throws IOException {
        if (end == bytes.length)
            makeRoom(1);
        bytes[end++] = (byte) value;
    }

    @Override
    public void write(byte[] from, int offset, int length) throws IOException {
        if (length > bytes.length - end)
            makeRoom(length);
        System.arraycopy(from, offset, bytes, end, length);
        end += length;
    }

    /** Writes a row as Spark's serializer does ({@link UnsafeRows}). */
    void writeRow(UnsafeRow row) throws IOException {
        int size = row.getSizeInBytes();
        if (size > bytes.length - end - Integer.BYTES)
            makeRoom((long) Integer.BYTES + size);
        UnsafeRows.LENGTH.set(bytes, end, size);
        Platform.copyMemory(row.getBaseObject(), row.getBaseOffset(), bytes,
                Platform.BYTE_ARRAY_OFFSET + end + Integer.BYTES, size);
        end += Integer.BYTES + size;
    }

    /** What has been written since the last call is a record of that subpartition. */
    void endRecord(int subpartition) throws IOException {
        if (rows == ids.length)
            makeRoomForRow();
        ids[rows] = subpartition;
        ends[rows++] = end;
        begun = end;
        if (bytes.length > allowed)
            ship();
    }

    /** Sends what is left. */
    void finish() throws IOException {
        if (rows > 0)
            ship();
    }

    private void makeRoom(long length) throws IOException {
        while (length > bytes.length - end) {
            long wanted = end + length;
            if (wanted <= MOST_BYTES && bytes.length == allowed && tryGrow((int) wanted))
                return;
            if (rows > 0)
                ship();
            else
                growAnyway(wanted);
        }
    }

    private boolean tryGrow(int wanted) {
        int size = bytes.length;
        while (size < wanted)
            size *= 2;
        size = Math.min(size, MOST_BYTES);
        if (!memory.tryAcquire(size - bytes.length))
            return false;
        allowed = size;
        bytes = Arrays.copyOf(bytes, size);
        return true;
    }

    private void growAnyway(long wanted) throws IOException {
        if (wanted > MOST_ARRAY)
            throw new IOException("A record of more than 2 GiB cannot be shuffled");
        int size = (int) Math.min(MOST_ARRAY, Math.max(wanted, 2L * bytes.length));
        extra += memory.acquire(size - bytes.length);
        bytes = Arrays.copyOf(bytes, size);
    }

    private void makeRoomForRow() throws IOException {
        if (rows < MOST_ROWS && memory.tryAcquire((long) ROW_BYTES * rows)) {
            ids = Arrays.copyOf(ids, 2 * rows);
            ends = Arrays.copyOf(ends, 2 * rows);
        } else {
            ship();
        }
    }

    /** Sends the complete records, and moves what has begun to the beginning. */
    private void ship() throws IOException {
        output.send(ids, ends, rows, bytes, begun);
        int moved = end - begun;
        if (bytes.length > allowed) {
            bytes = new byte[allowed]; // a large record was alone in it: nothing is moved
            memory.freeMemory(extra);
            extra = 0;
        } else {
            System.arraycopy(bytes, begun, bytes, 0, moved);
        }
        rows = 0;
        begun = 0;
        end = moved;
    }
}
