package org.sortshuffle;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.TreeMap;
import org.apache.spark.Aggregator;
import org.apache.spark.InterruptibleIterator;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleReadMetricsReporter;
import org.apache.spark.shuffle.ShuffleReader;
import org.apache.spark.shuffle.checksum.RowBasedChecksum;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockManagerId;
import org.apache.spark.storage.ShuffleBlockId;
import org.apache.spark.util.TaskCompletionListener;
import org.apache.spark.util.collection.ExternalSorter;
import scala.Option;
import scala.Product2;
import scala.Tuple2;
import scala.Tuple3;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A reduce task's reader: some subpartitions of some map outputs as records. The engine makes one stream of
 * bytes of them; what follows is Spark's: deserializer, aggregator, ordering.
 */
final class RecordReader<K, C> implements ShuffleReader<K, C> {
    /** Subpartitions `first` to `end` - 1 of one map output. */
    record Block(BlockManagerId location, long mapId, int mapIndex, int first, int end) {}

    /** What one reader reads, by map index, so that records come in the same order in every attempt. */
    record Blocks(int shuffle, List<Block> list) {
        private static final long MOST_LOOKS = 10_000_000; // at blocks, 50 to 100 ns each

        /**
         * One block of each map output of a shuffle that has any. Spark lists blocks, not map outputs, so it
         * is asked for one subpartition after the other. For each it looks at all map outputs. Of a shuffle
         * with more than `MOST_LOOKS` blocks, map outputs may be missing here: those with nothing in the
         * first subpartitions.
         */
        static Blocks ofMapOutputs(int shuffle, int subpartitions) {
            TreeMap<Integer, Block> found = new TreeMap<>();
            long looks = 0;
            for (int each = 0; each < subpartitions && looks < MOST_LOOKS; each++) {
                for (Block block : find(shuffle, 0, Integer.MAX_VALUE, each, each + 1).list())
                    found.putIfAbsent(block.mapIndex(), block);
                looks += found.isEmpty() ? 1 : found.lastKey() + 1; // at least: map indexes count from 0
            }
            return new Blocks(shuffle, List.copyOf(found.values()));
        }

        static Blocks find(int shuffle, int startMap, int endMap, int start, int end) {
            List<Block> list = new ArrayList<>();
            var locations = SparkEnv.get().mapOutputTracker().getMapSizesByExecutorId(
                    shuffle, startMap, endMap, start, end);
            while (locations.hasNext()) {
                var location = locations.next();
                for (Tuple3<BlockId, Object, Object> each : CollectionConverters.asJava(location._2()))
                    add(list, location._1(), (ShuffleBlockId) each._1(), (Integer) each._3());
            }
            list.sort(Comparator.comparingInt(Block::mapIndex).thenComparingInt(Block::first));
            return new Blocks(shuffle, list);
        }

        /**
         * Blocks of one map output come in order. The empty ones between them, which are not listed, do no
         * harm.
         */
        private static void add(List<Block> list, BlockManagerId location, ShuffleBlockId id, int mapIndex) {
            int end = id.reduceId() + 1;
            Block last = list.isEmpty() ? null : list.get(list.size() - 1);
            if (last != null && last.mapId == id.mapId() && last.end < end)
                list.set(list.size() - 1, new Block(location, last.mapId, mapIndex, last.first, end));
            else
                list.add(new Block(location, id.mapId(), mapIndex, id.reduceId(), end));
        }
    }

    private final ShuffleDependency<K, ?, C> dependency;
    private final Blocks blocks;
    private final TaskContext context;
    private final ShuffleReadMetricsReporter metrics;

    RecordReader(BaseShuffleHandle<K, ?, C> handle, Blocks blocks, TaskContext context,
            ShuffleReadMetricsReporter metrics) {
        this.dependency = handle.dependency();
        this.blocks = blocks;
        this.context = context;
        this.metrics = metrics;
    }

    @Override
    @SuppressWarnings({"unchecked", "rawtypes"})
    public Iterator<Product2<K, C>> read() {
        Iterator records = new InterruptibleIterator<>(context, records());
        if (dependency.aggregator().isDefined()) {
            Aggregator aggregator = dependency.aggregator().get();
            records = dependency.mapSideCombine() ? aggregator.combineCombinersByKey(records, context)
                                                  : aggregator.combineValuesByKey(records, context);
        }
        if (dependency.keyOrdering().isDefined()) {
            var sorter = new ExternalSorter(context, Option.empty(), Option.empty(), dependency.keyOrdering(),
                    dependency.serializer(), new RowBasedChecksum[0]);
            records = sorter.insertAllAndUpdateMetrics(records);
        }
        return records instanceof InterruptibleIterator ? records
                                                        : new InterruptibleIterator(context, records);
    }

    private Iterator<Tuple2<Object, Object>> records() {
        if (blocks.list().isEmpty())
            return scala.collection.Iterator$.MODULE$.empty();
        RecordStream stream =
                new RecordStream(Engine.current(), blocks, dependency.partitioner().numPartitions(), metrics);
        // This refers to the stream alone, not to this reader: it stays until the task ends, however many
        // readers the task has.
        context.addTaskCompletionListener((TaskCompletionListener) ended -> {
            stream.close();
            ended.taskMetrics().mergeShuffleReadMetrics();
        });
        if (UnsafeRows.areOf(dependency.serializer()))
            return new UnsafeRows(dependency.serializer(), stream);
        return new Counted(deserialized(stream), stream);
    }

    private Iterator<Tuple2<Object, Object>> deserialized(RecordStream stream) {
        SerializerInstance serializer = dependency.serializer().newInstance();
        if (dependency.serializer().supportsRelocationOfSerializedObjects())
            return serializer.deserializeStream(stream).asKeyValueIterator();
        return new BlockRecords(stream, serializer);
    }

    /** Counts records. */
    private static final class Counted extends AbstractIterator<Tuple2<Object, Object>> {
        private final Iterator<Tuple2<Object, Object>> records;
        private final RecordStream stream;

        Counted(Iterator<Tuple2<Object, Object>> records, RecordStream stream) {
            this.records = records;
            this.stream = stream;
        }

        @Override
        public boolean hasNext() {
            return records.hasNext();
        }

        @Override
        public Tuple2<Object, Object> next() {
            stream.countRecord();
            return records.next();
        }
    }

    /**
     * The records of a stream of blocks ({@link BlockStreams}), each of which has a deserializer of its own.
     */
    private static final class BlockRecords extends AbstractIterator<Tuple2<Object, Object>> {
        private final RecordStream stream;
        private final SerializerInstance serializer;
        private Iterator<Tuple2<Object, Object>> records = scala.collection.Iterator$.MODULE$.empty();

        BlockRecords(RecordStream stream, SerializerInstance serializer) {
            this.stream = stream;
            this.serializer = serializer;
        }

        @Override
        public boolean hasNext() {
            try {
                while (!records.hasNext()) {
                    byte[] block = stream.nextBlock();
                    if (block == null)
                        return false;
                    records = serializer.deserializeStream(new ByteArrayInputStream(block))
                                      .asKeyValueIterator();
                }
                return true;
            } catch (IOException e) {
                throw RecordStream.sneaky(e);
            }
        }

        @Override
        public Tuple2<Object, Object> next() {
            if (!hasNext())
                throw new java.util.NoSuchElementException();
            return records.next();
        }
    }
}
