package org.sortshuffle;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What is lost of a shuffle, where a reader has found that some of its own map outputs are.
 *
 * <p>Spark gives up after four attempts of a stage. Where each task reads few map outputs, a lost disk or
 * host would take more: each attempt would find no more than its few tasks read. So the reader looks at all
 * map outputs of the shuffle, and the driver hears of all that are lost at once.
 */
final class Losses {
    private static final Logger LOG = LoggerFactory.getLogger(Losses.class);

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
            // mostly: Spark has no location of some, because another reader has reported them just now
            LOG.info("What else is lost of shuffle {} is not known: {}", blocks.shuffle(), e.toString());
        }
        return new Reports.LostOutputs(blocks.shuffle(), new ArrayList<>(losses.found.values()));
    }

    private void addOthers(Engine engine, RecordReader.Blocks blocks, int subpartitions, Link.Refusal refusal)
            throws IOException {
        List<RecordReader.Block> others =
                new ArrayList<>(RecordReader.Blocks.ofAllMapOutputs(blocks.shuffle(), subpartitions).list());
        if (!refusal.haveAllAnswered)
            addAllOf(silent(blocks, refusal), others);
        Set<Integer> known =
                blocks.list().stream().map(RecordReader.Block::mapIndex).collect(Collectors.toSet());
        others.removeIf(each -> known.contains(each.mapIndex()) || found.containsKey(each.mapIndex()));
        if (!others.isEmpty())
            addLost(engine, new RecordReader.Blocks(blocks.shuffle(), others));
    }

    /** The engine looks for all map outputs of a request before it answers. */
    private void addLost(Engine engine, RecordReader.Blocks others) throws IOException {
        try (Link link = engine.link()) {
            ReadRequest request = ReadRequest.of(engine, others);
            request.begin(link);
            request.send(link);
            if (link.getInt() != RecordStream.AT_ERROR)
                return; // all are there; the link is not settled, so closing it ends the answer
            Link.Refusal refusal = link.refusal();
            if (refusal.lost.length == 0)
                throw refusal;
            add(others, refusal);
        }
    }

    private void addAllOf(Set<ReadRequest.Service> services, List<RecordReader.Block> blocks) {
        for (RecordReader.Block each : blocks)
            if (services.contains(ReadRequest.Service.of(each)))
                add(each);
    }

    /**
     * The service that did not answer, if only one can be it: asking it again would take its time-out once
     * more. All blocks of such a service are lost. But a service that has answered may have lost all of its
     * blocks, too. So where there are several candidates, none is chosen.
     */
    private static Set<ReadRequest.Service> silent(RecordReader.Blocks blocks, Link.Refusal refusal) {
        Set<Integer> lost = Arrays.stream(refusal.lost).boxed().collect(Collectors.toSet());
        Set<ReadRequest.Service> silent = new HashSet<>();
        Set<ReadRequest.Service> answering = new HashSet<>();
        for (int number = 0; number < blocks.list().size(); number++)
            (lost.contains(number) ? silent : answering)
                    .add(ReadRequest.Service.of(blocks.list().get(number)));
        silent.removeAll(answering);
        return silent.size() == 1 ? silent : Set.of();
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
