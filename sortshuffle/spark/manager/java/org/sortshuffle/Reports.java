package org.sortshuffle;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.storage.BlockManagerId;

/**
 * What a JVM tells the driver. On the driver itself this is {@link Ledger}; an executor's goes through
 * Spark's RPC for plugins, as one of the messages below.
 */
interface Reports {
    /** The TCP address, host:port, of a service that has been started or found. */
    void service(String address);

    /**
     * Map outputs that a reader could not get. When this returns the driver has forgotten them, if it can
     * be.
     */
    void lost(LostOutputs lost);

    /** One map output, as the driver knows it. */
    record LostOutput(int mapIndex, BlockManagerId location) implements Serializable {}

    /** A message: map outputs of one shuffle that are lost. */
    record LostOutputs(int shuffle, List<LostOutput> outputs) implements Serializable {}

    /** A message: the address of a service. */
    record ServiceAddress(String address) implements Serializable {}
}
