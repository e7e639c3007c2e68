package org.sortshuffle;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.BitSet;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkConf;
import org.apache.spark.TaskContext;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.sort.SortShuffleManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Spark's entry: which shuffles are this package's, and who writes, reads and removes them.
 *
 * <p>The driver decides when a shuffle is registered. What it leaves to Spark's own shuffle goes to the
 * superclass, on every executor alike, because the handle says whose it is. Extending Spark's manager also
 * tells SQL that rows need not be copied before they are written.
 */
public final class SortMergeShuffleManager extends SortShuffleManager {
    /** "off" leaves every shuffle to Spark. */
    static final String MANAGER = "spark.sortshuffle.manager";

    private static final String OURS = "sortshuffle";

    private static final Logger LOG = LoggerFactory.getLogger(SortMergeShuffleManager.class);
    private static final Map<String, AtomicLong> DECISIONS = new ConcurrentHashMap<>();

    private final SparkConf conf;
    private final String reasonForAll; // why no shuffle is this package's; null if they are
    private final BitSet registered = new BitSet(); // on the driver, this package's; it is its own lock
    private final AtomicBoolean warmed = new AtomicBoolean();

    public SortMergeShuffleManager(SparkConf conf) {
        super(conf);
        this.conf = conf;
        reasonForAll = reasonForAll(conf);
        DECISIONS.clear();
        String plugin = SortMergeShufflePlugin.class.getName();
        if (!isOff(conf) && !conf.get("spark.plugins", "").contains(plugin))
            throw new IllegalArgumentException("spark.shuffle.manager is " + getClass().getName()
                    + ", which needs its plugin: set spark.plugins to " + plugin
                    + ", or leave this manager out. sortshuffle.configure() sets both");
    }

    static boolean isOff(SparkConf conf) {
        return conf.get(MANAGER, "on").trim().equalsIgnoreCase("off");
    }

    private static String reasonForAll(SparkConf conf) {
        return isOff(conf) ? MANAGER + " is off" : null;
    }

    /** Of the driver's application: how many shuffles are sortshuffle's, how many Spark's, by reason. */
    public static Map<String, Long> decisions() {
        Map<String, Long> counts = new TreeMap<>();
        DECISIONS.forEach((decision, count) -> counts.put(decision, count.get()));
        return counts;
    }

    /**
     * The key of the application's files, in hex digits, for whoever is to look into them; empty for none.
     */
    public static String filesKey() {
        return HexFormat.of().formatHex(Link.key());
    }

    @Override
    public <K, V, C> ShuffleHandle registerShuffle(int shuffleId, ShuffleDependency<K, V, C> dependency) {
        String reason = reasonForAll != null ? reasonForAll : ControlRows.reasonForSpark(dependency);
        String decision = reason == null ? OURS : reason;
        long count = DECISIONS.computeIfAbsent(decision, key -> new AtomicLong()).incrementAndGet();
        if (reason != null) {
            if (count == 1)
                tell(shuffleId, reason);
            SortMergeShufflePlugin.Driver driver = SortMergeShufflePlugin.Driver.current();
            if (driver != null)
                driver.isSparks(shuffleId);
            return super.registerShuffle(shuffleId, dependency);
        }
        synchronized (registered) {
            registered.set(shuffleId);
        }
        if (Storage.isUsed(conf))
            startForStorage();
        else if (Engine.isLocal(conf) && warmed.compareAndSet(false, true))
            startInBackground();
        return new SortMergeShuffleHandle<>(shuffleId, dependency);
    }

    private void tell(int shuffleId, String reason) {
        if (Storage.isUsed(conf))
            LOG.warn(
                    "Shuffle {}, and others like it, are Spark's own, on the executors' disks and not at {}: "
                            + "{}. While there is one, a lost executor costs what it ran of a stage that runs",
                    shuffleId, Storage.url(conf), reason);
        else if (reason.equals(ControlRows.UNKNOWN)) // Spark has changed
            LOG.warn("Shuffle {}, and others like it, are Spark's own: {} (Spark {})", shuffleId, reason,
                    org.apache.spark.package$.MODULE$.SPARK_VERSION());
        else
            LOG.info("Shuffle {}, and others like it, are Spark's own: {}", shuffleId, reason);
    }

    /**
     * The driver's engine makes the directory that tasks write to, and removes what is there: without it the
     * job fails here, before any task.
     */
    private void startForStorage() {
        SortMergeShufflePlugin.Driver driver = SortMergeShufflePlugin.Driver.current();
        if (driver == null || warmed.get())
            return;
        try {
            driver.startForStorage();
            warmed.set(true);
        } catch (IOException e) {
            throw new UncheckedIOException(
                    "Shuffles cannot be written to " + Storage.url(conf) + ": " + e.getMessage(), e);
        }
    }

    /** So that the engine is up when the first task writes. That task reports what goes wrong. */
    private void startInBackground() {
        Engine engine = Engine.current();
        Thread thread = new Thread(() -> {
            try {
                engine.link().close();
            } catch (Exception e) {
                LOG.debug("The shuffle engine could not be started in advance", e);
            }
        }, "sortshuffle-start");
        thread.setDaemon(true);
        thread.start();
    }

    @Override
    @SuppressWarnings("unchecked")
    public <K, V> ShuffleWriter<K, V> getWriter(
            ShuffleHandle handle, long mapId, TaskContext context, ShuffleWriteMetricsReporter metrics) {
        if (SortMergeShuffleHandle.isOn(handle))
            return new FrameWriter<>((BaseShuffleHandle<K, V, ?>) handle, context, metrics);
        return super.getWriter(handle, mapId, context, metrics);
    }

    @Override
    @SuppressWarnings("unchecked")
    public <K, C> ShuffleReader<K, C> getReader(ShuffleHandle handle, int startMap, int endMap, int start,
            int end, TaskContext context, ShuffleReadMetricsReporter metrics) {
        if (SortMergeShuffleHandle.isOn(handle)) {
            var blocks = RecordReader.Blocks.find(handle.shuffleId(), startMap, endMap, start, end);
            return new RecordReader<>((BaseShuffleHandle<K, ?, C>) handle, blocks, context, metrics);
        }
        ShuffleReader<K, C> reader = super.getReader(handle, startMap, endMap, start, end, context, metrics);
        return Engine.isLocal(conf) ? new LocalReader<>(reader) : reader;
    }

    /**
     * Spark calls this on the driver and on all executors. Each executor removes the files on its host. The
     * driver removes those where no executor is, or all where all hosts see them, in the background. Spark
     * may come here again for a shuffle that it went on using.
     */
    @Override
    public boolean unregisterShuffle(int shuffleId) {
        SortMergeShufflePlugin.Driver driver = SortMergeShufflePlugin.Driver.current();
        if (driver == null && !Storage.isUsed(conf))
            Engine.removeHere(shuffleId); // an executor does not know which shuffles are Spark's own
        if (driver != null && isRegistered(shuffleId))
            driver.remove(shuffleId);
        return super.unregisterShuffle(shuffleId);
    }

    private boolean isRegistered(int shuffleId) {
        synchronized (registered) {
            return registered.get(shuffleId);
        }
    }
}
