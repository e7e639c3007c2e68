package org.sortshuffle;

import org.apache.spark.SparkConf;
import org.apache.spark.shuffle.api.ShuffleDriverComponents;
import org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO;
import org.apache.spark.shuffle.sort.io.LocalDiskShuffleDriverComponents;
import org.apache.spark.storage.BlockManagerId;
import scala.Option;

/**
 * Tells Spark whether map outputs outlive their executors ("reliable storage"). It does so as Spark's
 * `spark.shuffle.sort.io.plugin.class`.
 *
 * <p>Spark asks anew for each executor that it loses, and one answer holds for all shuffles. The answer is
 * yes if map outputs lie at a URL (`spark.sortshuffle.dir`) and no shuffle is Spark's own: Spark's own lie on
 * the executors' disks. Settings that were copied from another SparkContext may name this class where nothing
 * is at a URL.
 */
public final class Storage extends LocalDiskShuffleDataIO {
    static final String COMPONENTS = "spark.shuffle.sort.io.plugin.class";

    /**
     * Where map outputs are that are nobody's. No executor or worker is lost there, and no task prefers to
     * run there. The name never resolves (RFC 6761).
     */
    private static final String HOST = "sortshuffle.invalid";

    private static final int PORT = 1; // Spark takes no smaller one; nobody connects to it
    private static final String DIRECTORY = "spark.sortshuffle.dir";

    private final boolean holdsMapOutputs;

    public Storage(SparkConf conf) {
        super(conf);
        holdsMapOutputs = isUsed(conf);
    }

    /** Whether map outputs lie on storage that all hosts see. */
    static boolean isUsed(SparkConf conf) {
        return conf.get(DIRECTORY, "").trim().matches("[a-z][a-z0-9+.-]*://.*");
    }

    static String url(SparkConf conf) {
        return conf.get(DIRECTORY).trim();
    }

    /** What removes what the application has there. */
    static String cleanCommand(SparkConf conf, String token) {
        return "sortshuffle clean " + url(conf) + " --application " + conf.getAppId() + "-" + token;
    }

    /** The location of a map output there. */
    static BlockManagerId location(String executor, Option<String> fileId) {
        return BlockManagerId.apply(executor, HOST, PORT, fileId);
    }

    @Override
    public ShuffleDriverComponents driver() {
        return new LocalDiskShuffleDriverComponents() {
            @Override
            public boolean supportsReliableStorage() {
                SortMergeShufflePlugin.Driver driver = SortMergeShufflePlugin.Driver.current();
                return holdsMapOutputs && driver != null && driver.hasOnlyOurs();
            }
        };
    }
}
