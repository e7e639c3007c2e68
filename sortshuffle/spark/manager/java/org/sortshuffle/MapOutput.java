package org.sortshuffle;

import java.io.Closeable;
import java.io.IOException;

/**
 * One WRITE request: the map output that a task is writing.
 *
 * <p>It owns its link from the first frame on. After {@link #finish} the engine has the files. Closed before
 * that, the engine deletes what was written.
 */
final class MapOutput implements Closeable {
    /** A map output that is complete: what names its file, and the bytes of each subpartition. */
    record Finished(byte[] fileId, long[] sizes, int fullRegions) {}

    private final Engine engine;
    private final int shuffle;
    private final int mapIndex;
    private final long mapId;
    private final int subpartitions;
    private final int stage;
    private Link link;
    private long nanos;

    MapOutput(Engine engine, int shuffle, int mapIndex, long mapId, int subpartitions, int stage) {
        this.engine = engine;
        this.shuffle = shuffle;
        this.mapIndex = mapIndex;
        this.mapId = mapId;
        this.subpartitions = subpartitions;
        this.stage = stage;
    }

    /** Nanoseconds that went into sending, and into waiting for the engine. */
    long nanos() {
        return nanos;
    }

    /**
     * Sends `rows` records: each one's subpartition, each one's end in `bytes`. They may be reused
     * afterwards.
     */
    void send(int[] ids, int[] ends, int rows, byte[] bytes, int length) throws IOException {
        long start = System.nanoTime();
        if (link == null)
            open();
        try {
            link.begin(Link.FRAME, 8 + 8L * rows + length);
            link.putInt(rows);
            link.putInt(length);
            link.put(ids, rows);
            link.put(ends, rows);
            link.put(bytes, 0, length);
        } catch (IOException e) {
            throw link.lastWords(e);
        } finally {
            nanos += System.nanoTime() - start;
        }
    }

    private void open() throws IOException {
        link = engine.link();
        link.begin(Link.WRITE, 24);
        link.putInt(shuffle);
        link.putInt(mapIndex);
        link.putLong(mapId);
        link.putInt(subpartitions);
        link.putInt(stage);
    }

    /** Completes the map output. At least one frame was sent. */
    Finished finish() throws IOException {
        long start = System.nanoTime();
        try {
            link.begin(Link.FINISH, 0);
            link.flush();
        } catch (IOException e) {
            throw link.lastWords(e);
        }
        link.reply();
        byte[] fileId = link.getBytes(16);
        int fullRegions = link.getInt();
        link.getInt();
        long[] sizes = new long[subpartitions];
        for (int i = 0; i < subpartitions; i++)
            sizes[i] = link.getLong();
        link.settle();
        nanos += System.nanoTime() - start;
        return new Finished(fileId, sizes, fullRegions);
    }

    @Override
    public void close() {
        if (link == null)
            return;
        Link owned = link;
        link = null;
        owned.close();
    }
}
