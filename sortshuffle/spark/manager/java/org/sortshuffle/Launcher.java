package org.sortshuffle;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext$;
import org.apache.spark.SparkEnv;
import scala.Tuple2;

/**
 * Runs Python programs of this package: the one that finds the engine of this host, or starts it
 * (docs/manager.md, "Starting the engine"), and the one that writes the report on an application.
 *
 * <p>Its output goes to files, not to pipes: the engine's process may keep what it inherits open for as long
 * as it lives, and nobody would read a pipe to its end.
 */
final class Launcher {
    private static final String PYTHON = "spark.sortshuffle.manager.python";
    private static final String SETTINGS = "spark.sortshuffle.";
    private static final String MODULE = "sortshuffle.service.host.jvm_launch";

    /**
     * For a program. The launcher takes half a second. It waits up to 30 s for another launcher, and up to 30
     * s for the engine; a host that is short of everything may need more.
     */
    private static final long TIMEOUT_SECONDS = 120;

    private static final int FAILED = 3; // the launcher's exit status, if it has said why

    private static final ObjectMapper JSON = new ObjectMapper();

    private Launcher() {
    }

    /** Names the remedy, as what the launcher says does. */
    private static final class Failure extends IOException {
        private static final long serialVersionUID = 1L;

        Failure(String said) {
            super(said);
        }
    }

    /**
     * Where the engine is. `driver` is the driver's process, or UNKNOWN. Fails with an IOException that names
     * interpreter and setting.
     */
    static Place launch(String token, String secret, long driver) throws IOException {
        SparkConf conf = SparkEnv.get().conf();
        String sparkHost = SparkEnv.get().blockManager().blockManagerId().host();
        try {
            String answer =
                    answer(conf, MODULE, JSON.writeValueAsBytes(request(conf, token, secret, driver)));
            return place(answer, sparkHost, conf);
        } catch (InterruptedIOException e) {
            throw e;
        } catch (IOException e) {
            throw new IOException(
                    "The shuffle engine of this host cannot be started by " + e.getMessage(), e);
        }
    }

    /**
     * Runs a module of this package's Python. Gives it the request, and returns the last line of what it
     * prints. Fails with an IOException whose text begins with the command.
     */
    static String answer(SparkConf conf, String module, byte[] request, String... arguments)
            throws IOException {
        List<String> command = new ArrayList<>(List.of(python(conf), "-m", module));
        command.addAll(List.of(arguments));
        Path out = Files.createTempFile("sortshuffle-launch-", ".out");
        Path err = Files.createTempFile("sortshuffle-launch-", ".err");
        try {
            ProcessBuilder builder = new ProcessBuilder(command);
            builder.redirectOutput(out.toFile()).redirectError(err.toFile());
            int status = run(builder, request);
            if (status == 0)
                return lastLine(out);
            String said = lastLine(err);
            if (status == FAILED)
                throw new Failure(said);
            throw new IOException(
                    "it ended with status " + status + (said.isEmpty() ? "" : ". It said: " + said));
        } catch (InterruptedIOException e) {
            throw e;
        } catch (IOException e) {
            throw failure(conf, module, e);
        } finally {
            Files.deleteIfExists(out);
            Files.deleteIfExists(err);
        }
    }

    private static IOException failure(SparkConf conf, String module, IOException e) {
        String remedy = e instanceof Failure
                ? ""
                : ". Set " + PYTHON + " to a Python that has the sortshuffle package on every host";
        return new IOException("`" + python(conf) + " -m " + module + "`: " + e.getMessage() + remedy, e);
    }

    private static String python(SparkConf conf) {
        String fallback = System.getenv().getOrDefault("PYSPARK_PYTHON", "python3");
        return conf.get(PYTHON, conf.get("spark.pyspark.python", fallback));
    }

    private static Map<String, Object> request(SparkConf conf, String token, String secret, long driver) {
        Map<String, Object> request = new HashMap<>();
        request.put("application", conf.getAppId());
        request.put("token", token);
        request.put("secret", secret);
        request.put("driver", isDriver());
        request.put("driver_host", conf.get("spark.driver.host"));
        request.put("outlives", outlives(conf));
        request.put("pid", ProcessHandle.current().pid());
        if (driver != Engine.UNKNOWN)
            request.put("driver_pid", driver);
        request.put("local_directories",
                List.of(SparkEnv.get().blockManager().diskBlockManager().localDirsString()));
        request.put("settings", settings(conf));
        return request;
    }

    /** This package's settings. */
    static Map<String, String> settings(SparkConf conf) {
        Map<String, String> settings = new HashMap<>();
        for (Tuple2<String, String> setting : conf.getAll())
            if (setting._1().startsWith(SETTINGS))
                settings.put(setting._1(), setting._2());
        return settings;
    }

    /** Whether the service outlives this JVM. The driver's never does: its end is the application's. */
    private static boolean outlives(SparkConf conf) {
        return !isDriver() && !Engine.isContainer(conf);
    }

    private static boolean isDriver() {
        return SparkEnv.get().executorId().equals(SparkContext$.MODULE$.DRIVER_IDENTIFIER());
    }

    /** The launcher's exit status. */
    private static int run(ProcessBuilder builder, byte[] request) throws IOException {
        Process process = builder.start();
        try {
            try (OutputStream input = process.getOutputStream()) {
                input.write(request);
            } catch (IOException e) {
                // It has ended before it read this; its exit status says more.
            }
            if (!process.waitFor(TIMEOUT_SECONDS, TimeUnit.SECONDS))
                throw new Failure("it has not answered for " + TIMEOUT_SECONDS
                        + " s: see that this host reaches its Python, which spark.sortshuffle.manager.python"
                        + " names, and the directories of spark.sortshuffle.dir");
            return process.exitValue();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("Interrupted while a program of sortshuffle ran");
        } finally {
            process.destroyForcibly();
        }
    }

    private static Place place(String answer, String sparkHost, SparkConf conf) throws IOException {
        try {
            JsonNode found = JSON.readTree(answer);
            return Place.of(found.required("socket").asText(), found.required("host").asText(),
                    found.required("port").asInt(), sparkHost);
        } catch (JsonProcessingException | IllegalArgumentException e) {
            throw failure(conf, MODULE, new IOException("it has answered `" + answer + "`", e));
        }
    }

    private static String lastLine(Path file) throws IOException {
        String text = new String(Files.readAllBytes(file), StandardCharsets.UTF_8).strip();
        return text.substring(text.lastIndexOf('\n') + 1).strip();
    }
}
