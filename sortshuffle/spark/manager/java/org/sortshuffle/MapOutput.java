package org.sortshuffle;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;

/**
 * One WRITE request: the map output that a task is writing.
 *
 * <p>It owns its link. After {@link #finish} the engine has the files. Closed before that, the engine deletes
 * what was written.
 *
 * <p>The slots are used in turn. Of shared ones the engine says when it needs a slot no more; a task that
 * comes to a slot before that waits.
 */
final class MapOutput implements Closeable {
    /** A map output that is complete: what names its file, and the bytes of each subpartition. */
    record Finished(byte[] fileId, long[] sizes, int earlyRegions) {}

    private final int subpartitions;
    private final Link link;
    private final Slots slots;
    private int current; // the slot that is being filled
    private int sent; // slots that the engine may still read
    private long nanos;

    MapOutput(Engine engine, int shuffle, int mapIndex, long mapId, int subpartitions, int stage)
            throws IOException {
        this.subpartitions = subpartitions;
        this.link = engine.linkForFrames();
        try {
            this.slots = link.slots();
            link.begin(Link.WRITE, 24);
            link.putInt(shuffle);
            link.putInt(mapIndex);
            link.putLong(mapId);
            link.putInt(subpartitions);
            link.putInt(stage);
        } catch (Throwable e) {
            close();
            throw e;
        }
    }

    /** Nanoseconds that went into sending, and into waiting for the engine. */
    long nanos() {
        return nanos;
    }

    /** The slot to fill, empty. Waits until the engine needs it no more. */
    ByteBuffer slot() throws IOException {
        long start = System.nanoTime();
        if (sent > 0)
            flush(); // the engine begins with the slot before
        while (sent == Slots.COUNT) {
            link.acknowledged();
            sent--;
        }
        nanos += System.nanoTime() - start;
        return slots.slot(current);
    }

    private void flush() throws IOException {
        try {
            link.flush();
        } catch (IOException e) {
            throw link.lastWords(e);
        }
    }

    /** Sends the slot's records: so many, with so many bytes. */
    void send(int rows, int length) throws IOException {
        long start = System.nanoTime();
        int at = Slots.position(current);
        try {
            if (slots.isShared()) {
                link.begin(Link.SHARED_FRAME, 20);
                link.putInt(rows);
                link.putInt(length);
                link.putInt(at + Slots.IDS);
                link.putInt(at + Slots.ENDS);
                link.putInt(at + Slots.RECORDS);
                sent++;
            } else {
                beginFrame(rows, length);
                link.put(slots.all().slice(at + Slots.IDS, Integer.BYTES * rows));
                link.put(slots.all().slice(at + Slots.ENDS, Integer.BYTES * rows));
                link.put(slots.all().slice(at + Slots.RECORDS, length));
            }
        } catch (IOException e) {
            throw link.lastWords(e);
        }
        current = (current + 1) % Slots.COUNT;
        nanos += System.nanoTime() - start;
    }

    /** Sends one record. */
    void send(int subpartition, byte[] record, int length) throws IOException {
        long start = System.nanoTime();
        try {
            beginFrame(1, length);
            link.putInt(subpartition);
            link.putInt(length);
            link.put(ByteBuffer.wrap(record, 0, length));
        } catch (IOException e) {
            throw link.lastWords(e);
        }
        nanos += System.nanoTime() - start;
    }

    private void beginFrame(int rows, int length) throws IOException {
        link.begin(Link.FRAME, 8 + 8L * rows + length);
        link.putInt(rows);
        link.putInt(length);
    }

    /** This sends what the buffer has no more room for. */
    private void beginFinish() throws IOException {
        try {
            link.begin(Link.FINISH, 0);
        } catch (IOException e) {
            throw link.lastWords(e);
        }
    }

    /** Completes the map output. */
    Finished finish() throws IOException {
        long start = System.nanoTime();
        beginFinish();
        flush();
        for (; sent > 0; sent--)
            link.reply(); // of a shared frame
        link.reply();
        byte[] fileId = link.getBytes(16);
        int earlyRegions = link.getInt();
        link.getInt();
        long[] sizes = new long[subpartitions];
        for (int i = 0; i < subpartitions; i++)
            sizes[i] = link.getLong();
        link.settle();
        nanos += System.nanoTime() - start;
        return new Finished(fileId, sizes, earlyRegions);
    }

    @Override
    public void close() {
        link.close();
    }
}
