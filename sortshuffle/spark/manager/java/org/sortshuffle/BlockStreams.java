package org.sortshuffle;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.SerializerInstance;

/**
 * Records of a serializer that cannot reorder them: one open stream for each subpartition that has some.
 *
 * <p>What a stream has collected is a block: four bytes, big endian, with its length, and the bytes. When all
 * streams together take the memory that they may, every one is closed and sent as a record of its
 * subpartition. They collect as many bytes as a slot, at most, and may take more for themselves: with fewer
 * of them open, blocks would be of single records where there are thousands of subpartitions.
 */
final class BlockStreams {
    /**
     * Bytes that an open stream takes beside what it has collected. Measured with 10,000 streams of Java's
     * serializer, one pair of an Integer and a Long in each: 2.4 KiB.
     */
    private static final int STREAM_BYTES = 2400;

    /** Bytes that open streams may take beside what they have collected: 14,000 of them. */
    private static final int MOST_STREAM_BYTES = 32 << 20;

    /** Bytes that they may take from the beginning: those of a small job need no more. */
    private static final int LEAST_BYTES = 64 << 10;

    private final SerializerInstance serializer;
    private final Frame frame;
    private final FrameMemory memory;
    private final Block[] open;
    private final long most; // bytes of memory, whatever is granted
    private long allowed = LEAST_BYTES;
    private long held;

    BlockStreams(SerializerInstance serializer, Frame frame, FrameMemory memory, int subpartitions) {
        this.serializer = serializer;
        this.frame = frame;
        this.memory = memory;
        this.open = new Block[subpartitions];
        this.most = Slots.RECORD_BYTES + Math.min((long) STREAM_BYTES * subpartitions, MOST_STREAM_BYTES);
        memory.acquire(allowed);
    }

    /** The stream of one subpartition, and its bytes. */
    private final class Block extends ByteArrayOutputStream {
        final SerializationStream stream = serializer.serializeStream(this);

        @Override
        public void write(int value) {
            int before = buf.length;
            super.write(value);
            held += buf.length - before;
        }

        @Override
        public void write(byte[] from, int offset, int length) {
            int before = buf.length;
            super.write(from, offset, length);
            held += buf.length - before;
        }

        void sendTo(OutputStream out) throws IOException {
            stream.close();
            out.write(count >>> 24);
            out.write(count >>> 16);
            out.write(count >>> 8);
            out.write(count);
            out.write(buf, 0, count);
        }
    }

    void write(int subpartition, Object key, Object value) throws IOException {
        Block block = open[subpartition];
        if (block == null) {
            block = new Block();
            open[subpartition] = block;
            held += STREAM_BYTES;
        }
        block.stream.writeKey(key, FrameWriter.ANY);
        block.stream.writeValue(value, FrameWriter.ANY);
        while (held > allowed)
            if (!grow())
                send();
    }

    /** Sends what is left. */
    void finish() throws IOException {
        send();
    }

    private boolean grow() {
        long more = Math.min(allowed, most - allowed);
        if (more == 0 || !memory.tryAcquire(more))
            return false;
        allowed += more;
        return true;
    }

    private void send() throws IOException {
        for (int i = 0; i < open.length; i++) {
            Block block = open[i];
            if (block == null)
                continue;
            open[i] = null;
            block.sendTo(frame);
            frame.endRecord(i);
        }
        held = 0;
    }
}
