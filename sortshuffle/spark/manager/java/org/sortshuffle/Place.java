package org.sortshuffle;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.net.UnknownHostException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Where the engine of this host listens: its Unix socket, and its service's TCP address. `sparkHost`: Spark's
 * name of this host. `locationHost`: the one in the locations of map outputs.
 */
record Place(String socket, String host, int port, String sparkHost, String locationHost) {
    private static final Logger LOG = LoggerFactory.getLogger(Place.class);
    private static final int CONNECT_MILLISECONDS = 1000; // to this host itself

    static Place of(String socket, String host, int port, String sparkHost) {
        return new Place(socket, host, port, sparkHost, locationHost(host, port, sparkHost));
    }

    String address() {
        return bracketed(host) + ":" + port;
    }

    /** Whether this is the service's address, by any of this host's names. */
    boolean isAt(String named, int itsPort) {
        return itsPort == port && (named.equals(locationHost) || named.equals(sparkHost));
    }

    private static String bracketed(String host) {
        return host.contains(":") ? "[" + host + "]" : host;
    }

    /**
     * Spark's name, so that Spark runs tasks near their input. If the service does not listen there,
     * because that is an address in another network, it is the service's own.
     */
    private static String locationHost(String host, int port, String sparkHost) {
        if (sparkHost.equals(host) || listensAt(sparkHost, port) || mayLeadHere(sparkHost, host))
            return sparkHost;
        LOG.info("The service does not listen at {}, as Spark calls this host, but at {}. Map outputs are"
                        + " located at the latter, so Spark does not know which tasks are near them",
                sparkHost, host);
        return bracketed(host);
    }

    private static boolean listensAt(String host, int port) {
        try {
            for (InetAddress address : InetAddress.getAllByName(host))
                if (listensAt(new InetSocketAddress(address, port)))
                    return true;
        } catch (UnknownHostException e) {
            LOG.debug("Spark's name of this host is not known here", e);
        }
        return false;
    }

    private static boolean listensAt(InetSocketAddress address) {
        try (Socket socket = new Socket()) {
            socket.connect(address, CONNECT_MILLISECONDS);
            return true;
        } catch (IOException e) {
            return false;
        }
    }

    /** Whether other hosts may find the service at Spark's name, though this one does not. */
    private static boolean mayLeadHere(String sparkHost, String host) {
        try {
            InetAddress spark = InetAddress.getByName(sparkHost);
            InetAddress own = InetAddress.getByName(host);
            // a host's own name often means loopback there, and its address elsewhere
            boolean isOwnName = spark.isLoopbackAddress() && !spark.getHostAddress().equals(sparkHost);
            // at a loopback address only this host finds the service
            boolean isFromHereOnly = own.isLoopbackAddress() && !spark.isLoopbackAddress();
            return isOwnName || isFromHereOnly || own.isAnyLocalAddress();
        } catch (UnknownHostException e) {
            return true; // a name that is unknown here may be known elsewhere
        }
    }
}
