package org.sortshuffle;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.spark.SparkEnv;
import org.apache.spark.storage.BlockManagerId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Finds all lost map outputs of a shuffle once a reader has found one.
 *
 * <p>Spark allows a stage four attempts, and each task sees only the few map outputs that it reads. So the
 * reader asks the engine about all of the shuffle's map outputs that it can name, and the driver learns of
 * every loss at once.
 */
final class Losses {
    private static final Logger LOG = LoggerFactory.getLogger(Losses.class);

    /** Map outputs. The engine opens all of a request. */
    private static final int MOST_AT_ONCE = 100;

    /**
     * What is known after so many time-outs of a service is reported, and after no less than these seconds: a
     * disk may hang that has lost nothing.
     */
    private static final int TIMEOUTS = 3;
    private static final long LEAST_SECONDS = 150;

    /** In place of a time-out such as 2.5min, which the engine understands, and Spark does not. */
    private static final long UNREAD_SECONDS = 300;

    /** By map index. */
    private final Map<Integer, Reports.LostOutput> found = new TreeMap<>();

    private Losses() {
    }

    /** `blocks`: what the reader had asked for. `subpartitions`: of the shuffle. */
    static Reports.LostOutputs find(
            Engine engine, RecordReader.Blocks blocks, int subpartitions, Link.Refusal refusal) {
        Losses losses = new Losses();
        losses.add(blocks, refusal);
        try {
            losses.addOthers(engine, blocks, subpartitions, refusal);
        } catch (Exception e) { // Scala throws checked ones that it does not declare
            if (e instanceof InterruptedException)
                Thread.currentThread().interrupt();
            // mostly: Spark has no location of some, because another reader has reported them just now. Spark
            // notes that as the task's failure; the one that the reader throws takes its place
            LOG.info("What else is lost of shuffle {} is not known: {}", blocks.shuffle(), e.toString());
        }
        return new Reports.LostOutputs(blocks.shuffle(), new ArrayList<>(losses.found.values()));
    }

    private void addOthers(Engine engine, RecordReader.Blocks blocks, int subpartitions, Link.Refusal refusal)
            throws IOException {
        List<RecordReader.Block> others =
                new ArrayList<>(RecordReader.Blocks.ofMapOutputs(blocks.shuffle(), subpartitions).list());
        if (areStillThere(blocks, refusal, others))
            addAllOf(silent(blocks, refusal), others);
        Set<Integer> known =
                blocks.list().stream().map(RecordReader.Block::mapIndex).collect(Collectors.toSet());
        others.removeIf(each -> known.contains(each.mapIndex()) || found.containsKey(each.mapIndex()));
        long deadline = System.nanoTime() + patience();
        while (!others.isEmpty())
            addLostOf(engine, blocks.shuffle(), others, deadline);
    }

    /** Asks for the first of these, and takes them away. */
    private void addLostOf(Engine engine, int shuffle, List<RecordReader.Block> others, long deadline)
            throws IOException {
        List<RecordReader.Block> first = others.subList(0, Math.min(MOST_AT_ONCE, others.size()));
        RecordReader.Blocks asked = new RecordReader.Blocks(shuffle, List.copyOf(first));
        first.clear();
        Link.Refusal refusal = refusal(engine, asked, deadline);
        if (refusal == null)
            return;
        add(asked, refusal);
        Set<ReadRequest.Service> silent = silent(asked, refusal);
        addAllOf(silent, others);
        others.removeIf(each -> silent.contains(ReadRequest.Service.of(each)));
    }

    /** Null where all are there. */
    private static Link.Refusal refusal(Engine engine, RecordReader.Blocks asked, long deadline)
            throws IOException {
        try (Link link = engine.link()) {
            ReadRequest request = ReadRequest.of(engine, asked);
            request.begin(link);
            request.sendToLook(link);
            link.awaitAnswer(Math.max(1, (deadline - System.nanoTime()) / 1_000_000));
            if (link.getInt() != RecordStream.AT_ERROR)
                return null; // the link is not settled, so closing it ends the answer
            Link.Refusal refusal = link.refusal();
            if (refusal.lost.length == 0)
                throw refusal;
            return refusal;
        }
    }

    /** Nanoseconds. */
    private static long patience() {
        long timeout;
        try {
            timeout = SparkEnv.get().conf().getTimeAsSeconds("spark.sortshuffle.service.timeout", "60s");
        } catch (NumberFormatException e) {
            timeout = UNREAD_SECONDS;
        }
        return 1_000_000_000L * Math.max(LEAST_SECONDS, TIMEOUTS * timeout);
    }

    /**
     * Whether the lost blocks are where the reader has asked for them. Else somebody has reported them
     * meanwhile, and what is at that service now may be new.
     */
    private static boolean areStillThere(
            RecordReader.Blocks blocks, Link.Refusal refusal, List<RecordReader.Block> now) {
        Map<Integer, BlockManagerId> locations = new HashMap<>();
        for (RecordReader.Block each : now)
            locations.put(each.mapIndex(), each.location());
        return Arrays.stream(refusal.lost)
                .mapToObj(blocks.list()::get)
                .allMatch(each -> each.location().equals(locations.get(each.mapIndex())));
    }

    private void addAllOf(Set<ReadRequest.Service> services, List<RecordReader.Block> blocks) {
        for (RecordReader.Block each : blocks)
            if (services.contains(ReadRequest.Service.of(each)))
                add(each);
    }

    /** The services that did not answer: to ask one again would take its time-out once more. */
    private static Set<ReadRequest.Service> silent(RecordReader.Blocks blocks, Link.Refusal refusal) {
        List<ReadRequest.Service> services = ReadRequest.services(blocks);
        return Arrays.stream(refusal.silent).mapToObj(services::get).collect(Collectors.toSet());
    }

    private void add(RecordReader.Blocks blocks, Link.Refusal refusal) {
        List<RecordReader.Block> list = blocks.list();
        for (int number : refusal.lost)
            add(list.get(number));
    }

    private void add(RecordReader.Block block) {
        found.put(block.mapIndex(), new Reports.LostOutput(block.mapIndex(), block.location()));
    }
}
