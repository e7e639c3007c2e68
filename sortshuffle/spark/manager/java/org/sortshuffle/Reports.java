package org.sortshuffle;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.storage.BlockManagerId;

/**
 * What a JVM tells the driver: on the driver itself by a call of the plugin's half there, from an executor
 * through Spark's RPC for plugins, as one of the messages below.
 */
interface Reports {
    /** The TCP address, host:port, of a service that has been started or found. */
    void service(String address);

    /**
     * Map outputs that a reader could not get. When this returns the driver has forgotten them, if it hears.
     */
    void lost(LostOutputs lost);

    /** One map output, as the driver knows it. */
    record LostOutput(int mapIndex, BlockManagerId location) implements Serializable {}

    /** A message: map outputs of one shuffle that are lost. */
    record LostOutputs(int shuffle, List<LostOutput> outputs) implements Serializable {}

    /** A message: the address of the service that an executor uses. */
    record ServiceAddress(String executor, String address) implements Serializable {}
}
