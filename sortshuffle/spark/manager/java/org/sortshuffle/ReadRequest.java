package org.sortshuffle;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.storage.BlockManagerId;

/**
 * A READ request: blocks, the addresses of the services that have them, and for each block the number of its
 * service.
 */
record ReadRequest(RecordReader.Blocks blocks, List<String> addresses, int[] services) {
    private static final int FIXED_BYTES = 16;
    private static final int BLOCK_BYTES = 40;

    /** Where Spark says that a map output is. */
    record Service(String host, int port) {
        static Service of(RecordReader.Block block) {
            BlockManagerId location = block.location();
            return new Service(location.host(), location.port());
        }
    }

    static ReadRequest of(Engine engine, RecordReader.Blocks blocks) {
        Map<Service, Integer> numbers = numbers(blocks);
        int[] services = blocks.list().stream().mapToInt(block -> numbers.get(Service.of(block))).toArray();
        List<String> addresses = new ArrayList<>();
        for (Service each : numbers.keySet())
            addresses.add(engine.addressOf(each.host, each.port));
        return new ReadRequest(blocks, addresses, services);
    }

    /** The services of these blocks in the order of their numbers in a request. */
    static List<Service> services(RecordReader.Blocks blocks) {
        return List.copyOf(numbers(blocks).keySet());
    }

    private static Map<Service, Integer> numbers(RecordReader.Blocks blocks) {
        Map<Service, Integer> numbers = new LinkedHashMap<>();
        for (RecordReader.Block block : blocks.list())
            numbers.putIfAbsent(Service.of(block), numbers.size());
        return numbers;
    }

    /** From here on the link is within the request. */
    void begin(Link link) throws IOException {
        long length = FIXED_BYTES + (long) BLOCK_BYTES * services.length;
        for (String address : addresses)
            length += Integer.BYTES + bytes(address).length;
        link.begin(Link.READ, length);
    }

    /** Sends what follows after `begin`. */
    void send(Link link) throws IOException {
        send(link, 0);
    }

    /**
     * The same, to know which map outputs are lost, also of those whose index the engine knows. It takes
     * those whose records it has in memory for sound. No records come.
     */
    void sendToLook(Link link) throws IOException {
        send(link, 1);
    }

    private void send(Link link, int onlyLooks) throws IOException {
        link.putInt(blocks.shuffle());
        link.putInt(addresses.size());
        link.putInt(services.length);
        link.putInt(onlyLooks);
        for (String address : addresses)
            link.putText(bytes(address));
        for (int i = 0; i < services.length; i++)
            put(link, blocks.list().get(i), services[i]);
        link.flush();
    }

    private static void put(Link link, RecordReader.Block block, int service) throws IOException {
        link.putLong(block.mapId());
        link.putInt(block.mapIndex());
        link.putInt(block.first());
        link.putInt(block.end());
        link.putInt(service);
        String fileId = block.location().topologyInfo().get();
        link.putLong(Long.reverseBytes(HexFormat.fromHexDigitsToLong(fileId, 0, 16)));
        link.putLong(Long.reverseBytes(HexFormat.fromHexDigitsToLong(fileId, 16, 32)));
    }

    private static byte[] bytes(String address) {
        return address.getBytes(StandardCharsets.UTF_8);
    }
}
