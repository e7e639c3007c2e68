package org.sortshuffle;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.InterruptedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.status.AppStatusStore;
import org.apache.spark.status.api.v1.JacksonMessageWriter;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Spark's part of the report on an application (docs/operations.md, "A report"), and the report itself where
 * no frame or RDD of Python's has it written.
 *
 * <p>The document has Spark's own figures, as its REST API writes them.
 */
public final class ApplicationReport {
    private static final Logger LOG = LoggerFactory.getLogger(ApplicationReport.class);
    private static final String DIRECTORY = "spark.sortshuffle.report";
    private static final String MODULE = "sortshuffle.cli.application_report";

    /** Until the figures of the last tasks have come. They take milliseconds, if nothing hangs. */
    private static final long PATIENCE_MILLISECONDS = 10_000;

    private ApplicationReport() {
    }

    /** The application whose report Python writes. */
    private static volatile String pythons = "";

    /** What the running application did, as JSON. For Python, which then writes the report. */
    public static String document(SparkContext context) throws JsonProcessingException {
        pythons = context.applicationId();
        return figures(context);
    }

    /**
     * Writes the report, if one is wanted and Python does not. Only logs what goes wrong: the job is done.
     */
    static void write(SparkContext context) {
        SparkConf conf = context.conf();
        String directory = conf.get(DIRECTORY, "").strip();
        if (directory.isEmpty() || pythons.equals(conf.getAppId()))
            return;
        try {
            byte[] request = figures(context).getBytes(StandardCharsets.UTF_8);
            LOG.info("{}", Launcher.answer(conf, MODULE, request));
        } catch (Throwable e) { // whatever it is, the application goes on to end
            if (e instanceof InterruptedException || e instanceof InterruptedIOException)
                Thread.currentThread().interrupt();
            LOG.warn("There is no report on this application in {}: {}", directory, e.toString());
        }
    }

    private static String figures(SparkContext context) throws JsonProcessingException {
        awaitFigures(context);
        AppStatusStore store = context.statusStore();
        ObjectMapper json = new JacksonMessageWriter().mapper();
        return json.writeValueAsString(Map.of("application", store.applicationInfo(), "stages",
                store.stageList(null, false, false, new double[0], List.of()), "local_directories",
                List.of(SparkEnv.get().blockManager().diskBlockManager().localDirsString()), "settings",
                Launcher.settings(context.conf())));
    }

    private static void awaitFigures(SparkContext context) {
        try {
            context.listenerBus().waitUntilEmpty(PATIENCE_MILLISECONDS);
        } catch (TimeoutException e) {
            LOG.warn("The report may lack the figures of the last tasks: {}", e.toString());
        }
    }
}
