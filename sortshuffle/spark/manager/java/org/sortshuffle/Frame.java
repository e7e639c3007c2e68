package org.sortshuffle;

import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.unsafe.Platform;

/**
 * Records that go to the engine together, and the stream through which a serializer writes them.
 *
 * <p>A record is what is written between two calls of {@link #endRecord}. Records are collected in a slot of
 * the map output. When the next bytes do not fit, the complete records are sent, and what has begun moves to
 * the next slot. A record that is larger than a slot is collected in memory of its own, as much as it needs,
 * granted or not, and sent alone.
 */
final class Frame extends OutputStream {
    /** The longest array that every JVM allocates. */
    private static final int MOST_ARRAY = Integer.MAX_VALUE - 8;

    /** Bytes of rows that are in no array of bytes go through one, so many at a time. */
    private static final int COPY_BYTES = 4 << 10;

    private final FrameMemory memory;
    private final MapOutput output;
    private final byte[] copy = new byte[COPY_BYTES];
    private ByteBuffer slot;
    private int rows;
    private int begun; // where the record that is being written begins, in the slot's records
    private int end;
    private byte[] large; // the record that is being written, if no slot holds it; then the slot is empty
    private int largeEnd;
    private long largeCharged;

    Frame(FrameMemory memory, MapOutput output) throws IOException {
        this.memory = memory;
        this.output = output;
        memory.acquire(Slots.BYTES);
        slot = output.slot();
    }

    @Override
    public void write(int value) throws IOException {
        if (!fits(1))
            large[largeEnd++] = (byte) value;
        else
            slot.put(Slots.RECORDS + end++, (byte) value);
    }

    @Override
    public void write(byte[] from, int offset, int length) throws IOException {
        if (fits(length)) {
            slot.put(Slots.RECORDS + end, from, offset, length);
            end += length;
        } else {
            System.arraycopy(from, offset, large, largeEnd, length);
            largeEnd += length;
        }
    }

    /** Writes a row as Spark's serializer does ({@link UnsafeRows}). */
    void writeRow(UnsafeRow row) throws IOException {
        int size = row.getSizeInBytes();
        if (!fits((long) Integer.BYTES + size)) {
            writeLength(size);
            writeBytes(row, size);
            return;
        }
        slot.putInt(Slots.RECORDS + end, Integer.reverseBytes(size));
        end += Integer.BYTES;
        if (row.getBaseObject() instanceof byte[] array) {
            int offset = (int) (row.getBaseOffset() - Platform.BYTE_ARRAY_OFFSET);
            slot.put(Slots.RECORDS + end, array, offset, size);
            end += size;
        } else {
            writeBytes(row, size);
        }
    }

    private void writeLength(int length) throws IOException {
        UnsafeRows.LENGTH.set(copy, 0, length);
        write(copy, 0, Integer.BYTES);
    }

    private void writeBytes(UnsafeRow row, int size) throws IOException {
        for (int at = 0, piece; at < size; at += piece) {
            piece = Math.min(COPY_BYTES, size - at);
            Platform.copyMemory(
                    row.getBaseObject(), row.getBaseOffset() + at, copy, Platform.BYTE_ARRAY_OFFSET, piece);
            write(copy, 0, piece);
        }
    }

    /** What has been written since the last call is a record of that subpartition. */
    void endRecord(int subpartition) throws IOException {
        if (large != null) {
            shipLarge(subpartition);
            return;
        }
        slot.putInt(Slots.IDS + Integer.BYTES * rows, subpartition);
        slot.putInt(Slots.ENDS + Integer.BYTES * rows, end);
        begun = end;
        if (++rows == Slots.MOST_ROWS)
            ship();
    }

    /** Sends what is left. */
    void finish() throws IOException {
        if (rows > 0)
            output.send(rows, begun);
    }

    /** Makes room for so many bytes: in the slot, or else in `large`. */
    private boolean fits(long length) throws IOException {
        if (large == null) {
            if (length <= Slots.RECORD_BYTES - end)
                return true;
            if (rows > 0) {
                ship();
                if (length <= Slots.RECORD_BYTES - end)
                    return true;
            }
        }
        growLarge(length);
        return false;
    }

    private void growLarge(long length) throws IOException {
        if (large == null) {
            large = new byte[end];
            slot.get(Slots.RECORDS, large);
            largeEnd = end;
            end = 0;
        }
        long wanted = largeEnd + length;
        if (wanted > MOST_ARRAY)
            throw new IOException("A record of more than 2 GiB cannot be shuffled");
        if (wanted <= large.length)
            return;
        int size = (int) Math.min(MOST_ARRAY, Math.max(wanted, 2L * large.length));
        largeCharged += memory.acquire(size - large.length);
        large = Arrays.copyOf(large, size);
    }

    private void shipLarge(int subpartition) throws IOException {
        output.send(subpartition, large, largeEnd);
        large = null;
        memory.freeMemory(largeCharged);
        largeCharged = 0;
    }

    /** Sends the complete records, and moves what has begun to the next slot. */
    private void ship() throws IOException {
        ByteBuffer sent = slot;
        output.send(rows, begun);
        slot = output.slot();
        int moved = end - begun;
        slot.put(Slots.RECORDS, sent, Slots.RECORDS + begun, moved);
        rows = 0;
        begun = 0;
        end = moved;
    }
}
