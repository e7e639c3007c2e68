package org.sortshuffle;

import org.apache.spark.FetchFailed;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.SparkEnv;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.shuffle.FetchFailedException;
import org.apache.spark.shuffle.MetadataFetchFailedException;
import org.apache.spark.shuffle.ShuffleReader;
import scala.Option;
import scala.Product2;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;

/**
 * Spark's own reader in local mode. Where a map output is lost, Spark drops the executor that had it, with
 * its block manager. In local mode that is the only one, and it never comes back: shuffle files stay, task
 * results above 1 MiB are lost, and the session ends after some minutes.
 *
 * <p>So this reader forgets all that the executor had of all shuffles of Spark's own, as Spark would. It then
 * throws what Spark throws when the tracker knows no location. That exception names no executor, so Spark
 * drops none. The map stages run again.
 */
final class LocalReader<K, C> implements ShuffleReader<K, C> {
    private final ShuffleReader<K, C> reader;

    LocalReader(ShuffleReader<K, C> reader) {
        this.reader = reader;
    }

    @Override
    public Iterator<Product2<K, C>> read() {
        try {
            return new Records<>(reader.read());
        } catch (Exception e) { // Scala declares none
            throw RecordStream.sneaky(withoutExecutor(e));
        }
    }

    private static final class Records<T> extends AbstractIterator<T> {
        private final Iterator<T> records;

        Records(Iterator<T> records) {
            this.records = records;
        }

        @Override
        public boolean hasNext() {
            try {
                return records.hasNext();
            } catch (Exception e) {
                throw RecordStream.sneaky(withoutExecutor(e));
            }
        }

        @Override
        public T next() {
            try {
                return records.next();
            } catch (Exception e) {
                throw RecordStream.sneaky(withoutExecutor(e));
            }
        }
    }

    private static Exception withoutExecutor(Exception failure) {
        if (!(failure instanceof FetchFailedException fetch)
                || !(fetch.toTaskFailedReason() instanceof FetchFailed lost) || lost.bmAddress() == null)
            return failure;
        forget(lost);
        // Spark reports the exception that was made last in a task.
        return new MetadataFetchFailedException(lost.shuffleId(), lost.reduceId(), lost.message());
    }

    /** Unless another task has done that, and the map output has been made again since. */
    private static void forget(FetchFailed lost) {
        var tracker = (MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker();
        var shuffle = tracker.shuffleStatuses().get(lost.shuffleId());
        if (shuffle.isEmpty())
            return;
        Option<MapStatus> known = shuffle.get().getMapStatus(lost.mapId());
        if (known.isDefined()) // of all shuffles: a stage that lost several would fail once for each
            tracker.removeOutputsOnExecutor(lost.bmAddress().executorId());
    }
}
