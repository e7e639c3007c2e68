package org.sortshuffle;

import java.io.IOException;
import java.io.InputStream;
import java.nio.channels.ClosedByInterruptException;
import java.util.ArrayList;
import java.util.List;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The answer to one READ request as a stream of bytes.
 *
 * <p>The request is sent with the first read. If the connection breaks, because the engine's process has
 * ended, it is sent again to the process that takes its place: map outputs are files, and the same request
 * has the same answer, of which the bytes that were handed out already are skipped.
 *
 * <p>Lost map outputs are reported to the driver, all at once; then FetchFailedException is thrown.
 *
 * <p>One thread reads. Any thread may close: PySpark reads in a thread of its own, which may still read when
 * the task ends. So the lock guards `link` and `closed`, and whoever takes the link out of the field closes
 * it, once. Whoever tells the metrics holds it, too: they are not thread-safe, and after the end nobody tells
 * them anything. Nothing is waited for under the lock.
 */
final class RecordStream extends InputStream {
    /** In place of a chunk's length. */
    static final int AT_ERROR = -1;

    /** How often a stream asks again. An engine that dies more often dies of what it reads. */
    private static final int REPEATS = 2;

    private static final Logger LOG = LoggerFactory.getLogger(RecordStream.class);

    private final Engine engine;
    private RecordReader.Blocks blocks; // null at the end
    private final int subpartitions;
    private final ShuffleReadMetricsReporter metrics;
    private Link link;
    private boolean closed;

    // Of the thread that reads.
    private int chunk; // bytes that are left of what the engine has announced
    private long delivered; // bytes that were handed out
    private long skip; // of those, bytes that come once more
    private long[] counted = new long[4]; // totals that the metrics have
    private int records; // that the metrics do not have yet
    private int repeats;
    private List<String> lastAddresses; // of the services in the last request, and of the engine's own
    private boolean ended;
    private long waitedNanos;

    /** `subpartitions`: of the shuffle. */
    RecordStream(Engine engine, RecordReader.Blocks blocks, int subpartitions,
            ShuffleReadMetricsReporter metrics) {
        this.engine = engine;
        this.blocks = blocks;
        this.subpartitions = subpartitions;
        this.metrics = metrics;
    }

    @Override
    public int read() throws IOException {
        byte[] one = new byte[1];
        return read(one, 0, 1) < 0 ? -1 : one[0] & 0xFF;
    }

    @Override
    public int read(byte[] to, int offset, int length) throws IOException {
        if (length == 0)
            return 0;
        while (!ended) {
            Link used = link();
            try {
                if (used == null)
                    used = request();
                int bytes = receive(used, to, offset, length);
                if (bytes > 0)
                    return bytes;
            } catch (Link.Refusal e) {
                throw refused(e);
            } catch (ClosedByInterruptException e) {
                throw e; // the task is killed
            } catch (IOException e) {
                repeat(e);
            }
        }
        return -1;
    }

    /** The next block ({@link BlockStreams}), or null at the end. */
    byte[] nextBlock() throws IOException {
        byte[] prefix = readNBytes(Integer.BYTES);
        if (prefix.length == 0)
            return null;
        if (prefix.length == Integer.BYTES) {
            byte[] block = new byte[(int) UnsafeRows.LENGTH.get(prefix, 0)];
            if (readNBytes(block, 0, block.length) == block.length)
                return block;
        }
        throw new IOException("The shuffle engine's records end in the middle of a block");
    }

    /** Bytes for the caller; 0 where there were none: at the end, or while what came before is skipped. */
    private int receive(Link from, byte[] to, int offset, int length) throws IOException {
        if (chunk == 0)
            next(from);
        if (ended)
            return 0;
        int most = (int) Math.min(Math.min(chunk, length), skip > 0 ? skip : Integer.MAX_VALUE);
        int bytes = from.get(to, offset, most);
        chunk -= bytes;
        if (skip > 0) {
            skip -= bytes;
            return 0;
        }
        delivered += bytes;
        return bytes;
    }

    /** What comes next: a chunk, the end, or an error. */
    private void next(Link from) throws IOException {
        chunk = from.getInt();
        if (chunk == AT_ERROR)
            throw from.refusal();
        if (chunk < 0)
            throw new IOException(
                    "The shuffle engine announced " + Integer.toUnsignedLong(chunk) + " bytes at once");
        long[] totals = new long[counted.length];
        for (int i = 0; i < totals.length; i++)
            totals[i] = Math.max(counted[i], from.getLong()); // after a repeat they begin anew
        count(totals, from.takeWaitedNanos());
        if (chunk == 0) {
            if (skip > 0) {
                repeats = REPEATS;
                throw new IOException("The shuffle engine's second answer is shorter than the first");
            }
            ended = true;
            blocks = null;
            from.settle();
            release();
        }
    }

    /** A record was handed out. The metrics hear of many at once. */
    void countRecord() {
        records++;
    }

    /** Tells the metrics what the engine has read since the last time, and how long that was waited for. */
    private synchronized void count(long[] totals, long nanos) {
        if (closed)
            return; // the task's metrics are complete
        metrics.incLocalBytesRead(totals[0] - counted[0]);
        metrics.incLocalBlocksFetched(totals[1] - counted[1]);
        metrics.incRemoteBytesRead(totals[2] - counted[2]);
        metrics.incRemoteBlocksFetched(totals[3] - counted[3]);
        counted = totals;
        countRecords();
        waitedNanos += nanos;
        long milliseconds = waitedNanos / 1_000_000;
        if (milliseconds > 0) {
            metrics.incFetchWaitTime(milliseconds);
            waitedNanos -= milliseconds * 1_000_000;
        }
    }

    private void countRecords() {
        metrics.incRecordsRead(records);
        records = 0;
    }

    // --- the request

    private Link request() throws IOException {
        Link fresh = engine.link();
        ReadRequest request = ReadRequest.of(engine, blocks);
        // whether a service is the engine's own decides the order, too
        List<String> addresses = new ArrayList<>(request.addresses());
        addresses.add(engine.place().address());
        if (delivered > 0 && !addresses.equals(lastAddresses)) {
            fresh.close();
            throw new IOException(
                    "The shuffle engine has another address now, so its answer may have another "
                    + "order than the one that broke off");
        }
        lastAddresses = addresses;
        begin(fresh, request);
        request.send(fresh);
        chunk = 0;
        skip = delivered;
        return fresh;
    }

    /** From here on the link is within a request: whoever closes it does not give it to another task. */
    private synchronized void begin(Link fresh, ReadRequest request) throws IOException {
        if (closed) {
            fresh.close();
            throw new IOException("The stream is closed");
        }
        link = fresh;
        request.begin(fresh);
    }

    // --- failures

    /** After a broken connection: the next read asks again, unless that was done often enough. */
    private void repeat(IOException failure) throws IOException {
        boolean wasAsked = release(); // else there is no engine to be had, or the task has ended
        if (!wasAsked || repeats == REPEATS)
            throw failure;
        repeats++;
        LOG.warn("The shuffle engine is asked once more for {} blocks of shuffle {}: {}",
                blocks.list().size(), blocks.shuffle(), failure.toString());
    }

    private IOException refused(Link.Refusal refusal) throws IOException {
        release();
        if (refusal.lost.length == 0)
            return refusal;
        engine.reports().lost(Losses.find(engine, blocks, subpartitions, refusal));
        RecordReader.Block first = blocks.list().get(refusal.lost[0]);
        throw sneaky(new FetchFailedException(
                first.location(), blocks.shuffle(), first.mapId(), first.mapIndex(), first.first(), refusal));
    }

    /** Throws what Java's checks do not let through where Spark's Scala code expects it. */
    @SuppressWarnings("unchecked")
    static <T extends Throwable> RuntimeException sneaky(Throwable failure) throws T {
        throw (T) failure;
    }

    // --- the link

    private synchronized Link link() throws IOException {
        if (closed)
            throw new IOException("The stream is closed");
        return link;
    }

    /** Whether there was one. */
    private boolean release() {
        Link owned;
        synchronized (this) {
            owned = link;
            link = null;
        }
        if (owned != null)
            owned.close();
        return owned != null;
    }

    @Override
    public void close() {
        synchronized (this) {
            if (!closed)
                countRecords(); // where another thread still reads, it may lack the last ones
            closed = true;
        }
        release();
    }
}
