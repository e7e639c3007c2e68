package org.sortshuffle;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.spark.storage.StorageUtils;

/**
 * The memory of one link in which frames are collected: while the engine takes one slot's records, the task
 * fills the other slot.
 *
 * <p>It is memory of the engine's, for this link alone, which both processes see. So no slot is ever another
 * task's. Where that cannot be had, it is this JVM's own, and frames go through the socket.
 *
 * @param all both slots
 * @param isShared whether the engine sees it
 */
record Slots(ByteBuffer all, boolean isShared) {
    /** Bytes of records in a slot, at most: the protocol's limit is twice that. */
    static final int RECORD_BYTES = 2 << 20;

    /** Records in a slot, at most. Rows of Spark SQL have at least 20 bytes, most have more than 32. */
    static final int MOST_ROWS = RECORD_BYTES / 32;

    // Where a slot has what.
    static final int IDS = 0;
    static final int ENDS = Integer.BYTES * MOST_ROWS;
    static final int RECORDS = 2 * Integer.BYTES * MOST_ROWS;

    static final int COUNT = 2;
    private static final int SLOT_BYTES = RECORDS + RECORD_BYTES;
    static final int BYTES = COUNT * SLOT_BYTES;

    /** The engine's memory at a path that it has told. */
    static Slots map(String path) throws IOException {
        try (FileChannel file =
                        FileChannel.open(Path.of(path), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            return new Slots(file.map(FileChannel.MapMode.READ_WRITE, 0, BYTES), true);
        }
    }

    /** Memory of this JVM's. */
    static Slots own() {
        return new Slots(ByteBuffer.allocateDirect(BYTES), false);
    }

    /** Without waiting for a garbage collection. Nothing may be read or written here afterwards. */
    void unmap() {
        StorageUtils.dispose(all);
    }

    ByteBuffer slot(int number) {
        return all.slice(position(number), SLOT_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    }

    static int position(int number) {
        return number * SLOT_BYTES;
    }
}
