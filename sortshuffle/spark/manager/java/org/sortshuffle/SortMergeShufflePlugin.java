package org.sortshuffle;

import java.io.IOException;
import java.security.SecureRandom;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.apache.spark.MapOutputTrackerMaster;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * What the shuffle manager needs of an application: its token and secret, and the way from executors to the
 * driver.
 *
 * <p>The driver's half makes token and secret, and gives them to the executors. In local mode both halves are
 * in one JVM, and the driver's does everything.
 */
public final class SortMergeShufflePlugin implements SparkPlugin {
    private static final Logger LOG = LoggerFactory.getLogger(SortMergeShufflePlugin.class);
    private static final String TOKEN = "token";
    private static final String SECRET = "secret";
    private static final int TOKEN_BYTES = 16;
    private static final int SECRET_BYTES = 32;

    @Override
    public DriverPlugin driverPlugin() {
        return new Driver();
    }

    @Override
    public ExecutorPlugin executorPlugin() {
        return new Executor();
    }

    /** The driver's half. It knows the services of the application, and has lost map outputs forgotten. */
    static final class Driver implements DriverPlugin, Reports {
        private static volatile Driver current;

        /** By the id of each executor that ever told of one, its service's address. */
        private final Map<String, String> services = new ConcurrentHashMap<>();

        private final ThreadPoolExecutor remover =
                new ThreadPoolExecutor(1, 1, 10, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), task -> {
                    Thread thread = new Thread(task, "sortshuffle-remove");
                    thread.setDaemon(true);
                    return thread;
                });
        private Engine engine;

        /** Null where the manager is off, and after the application's end. */
        static Driver current() {
            return current;
        }

        @Override
        public Map<String, String> init(SparkContext context, PluginContext plugin) {
            if (SortMergeShuffleManager.isOff(context.conf()))
                return Map.of();
            refuse(context.conf(), context.version());
            remover.allowCoreThreadTimeOut(true);
            SecureRandom random = new SecureRandom();
            String token = hex(random, TOKEN_BYTES);
            String secret = hex(random, SECRET_BYTES);
            engine = new Engine(token, secret, this);
            engine.enter();
            current = this;
            return Map.of(TOKEN, token, SECRET, secret);
        }

        private static String hex(SecureRandom random, int length) {
            byte[] bytes = new byte[length];
            random.nextBytes(bytes);
            return HexFormat.of().formatHex(bytes);
        }

        private static void refuse(SparkConf conf, String version) {
            String off =
                    ". Or leave sortshuffle's manager out, by " + SortMergeShuffleManager.MANAGER + "=off";
            String manager = conf.get("spark.shuffle.manager", "sort");
            if (!version.matches("4\\.[123](\\D.*)?"))
                throw new IllegalArgumentException(
                        "sortshuffle's shuffle manager works with Spark 4.1, 4.2 and 4.3; "
                        + "this is Spark " + version + off);
            if (!manager.equals(SortMergeShuffleManager.class.getName()))
                throw new IllegalArgumentException(
                        "spark.plugins names sortshuffle's plugin, but spark.shuffle.manager "
                        + "is " + manager + ": set it to " + SortMergeShuffleManager.class.getName() + off);
            String directory = conf.get("spark.sortshuffle.dir", "").trim();
            if (directory.matches("[a-z][a-z0-9+.-]*://.*"))
                throw new IllegalArgumentException(
                        "sortshuffle's shuffle manager writes to local directories only, and "
                        + "spark.sortshuffle.dir is " + directory + ": name local directories" + off);
            if (conf.getBoolean("spark.shuffle.push.enabled", false))
                throw new IllegalArgumentException(
                        "sortshuffle's shuffle manager has no push-based shuffle: set "
                        + "spark.shuffle.push.enabled to false" + off);
            if (conf.getBoolean("spark.shuffle.service.enabled", false))
                throw new IllegalArgumentException(
                        "sortshuffle's shuffle manager has a service of its own: set "
                        + "spark.shuffle.service.enabled to false. For dynamic allocation set "
                        + "spark.dynamicAllocation.shuffleTracking.enabled to true" + off);
        }

        @Override
        public Object receive(Object message) {
            if (message instanceof LostOutputs lost)
                lost(lost);
            else if (message instanceof ServiceAddress service)
                services.put(service.executor(), service.address());
            else
                LOG.warn("The driver got a message that it does not know: {}", message);
            return null;
        }

        @Override
        public void service(String address) {
            // It is this JVM's own engine, which knows where it is.
        }

        @Override
        public void lost(LostOutputs lost) {
            var tracker = (MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker();
            if (!tracker.containsShuffle(lost.shuffle()))
                return;
            int before = tracker.getNumAvailableOutputs(lost.shuffle());
            for (LostOutput output : lost.outputs())
                tracker.unregisterMapOutput(lost.shuffle(), output.mapIndex(), output.location());
            int forgotten = before - tracker.getNumAvailableOutputs(lost.shuffle());
            if (forgotten > 0) // other tasks may have reported the same ones before
                LOG.warn("{} map outputs of shuffle {} are lost; their tasks run again", forgotten,
                        lost.shuffle());
        }

        /** Removes the files of a shuffle where no executor does. Returns at once. */
        void remove(int shuffle) {
            try {
                remover.execute(() -> removeNow(shuffle));
            } catch (RejectedExecutionException e) {
                LOG.debug("The application ends, and with it the files of shuffle {}", shuffle);
            }
        }

        private void removeNow(int shuffle) {
            try {
                Set<String> left = leftBehind();
                if (left.isEmpty() && engine.place() == null)
                    return; // so this host needs no engine, where executors do everything
                try {
                    engine.remove(shuffle, left);
                } catch (IOException passing) {
                    engine.remove(shuffle, left);
                }
            } catch (Exception e) { // Scala throws checked ones that it does not declare
                if (!remover.isShutdown())
                    LOG.warn("Some files of shuffle {} stay until the application ends: {}", shuffle,
                            e.toString());
            }
        }

        /** The services that no executor uses any more. */
        private Set<String> leftBehind() {
            if (services.isEmpty())
                return Set.of();
            Set<String> left = new HashSet<>(services.values());
            var living = SparkEnv.get().blockManager().master().getMemoryStatus().keysIterator();
            while (living.hasNext()) {
                String address = services.get(living.next().executorId());
                if (address != null)
                    left.remove(address);
            }
            return left;
        }

        @Override
        public void shutdown() {
            remover.shutdownNow();
            if (engine != null)
                engine.leave();
            if (current == this)
                current = null;
        }
    }

    /** An executor's half. It knows the way to the driver. */
    static final class Executor implements ExecutorPlugin, Reports {
        private PluginContext plugin;
        private Engine engine;

        @Override
        public void init(PluginContext plugin, Map<String, String> fromDriver) {
            String token = fromDriver.get(TOKEN);
            if (token == null || Engine.isCurrent(token))
                return; // the manager is off, or the driver is this JVM
            this.plugin = plugin;
            engine = new Engine(token, fromDriver.get(SECRET), this);
            engine.enter();
        }

        @Override
        public void service(String address) {
            if (Engine.isContainer(plugin.conf()))
                return; // it ends with this executor: nobody else has to remove its files
            try {
                plugin.send(new ServiceAddress(plugin.executorID(), address));
            } catch (IOException | RuntimeException e) {
                LOG.warn(
                        "The driver was not told of the service {}; if this executor is lost, its files stay "
                                + "until the application ends: {}",
                        address, e.toString());
            }
        }

        @Override
        public void lost(LostOutputs lost) {
            try {
                plugin.ask(lost);
            } catch (Exception e) {
                if (e instanceof InterruptedException)
                    Thread.currentThread().interrupt();
                LOG.warn("The driver was not told of {} lost map outputs; it learns of one at a time",
                        lost.outputs().size(), e);
            }
        }

        @Override
        public void shutdown() {
            if (engine != null)
                engine.leave();
        }
    }
}
