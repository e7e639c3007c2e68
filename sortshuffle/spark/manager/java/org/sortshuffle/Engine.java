package org.sortshuffle;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ClosedChannelException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedDeque;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.Supplier;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The engine of this host, as this JVM sees it: where it listens, and connections to it that are free.
 *
 * <p>There is one for each application. The plugin makes it when the application begins in this JVM, and ends
 * it. The process itself is not this JVM's: the launcher finds it or starts it, and other JVMs of the host
 * use it too.
 *
 * <p>`starting` is held while the launcher runs, so that tasks of this JVM that begin at once run it once. No
 * other lock is taken under it.
 */
final class Engine {
    /** In place of a shuffle to remove: all of the application, on storage that all hosts see. */
    static final int EVERYTHING = -1;

    /** In place of the driver's process, if that is not known to be on this host. */
    static final long UNKNOWN = 0;

    private static final Logger LOG = LoggerFactory.getLogger(Engine.class);
    private static final int MOST_REMOVALS = 4; // at once, so that one that hangs stops no others
    private static volatile Engine current;

    /** A launch that has failed, and when. */
    private record Failure(IOException error, long nanos) {}

    private final String token;
    private final String secret;
    private final long driver;
    private final Reports reports;
    private final ReentrantLock starting = new ReentrantLock();
    private final ConcurrentLinkedDeque<Link> idle = new ConcurrentLinkedDeque<>();
    private final ConcurrentLinkedDeque<Link> idleWithSlots = new ConcurrentLinkedDeque<>();
    private final Semaphore removals = new Semaphore(MOST_REMOVALS);
    private volatile Place place;
    private volatile boolean ended;
    private Failure failure; // of the last launch that failed; guarded by `starting`

    /**
     * Token and secret of the application, hex digits; `driver` is the driver's process, or UNKNOWN;
     * `reports` is the way to the driver.
     */
    Engine(String token, String secret, long driver, Reports reports) {
        this.token = token;
        this.secret = secret;
        this.driver = driver;
        this.reports = reports;
    }

    /** The engine of the application that runs in this JVM. */
    static Engine current() {
        Engine engine = current;
        if (engine == null)
            throw new IllegalStateException("No application runs here with spark.plugins set to "
                    + SortMergeShufflePlugin.class.getName() + ", which the shuffle manager needs");
        return engine;
    }

    static boolean isCurrent(String token) {
        Engine engine = current;
        return engine != null && engine.token.equals(token);
    }

    /** The application begins in this JVM. */
    void enter() {
        current = this;
    }

    /** The application ends in this JVM. */
    void leave() {
        ended = true;
        if (current == this)
            current = null;
        closeIdle();
    }

    private void closeIdle() {
        for (Link link = pollForFrames(); link != null; link = pollForFrames())
            link.discard();
    }

    private Link pollForFrames() {
        Link link = idleWithSlots.pollFirst();
        return link != null ? link : idle.pollFirst();
    }

    Reports reports() {
        return reports;
    }

    /** Where the engine is, or was when this JVM last looked; null if this JVM never asked for it. */
    Place place() {
        return place;
    }

    /** A connection for one request, or several in turn; the caller closes it. */
    Link link() throws IOException {
        return link(idle::pollFirst);
    }

    /**
     * The same for a map output. Links that have slots go from one map output to the next, and to nobody
     * else. So no more have slots than map outputs are written at the same time.
     */
    Link linkForFrames() throws IOException {
        return link(this::pollForFrames);
    }

    private Link link(Supplier<Link> free) throws IOException {
        if (Thread.currentThread().isInterrupted())
            throw new ClosedByInterruptException(); // a look at a free link would close it
        for (Link link = free.get(); link != null; link = free.get()) {
            if (link.isAlive())
                return link;
            link.discard();
        }
        Place known = place;
        if (known != null) {
            try {
                Link link = Link.connect(this, known.socket());
                if (link.port() == known.port())
                    return link;
                link.discard(); // another JVM has started the service anew: this one must learn where it is
                LOG.info("The service of the shuffle engine at {} has another port now", known.socket());
            } catch (ClosedByInterruptException | Link.Refusal e) {
                throw e;
            } catch (IOException e) {
                LOG.info("The shuffle engine at {} does not answer any more: {}", known.socket(),
                        e.toString());
            }
        }
        return Link.connect(this, start(known).socket());
    }

    /** Takes a link back that is between two requests. False if it is of no use any more. */
    boolean keep(Link link) {
        if (ended)
            return false;
        (link.hasSlots() ? idleWithSlots : idle).addFirst(link);
        if (ended)
            closeIdle(); // it came behind the last look
        return true;
    }

    /**
     * Finds or starts the engine, unless another thread has done so since `known` was seen. If the launch
     * fails, all fail that waited for it: each launch may take minutes, and they would launch one after the
     * other.
     */
    private Place start(Place known) throws IOException {
        long since = System.nanoTime();
        try {
            starting.lockInterruptibly();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("Interrupted while the shuffle engine was started");
        }
        Place started;
        try {
            if (place != known)
                return place;
            if (failure != null && failure.nanos - since > 0)
                throw new IOException(failure.error.getMessage(), failure.error);
            started = launch();
            place = started;
        } finally {
            starting.unlock();
        }
        LOG.info("The shuffle engine listens on {}, its service on {}", started.socket(), started.address());
        reports.service(started.address());
        return started;
    }

    private Place launch() throws IOException {
        try {
            return Launcher.launch(token, secret, driver);
        } catch (IOException e) {
            if (!Thread.currentThread().isInterrupted()) // an interrupt is of this task alone
                failure = new Failure(e, System.nanoTime());
            throw e;
        }
    }

    /**
     * Removes the map outputs of a shuffle on this host, if this JVM has ever used the engine. After a
     * garbage collection Spark removes hundreds at once, in many threads. Each would take a link, which is
     * then kept.
     */
    static void removeHere(int shuffle) {
        Engine engine = current;
        if (engine == null || engine.place == null)
            return;
        engine.removals.acquireUninterruptibly();
        try {
            engine.remove(shuffle, List.of());
        } catch (IOException | RuntimeException e) {
            if (!engine.ended)
                LOG.warn("The files of shuffle {} on this host stay until the application ends: {}", shuffle,
                        e.toString());
        } finally {
            engine.removals.release();
        }
    }

    /**
     * Asks the engine to delete the map outputs of a shuffle, here and where the other services are. Once
     * more if it ends meanwhile: another one takes its place.
     */
    void remove(int shuffle, Collection<String> services) throws IOException {
        Link link = link();
        try {
            remove(link, shuffle, services);
        } catch (Link.Refusal | ClosedChannelException e) {
            throw e;
        } catch (IOException ended) {
            remove(link(), shuffle, services);
        }
    }

    private void remove(Link asked, int shuffle, Collection<String> services) throws IOException {
        try (Link link = asked) {
            List<byte[]> others = new ArrayList<>();
            long length = 2L * Integer.BYTES;
            for (String address : services) {
                if (address.equals(place.address()))
                    continue;
                byte[] text = address.getBytes(StandardCharsets.UTF_8);
                others.add(text);
                length += Integer.BYTES + text.length;
            }
            link.begin(Link.REMOVE, length);
            link.putInt(shuffle);
            link.putInt(others.size());
            for (byte[] text : others)
                link.putText(text);
            link.flush();
            link.reply();
            link.settle();
        }
    }

    /**
     * The address of the service where a map output is. Spark and the engine may know this host by different
     * names; the engine's own is used.
     */
    String addressOf(String host, int port) {
        Place here = place;
        return here != null && here.isAt(host, port) ? here.address() : host + ":" + port;
    }

    /** Whether driver and executor are this one JVM. */
    static boolean isLocal(SparkConf conf) {
        String master = conf.get("spark.master", "");
        return master.equals("local") || master.startsWith("local[");
    }

    /** Whether the executors are child processes of the driver's JVM. */
    static boolean isLocalCluster(SparkConf conf) {
        return conf.get("spark.master", "").startsWith("local-cluster[");
    }

    /** Whether an engine ends with its executor's container. */
    static boolean isContainer(SparkConf conf) {
        return conf.get("spark.master", "").startsWith("k8s");
    }
}
