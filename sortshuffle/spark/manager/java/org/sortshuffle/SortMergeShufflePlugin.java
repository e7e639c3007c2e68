package org.sortshuffle;

import java.io.IOException;
import java.security.SecureRandom;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;
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
 * <p>The driver's half makes token and secret, and gives them to the executors. Where executors are on its
 * host for certain, it names its process, too. In local mode both halves are in one JVM, and the driver's
 * does everything.
 */
public final class SortMergeShufflePlugin implements SparkPlugin {
    private static final Logger LOG = LoggerFactory.getLogger(SortMergeShufflePlugin.class);
    private static final String TOKEN = "token";
    private static final String SECRET = "secret";
    private static final String DRIVER = "driver"; // its process
    private static final int TOKEN_BYTES = 16;
    private static final int SECRET_BYTES = 32;
    private static final int IDLE_SECONDS = 10; // after which the thread that removes files ends

    /** For removing everything at a URL: a store deletes some thousand objects a second. */
    private static final int LAST_SECONDS = 60;

    /** OUR_DAEMON if configure() has found it in the Python of workers on this host; empty if not. */
    private static final String WANTED_DAEMON_MODULE =
            "spark.plugins.internal.conf." + SortMergeShufflePlugin.class.getName() + ".daemon";
    private static final String OUR_DAEMON = "sortshuffle.spark.worker.daemon";
    private static final String DAEMON_MODULE = "spark.python.daemon.module";
    private static final String NETWORK_TIMEOUT = "spark.network.timeout";
    private static final String TRACKING_TIMEOUT = "spark.dynamicAllocation.shuffleTracking.timeout";

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

        private final Set<Integer> sparksOwn = ConcurrentHashMap.newKeySet(); // shuffles that are Spark's

        private final ScheduledThreadPoolExecutor remover = new ScheduledThreadPoolExecutor(1, task -> {
            Thread thread = new Thread(task, "sortshuffle-remove");
            thread.setDaemon(true);
            return thread;
        });
        private SparkContext context;
        private SparkConf conf;
        private String token;
        private Engine engine;
        private boolean isStored; // on storage that all hosts see
        private long untilDeadAreKnown; // seconds
        private Set<String> passedOver = Set.of(); // by the last removal; of the remover's thread alone

        /** Null where the manager is off, and after the application's end. */
        static Driver current() {
            return current;
        }

        @Override
        public Map<String, String> init(SparkContext context, PluginContext plugin) {
            nameDaemon(context);
            if (SortMergeShuffleManager.isOff(context.conf()))
                return Map.of();
            this.context = context;
            conf = context.conf();
            refuse(context.conf(), context.version());
            letIdleExecutorsGo(context.conf());
            if (context.version().startsWith("4.1"))
                checkRows(context.conf());
            isStored = Storage.isUsed(context.conf());
            if (isStored)
                tellOfStorage(context.conf());
            // Spark looks for silent executors at least as often as this timeout is long, unless it is told
            // otherwise (spark.network.timeoutInterval, spark.storage.blockManagerHeartbeatTimeoutMs). Then
            // files of executors that end without a word may stay until the application ends.
            untilDeadAreKnown = 2 * context.conf().getTimeAsSeconds(NETWORK_TIMEOUT, "120s");
            remover.setKeepAliveTime(IDLE_SECONDS, TimeUnit.SECONDS);
            remover.allowCoreThreadTimeOut(true);
            SecureRandom random = new SecureRandom();
            token = hex(random, TOKEN_BYTES);
            String secret = hex(random, SECRET_BYTES);
            engine = new Engine(token, secret, Engine.UNKNOWN, this);
            engine.enter();
            current = this;
            long process = Engine.isLocalCluster(conf) ? ProcessHandle.current().pid() : Engine.UNKNOWN;
            return Map.of(TOKEN, token, SECRET, secret, DRIVER, Long.toString(process));
        }

        /**
         * Has dynamic allocation treat idle executors that have written map outputs like others. By itself
         * Spark keeps them for as long as the shuffle is needed. The manager's map outputs need their
         * executor only in containers, and only if they are not at a URL. Spark reads this later, from the
         * same configuration, and waits for the longest of its timeouts for idle executors: 0 leaves the
         * others.
         */
        private static void letIdleExecutorsGo(SparkConf conf) {
            boolean outlive = Storage.isUsed(conf) || !Engine.isContainer(conf);
            if (outlive && !conf.contains(TRACKING_TIMEOUT))
                conf.set(TRACKING_TIMEOUT, "0");
        }

        /**
         * Lets Spark notice that a map task which runs again sends rows elsewhere than before, and run the
         * stages again that have read them. Without this, rows may be lost or doubled. It is the default
         * since Spark 4.2.
         */
        private static void checkRows(SparkConf conf) {
            conf.setIfMissing("spark.sql.shuffle.orderIndependentChecksum.enabled", "true");
            conf.setIfMissing("spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch", "true");
        }

        /**
         * Names the module that forks Python workers, unless the user has named another. Only with a local
         * master: other hosts may lack it. A copy of an earlier application's configuration may have the
         * name already. It is removed where configure() does not want it, and where the manager is off.
         * Spark reads the name later, from the same configuration.
         */
        private static void nameDaemon(SparkContext context) {
            SparkConf conf = context.conf();
            boolean mayBeOurs = context.isLocal() && !SortMergeShuffleManager.isOff(conf);
            String wanted = mayBeOurs ? conf.get(WANTED_DAEMON_MODULE, "") : "";
            if (!wanted.isEmpty())
                conf.setIfMissing(DAEMON_MODULE, wanted);
            else if (OUR_DAEMON.equals(conf.get(DAEMON_MODULE, "")))
                conf.remove(DAEMON_MODULE);
        }

        /** Spark reads this later, from the same configuration. */
        private static void tellOfStorage(SparkConf conf) {
            String components = conf.get(Storage.COMPONENTS, "");
            if (components.isEmpty() || components.equals(Storage.class.getName()))
                conf.set(Storage.COMPONENTS, Storage.class.getName());
            else
                LOG.warn(
                        "{} is {}: Spark asks it, and not sortshuffle, whether map outputs outlive executors. "
                                + "Leave it out, or a lost executor costs what it ran of a stage that runs",
                        Storage.COMPONENTS, components);
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
            if (conf.getBoolean("spark.shuffle.push.enabled", false))
                throw new IllegalArgumentException(
                        "sortshuffle's shuffle manager has no push-based shuffle: set "
                        + "spark.shuffle.push.enabled to false" + off);
            if (conf.getBoolean("spark.shuffle.service.enabled", false))
                throw new IllegalArgumentException(
                        "sortshuffle's shuffle manager has a service of its own: set "
                        + "spark.shuffle.service.enabled to false. For dynamic allocation set "
                        + "spark.dynamicAllocation.shuffleTracking.enabled to true" + off);
            for (String key : NETWORK_ENCRYPTION)
                if (conf.getBoolean(key, false) && sendsUnencrypted(conf))
                    throw new IllegalArgumentException(key
                            + " is true, and rows would cross the network unencrypted. Set the three "
                            + "spark.sortshuffle.service.tls.*, or spark.io.encryption.enabled to true"
                            + off);
        }

        /** With one of these, Spark encrypts all that its processes send each other. */
        private static final List<String> NETWORK_ENCRYPTION = List.of("spark.network.crypto.enabled",
                "spark.ssl.rpc.enabled", "spark.authenticate.enableSaslEncryption");

        private static boolean sendsUnencrypted(SparkConf conf) {
            String master = conf.get("spark.master", "");
            boolean isLocal = master.equals("local") || master.startsWith("local[");
            return !isLocal && !Storage.isUsed(conf) && !conf.getBoolean("spark.io.encryption.enabled", false)
                    && Stream.of("certificate", "key", "authority")
                               .anyMatch(file
                                       -> conf.get("spark.sortshuffle.service.tls." + file, "").isEmpty());
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
            MapOutputTrackerMaster tracker = tracker();
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

        /** This shuffle is Spark's own. */
        void isSparks(int shuffle) {
            sparksOwn.add(shuffle);
        }

        /**
         * Whether no shuffle that Spark has now is its own. The tracker knows which it has: one that was
         * unregistered may come again, and is then not registered a second time.
         */
        boolean hasOnlyOurs() {
            MapOutputTrackerMaster tracker = tracker();
            return sparksOwn.stream().noneMatch(shuffle -> tracker.containsShuffle(shuffle));
        }

        /** Starts this host's engine, which removes what is at the URL. Fails if it cannot. */
        void startForStorage() throws IOException {
            engine.link().close();
            LOG.info("Map outputs lie at {}/{}-{}", Storage.url(conf), conf.getAppId(), token);
        }

        private static MapOutputTrackerMaster tracker() {
            return (MapOutputTrackerMaster) SparkEnv.get().mapOutputTracker();
        }

        /**
         * Removes the files of a shuffle where no executor does. Returns at once. An executor may be dead,
         * and Spark not know it yet. So this comes back later to the services that it has passed over.
         */
        void remove(int shuffle) {
            try {
                remover.execute(() -> removeFirst(shuffle));
            } catch (RejectedExecutionException e) {
                LOG.debug("The application ends, and with it the files of shuffle {}", shuffle);
            }
        }

        private void removeFirst(int shuffle) {
            Set<String> all = Set.copyOf(services.values());
            try {
                if (tracker().containsShuffle(shuffle))
                    return; // Spark has written it again, and uses it: this removal would take the new files
                Set<String> used = inUse(all);
                remove(shuffle, all, used, engine.place() != null);
                // Many shuffles wait: they share one set while it stays the same.
                passedOver = used.equals(passedOver) ? passedOver : used;
            } catch (Exception e) { // Scala throws checked ones that it does not declare
                warn(shuffle, e);
                removeLater(shuffle, all, true);
                return;
            }
            if (!passedOver.isEmpty())
                removeLater(shuffle, passedOver, false);
        }

        private void removeLater(int shuffle, Set<String> addresses, boolean mayHaveFiles) {
            Runnable again = () -> removeAgain(shuffle, addresses, mayHaveFiles);
            remover.schedule(again, untilDeadAreKnown, TimeUnit.SECONDS);
        }

        private void removeAgain(int shuffle, Set<String> addresses, boolean mayHaveFiles) {
            try {
                if (!tracker().containsShuffle(shuffle)) // otherwise Spark has written it again, and uses it
                    remove(shuffle, addresses, inUse(addresses), mayHaveFiles && engine.place() != null);
            } catch (Exception e) { // as above
                warn(shuffle, e);
            }
        }

        /** Tells the services that are not used. The engine that does so removes its own files, too. */
        private void remove(int shuffle, Set<String> addresses, Set<String> used, boolean hasFilesHere)
                throws IOException {
            Set<String> left = new HashSet<>(addresses);
            left.removeAll(used);
            if (!left.isEmpty() || hasFilesHere) // otherwise this host needs no engine
                engine.remove(shuffle, left);
        }

        private void warn(int shuffle, Exception e) {
            if (!remover.isShutdown())
                LOG.warn("Some files of shuffle {} may stay until the application ends: {}", shuffle,
                        e.toString());
        }

        /**
         * The executors have been told to end. What the last of their tasks still writes goes with this
         * host's service, which also removes everything if this fails. Storage may hang: then nobody waits.
         */
        private void removeAll() {
            FutureTask<Void> removal = new FutureTask<>(() -> {
                engine.remove(Engine.EVERYTHING, Set.of());
                return null;
            });
            Thread thread = new Thread(removal, "sortshuffle-remove-all");
            thread.setDaemon(true);
            thread.start();
            try {
                removal.get(LAST_SECONDS, TimeUnit.SECONDS);
            } catch (TimeoutException e) {
                warnOfLeft("it takes longer than " + LAST_SECONDS + " s to remove them, and goes on");
            } catch (ExecutionException e) {
                warnOfLeft(e.getCause().toString());
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
                warnOfLeft("the removal was interrupted");
            }
        }

        private void warnOfLeft(String why) {
            LOG.warn(
                    "Map outputs may be left: {}. This host's service tries once more when this process ends. "
                            + "Then `{}` removes them",
                    why, Storage.cleanCommand(conf, token));
        }

        /** Those of the services that an executor uses which Spark takes for alive. */
        private Set<String> inUse(Set<String> addresses) {
            Set<String> used = new HashSet<>();
            if (addresses.isEmpty())
                return used;
            var living = SparkEnv.get().blockManager().master().getMemoryStatus().keysIterator();
            while (living.hasNext()) {
                String address = services.get(living.next().executorId());
                if (address != null && addresses.contains(address))
                    used.add(address);
            }
            return used;
        }

        @Override
        public void shutdown() {
            remover.shutdownNow();
            if (context != null)
                ApplicationReport.write(context); // while its map outputs are there
            try {
                if (isStored && engine.place() != null) // before it was started nothing could be written
                    removeAll();
            } finally {
                if (engine != null)
                    engine.leave();
                if (current == this)
                    current = null;
            }
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
            // a driver of another release may not name it
            long driver = Long.parseLong(fromDriver.getOrDefault(DRIVER, Long.toString(Engine.UNKNOWN)));
            engine = new Engine(token, fromDriver.get(SECRET), driver, this);
            engine.enter();
        }

        @Override
        public void service(String address) {
            if (Engine.isContainer(plugin.conf()) || Storage.isUsed(plugin.conf()))
                return; // nobody else has to remove its files: they end with this executor, or it has none
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
