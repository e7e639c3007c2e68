package org.sortshuffle;

import org.apache.spark.ShuffleDependency;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleHandle;

/**
 * The handle of a shuffle that is this package's. The driver makes it; it travels with the tasks.
 *
 * <p>Code must recognise a handle by its class name, never by instanceof: a task may have loaded it with
 * another class loader (`spark.executor.userClassPathFirst`, Spark Connect). An unrecognised handle would
 * reach Spark's own writer, which needs rows to be copied first, and results would be wrong.
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
