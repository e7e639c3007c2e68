package org.sortshuffle;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleHandle;

/**
 * The mark of a shuffle that is this package's. The driver makes it; it travels with the tasks.
 *
 * <p>It is known by its name, not by its class: tasks may be loaded by another class loader than the shuffle
 * manager (`spark.executor.userClassPathFirst`, sessions of Spark Connect). A mark that is overlooked would
 * go to Spark's own writer, for which rows would have to be copied first: results would be wrong.
 */
final class SortMergeShuffleHandle<K, V, C> extends BaseShuffleHandle<K, V, C> {
    private static final long serialVersionUID = 1L;

    SortMergeShuffleHandle(int shuffleId, ShuffleDependency<K, V, C> dependency) {
        super(shuffleId, dependency);
    }

    static boolean isOn(ShuffleHandle handle) {
        return handle.getClass().getName().equals(SortMergeShuffleHandle.class.getName());
    }
}
