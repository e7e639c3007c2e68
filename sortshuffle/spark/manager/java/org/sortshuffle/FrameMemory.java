package org.sortshuffle;

import java.io.Closeable;
import org.apache.spark.memory.MemoryConsumer;
import org.apache.spark.memory.MemoryMode;
import org.apache.spark.memory.TaskMemoryManager;

/**
 * What a writer's frames take of its task's memory, as Spark's memory manager knows it.
 *
 * <p>It never spills: a writer that gets no more sends what it has. What no frame can do without is used even
 * if it is not granted. Everything is given back when the writer closes this.
 */
final class FrameMemory extends MemoryConsumer implements Closeable {
    private long peak;

    FrameMemory(TaskMemoryManager task) {
        super(task, MemoryMode.ON_HEAP);
    }

    /** Whether all of it was granted; nothing is kept otherwise. */
    boolean tryAcquire(long bytes) {
        long granted = acquireMemory(bytes);
        if (granted < bytes) {
            freeMemory(granted);
            return false;
        }
        peak = Math.max(peak, getUsed());
        return true;
    }

    /** Charges as much as is granted of what is used in any case; returns how much that is. */
    long acquire(long bytes) {
        long granted = acquireMemory(bytes);
        peak = Math.max(peak, getUsed());
        return granted;
    }

    long peak() {
        return peak;
    }

    @Override
    public long spill(long size, MemoryConsumer trigger) {
        return 0;
    }

    @Override
    public void close() {
        freeMemory(getUsed());
    }
}
