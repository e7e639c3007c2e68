package org.sortshuffle;

import java.io.IOException;
import java.util.HexFormat;
import org.apache.spark.Aggregator;
import org.apache.spark.Partitioner;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.scheduler.MapStatus;
import org.apache.spark.serializer.SerializationStream;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.shuffle.BaseShuffleHandle;
import org.apache.spark.shuffle.ShuffleWriteMetricsReporter;
import org.apache.spark.shuffle.ShuffleWriter;
import org.apache.spark.shuffle.checksum.RowBasedChecksum;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.storage.BlockManagerId;
import org.apache.spark.util.collection.ExternalAppendOnlyMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;
import scala.Product2;
import scala.collection.Iterator;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * A map task's writer: serializes each record once, into frames that go to the engine.
 *
 * <p>Link and memory are held inside {@link #write} only. If that fails, the engine abandons the map output;
 * there is nothing left for {@link #stop} to do.
 */
final class FrameWriter<K, V> extends ShuffleWriter<K, V> {
    private static final Logger LOG = LoggerFactory.getLogger(FrameWriter.class);
    static final ClassTag<Object> ANY = ClassTag$.MODULE$.Any();

    private final int shuffle;
    private final ShuffleDependency<K, V, ?> dependency;
    private final TaskContext context;
    private final ShuffleWriteMetricsReporter metrics;
    private final Partitioner partitioner;
    private final RowBasedChecksum[] checksums;
    private long written; // records
    private long[] sizes;
    private BlockManagerId location;

    FrameWriter(BaseShuffleHandle<K, V, ?> handle, TaskContext context, ShuffleWriteMetricsReporter metrics) {
        this.shuffle = handle.shuffleId();
        this.dependency = handle.dependency();
        this.context = context;
        this.metrics = metrics;
        this.partitioner = dependency.partitioner();
        this.checksums = dependency.rowBasedChecksums();
    }

    /** The task attempt's id, whatever Spark calls the map output: no two attempts have the same. */
    private long mapId() {
        return context.taskAttemptId();
    }

    @Override
    public void write(Iterator<Product2<K, V>> values) throws IOException {
        Iterator<? extends Product2<?, ?>> records = combined(values);
        if (!records.hasNext()) {
            sizes = new long[partitioner.numPartitions()];
            BlockManagerId here = SparkEnv.get().blockManager().blockManagerId();
            location = location(here.host(), here.port(), Option.empty());
            return; // nobody will read it, so no engine is asked
        }
        Engine engine = Engine.current();
        try (FrameMemory memory = new FrameMemory(context.taskMemoryManager());
                MapOutput output = new MapOutput(engine, shuffle, context.partitionId(), mapId(),
                        partitioner.numPartitions(), context.stageId())) {
            Frame frame = new Frame(memory, output);
            if (UnsafeRows.areOf(dependency.serializer()))
                writeRows(records, frame);
            else if (dependency.serializer().supportsRelocationOfSerializedObjects())
                writeRecords(records, frame);
            else
                writeBlocks(records,
                        new BlockStreams(dependency.serializer().newInstance(), frame, memory,
                                partitioner.numPartitions()));
            frame.finish();
            complete(output.finish(), engine);
            metrics.incRecordsWritten(written);
            metrics.incWriteTime(output.nanos());
            context.taskMetrics().incPeakExecutionMemory(memory.peak());
        }
    }

    /** As Spark's own writer does: what it spills is written by the shuffle's serializer. */
    @SuppressWarnings("unchecked")
    private Iterator<? extends Product2<?, ?>> combined(Iterator<Product2<K, V>> values) {
        if (!dependency.mapSideCombine())
            return values;
        var aggregator = (Aggregator<K, V, Object>) dependency.aggregator().get();
        SparkEnv env = SparkEnv.get();
        var map = new ExternalAppendOnlyMap<K, V, Object>(aggregator.createCombiner(),
                aggregator.mergeValue(), aggregator.mergeCombiners(), dependency.serializer(),
                env.blockManager(), context, env.serializerManager());
        map.insertAll(values);
        context.taskMetrics().incMemoryBytesSpilled(map.memoryBytesSpilled());
        context.taskMetrics().incDiskBytesSpilled(map.diskBytesSpilled());
        context.taskMetrics().incPeakExecutionMemory(map.peakMemoryUsedBytes());
        return map.iterator();
    }

    private void writeRows(Iterator<? extends Product2<?, ?>> records, Frame frame) throws IOException {
        long bytes = 0;
        while (records.hasNext()) {
            Product2<?, ?> record = records.next();
            int subpartition = subpartition(record);
            UnsafeRow row = (UnsafeRow) record._2();
            frame.writeRow(row);
            frame.endRecord(subpartition);
            bytes += row.getSizeInBytes();
        }
        SQLMetric dataSize = UnsafeRows.dataSize(dependency.serializer());
        if (dataSize != null)
            dataSize.add(bytes);
    }

    private void writeRecords(Iterator<? extends Product2<?, ?>> records, Frame frame) throws IOException {
        SerializerInstance serializer = dependency.serializer().newInstance();
        SerializationStream stream = serializer.serializeStream(frame);
        while (records.hasNext()) {
            Product2<?, ?> record = records.next();
            int subpartition = subpartition(record);
            stream.writeKey(record._1(), ANY);
            stream.writeValue(record._2(), ANY);
            stream.flush();
            frame.endRecord(subpartition);
        }
    }

    private void writeBlocks(Iterator<? extends Product2<?, ?>> records, BlockStreams blocks)
            throws IOException {
        while (records.hasNext()) {
            Product2<?, ?> record = records.next();
            blocks.write(subpartition(record), record._1(), record._2());
        }
        blocks.finish();
    }

    private int subpartition(Product2<?, ?> record) {
        int subpartition = partitioner.getPartition(record._1());
        if (checksums.length > 0)
            checksums[subpartition].update(record._1(), record._2());
        written++;
        return subpartition;
    }

    private void complete(MapOutput.Finished finished, Engine engine) {
        sizes = finished.sizes();
        long bytes = 0;
        for (long size : sizes)
            bytes += size;
        metrics.incBytesWritten(bytes);
        Place place = engine.place();
        Option<String> fileId = Option.apply(HexFormat.of().formatHex(finished.fileId()));
        location = location(place.locationHost(), place.port(), fileId);
        LOG.debug("Map output {} of shuffle {}: {} bytes, {} regions written before the records ended",
                mapId(), shuffle, bytes, finished.earlyRegions());
    }

    /**
     * A location of this map output's own: to lose it loses no other, and to lose the executor loses none.
     * Where the service dies with its executor, they share its fate. On storage that all hosts see it is no
     * host's either.
     */
    private BlockManagerId location(String host, int port, Option<String> fileId) {
        SparkEnv env = SparkEnv.get();
        String own = "sortshuffle-" + mapId();
        if (Storage.isUsed(env.conf()))
            return Storage.location(own, fileId);
        String executor = Engine.isContainer(env.conf()) ? env.executorId() : own;
        return BlockManagerId.apply(executor, host, port, fileId);
    }

    @Override
    public Option<MapStatus> stop(boolean success) {
        if (!success)
            return Option.empty();
        long checksum = RowBasedChecksum.getAggregatedChecksumValue(checksums);
        return Option.apply(MapStatus.apply(location, sizes, mapId(), checksum));
    }

    @Override
    public long[] getPartitionLengths() {
        return sizes;
    }
}
