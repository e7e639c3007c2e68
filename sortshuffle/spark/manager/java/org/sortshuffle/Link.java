package org.sortshuffle;

import java.io.Closeable;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.ClosedChannelException;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import org.apache.spark.SparkEnv;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/**
 * A connection to the engine, with the one buffer that everything passes through in either direction.
 *
 * <p>One task owns a link at a time, from {@link Engine#link()} to {@link #close()}. It goes back to the pool
 * of its engine only between two requests: {@link #begin} opens a request, {@link #settle} says that its
 * whole answer has been read. A link that is closed in between closes its socket, and the engine abandons
 * what it was doing. An interrupt of the task's thread closes the socket too.
 *
 * <p>First a request is put, then it is flushed, then its answer is read. But while a map output is written
 * the replies to its shared frames come between its requests ({@link #acknowledged}). No end of the socket is
 * ever an EOFException, because Spark's deserializers take that for the end of the records.
 */
final class Link implements Closeable {
    static final int WRITE = 1;
    static final int FRAME = 2;
    static final int FINISH = 3;
    static final int READ = 4;
    static final int REMOVE = 5;
    static final int SHARE = 6;
    static final int SHARED_FRAME = 7;

    private static final int LOST = 4;

    private static final long MAGIC = 0x0A1A0A0D4A535389L; // 89 53 53 4A 0D 0A 1A 0A, little endian
    private static final int VERSION = 4;

    /** Bytes. A Unix socket holds about 200 KiB; more in one call would only wait in the call. */
    private static final int BUFFER_BYTES = 256 << 10;

    /** An engine that is started again imports for a second; on a host short of everything for many. */
    private static final long GREETING_MILLISECONDS = 60_000;

    private static final Logger LOG = LoggerFactory.getLogger(Link.class);

    private final Engine engine;
    private final SocketChannel channel;
    private final ByteBuffer buffer = ByteBuffer.allocateDirect(BUFFER_BYTES).order(ByteOrder.LITTLE_ENDIAN);
    private final ByteBuffer acknowledgement = ByteBuffer.allocateDirect(8).order(ByteOrder.LITTLE_ENDIAN);
    private Slots slots;
    private int port; // of the engine's service
    private volatile boolean settled; // between two requests
    private long waitedNanos;

    /** An answer of the engine that reports an error. */
    static final class Refusal extends IOException {
        private static final long serialVersionUID = 1L;

        /** Numbers of the blocks that are lost, of those that were asked for. */
        final int[] lost;

        /** Numbers of the request's services that have not answered. All their blocks are lost. */
        final int[] silent;

        Refusal(String text, int[] lost, int[] silent) {
            super("The shuffle engine reports: " + text);
            this.lost = lost;
            this.silent = silent;
        }
    }

    private Link(Engine engine, SocketChannel channel) {
        this.engine = engine;
        this.channel = channel;
    }

    /** A new connection, greeted. */
    static Link connect(Engine engine, String socket) throws IOException {
        Link link = new Link(engine, SocketChannel.open(StandardProtocolFamily.UNIX));
        try {
            link.channel.connect(UnixDomainSocketAddress.of(socket));
            link.greet();
            return link;
        } catch (Throwable e) {
            link.discard();
            throw e;
        }
    }

    private void greet() throws IOException {
        buffer.clear();
        putLong(MAGIC);
        putInt(VERSION);
        byte[] key = key();
        putInt(key.length);
        put(ByteBuffer.wrap(key));
        flush();
        awaitAnswer(GREETING_MILLISECONDS);
        long magic = getLong();
        int version = getInt();
        port = getInt();
        if (magic != MAGIC || version != VERSION)
            throw new IOException("The shuffle engine speaks version " + version
                    + " of the protocol, this jar " + VERSION
                    + ": sortshuffle's Python package and its jar must be of one release");
        if (port == 0) // it refuses the key
            throw refusal(getInt(), getInt());
        settled = true;
    }

    /** Spark's key for files, where spark.io.encryption.enabled is on; otherwise empty. */
    static byte[] key() {
        SparkEnv env = SparkEnv.get();
        if (env == null) // the application ends: whoever still asks only removes files
            return new byte[0];
        Option<byte[]> key = env.securityManager().getIOEncryptionKey();
        return key.isDefined() ? key.get() : new byte[0];
    }

    /**
     * Waits for the first byte of an answer, but not for ever, as reading it does. A greeting may have none:
     * the supervisor keeps the socket while it starts the engine again.
     */
    void awaitAnswer(long milliseconds) throws IOException {
        channel.configureBlocking(false);
        try (Selector selector = Selector.open()) {
            channel.register(selector, SelectionKey.OP_READ);
            int ready = selector.select(milliseconds);
            if (Thread.currentThread().isInterrupted())
                throw new ClosedByInterruptException();
            if (ready == 0)
                throw new IOException("The shuffle engine has not answered for " + milliseconds / 1000
                        + " s. Its log, beside " + channel.getRemoteAddress() + ", says why");
        }
        channel.configureBlocking(true);
    }

    /** Whether the engine still holds the other end. Asked between two requests. */
    boolean isAlive() {
        try {
            channel.configureBlocking(false);
            int bytes = channel.read(buffer.clear());
            channel.configureBlocking(true);
            return bytes == 0;
        } catch (IOException e) {
            return false;
        }
    }

    // --- requests

    void begin(int operation, long length) throws IOException {
        if (length >>> 32 != 0)
            throw new IOException("A request of " + length + " bytes is more than the protocol can carry");
        if (settled) {
            settled = false;
            buffer.clear();
            waitedNanos = 0;
        }
        putInt(operation);
        putInt((int) length);
    }

    void putInt(int value) throws IOException {
        room(Integer.BYTES);
        buffer.putInt(value);
    }

    void putLong(long value) throws IOException {
        room(Long.BYTES);
        buffer.putLong(value);
    }

    /** All that `bytes` has left. */
    void put(ByteBuffer bytes) throws IOException {
        while (bytes.hasRemaining()) {
            room(1);
            int piece = Math.min(bytes.remaining(), buffer.remaining());
            buffer.put(bytes.slice(bytes.position(), piece));
            bytes.position(bytes.position() + piece);
        }
    }

    void putText(byte[] utf8) throws IOException {
        putInt(utf8.length);
        put(ByteBuffer.wrap(utf8));
    }

    private void room(int bytes) throws IOException {
        if (buffer.remaining() < bytes)
            send();
    }

    private void send() throws IOException {
        buffer.flip();
        while (buffer.hasRemaining())
            channel.write(buffer);
        buffer.clear();
    }

    /** Sends what was put. What follows is the answer. */
    void flush() throws IOException {
        send();
        buffer.limit(0);
    }

    // --- memory for frames

    /** What whoever owns this link collects frames in. Asked for between two requests. */
    Slots slots() throws IOException {
        if (slots == null)
            slots = share();
        return slots;
    }

    private Slots share() throws IOException {
        begin(SHARE, Long.BYTES);
        putLong(Slots.BYTES);
        flush();
        String path = new String(getBytes(reply()), StandardCharsets.UTF_8);
        Slots found =
                path.isEmpty() ? Slots.own() : mapped(path); // of an empty one the engine's log says why
        settle(); // only now: nobody else may ask for them on this link
        return found;
    }

    private static Slots mapped(String path) throws IOException {
        try {
            return Slots.map(path);
        } catch (ClosedByInterruptException e) {
            throw e;
        } catch (IOException e) {
            LOG.warn("Frames go through the socket, because the engine's memory cannot be mapped: {}",
                    e.toString());
            return Slots.own();
        }
    }

    // --- answers

    int getInt() throws IOException {
        require(Integer.BYTES);
        return buffer.getInt();
    }

    long getLong() throws IOException {
        require(Long.BYTES);
        return buffer.getLong();
    }

    /** At least one byte and at most `length`, as many as have come. */
    int get(byte[] to, int from, int length) throws IOException {
        require(1);
        int piece = Math.min(length, buffer.remaining());
        buffer.get(to, from, piece);
        return piece;
    }

    byte[] getBytes(int length) throws IOException {
        byte[] bytes = new byte[length];
        for (int at = 0; at < length;)
            at += get(bytes, at, length - at);
        return bytes;
    }

    private void require(int bytes) throws IOException {
        if (buffer.remaining() >= bytes)
            return;
        buffer.compact();
        long start = System.nanoTime();
        while (buffer.position() < bytes)
            receive(buffer);
        waitedNanos += System.nanoTime() - start;
        buffer.flip();
    }

    /** At least one byte. */
    private void receive(ByteBuffer to) throws IOException {
        IOException failure = null;
        try {
            if (channel.read(to) >= 0)
                return;
        } catch (ClosedChannelException e) {
            throw e; // by this side
        } catch (IOException e) {
            failure = e;
        }
        throw ended("an answer", failure);
    }

    /** Nanoseconds that went into waiting for bytes since this was last asked. */
    long takeWaitedNanos() {
        long waited = waitedNanos;
        waitedNanos = 0;
        return waited;
    }

    /** The whole answer has been read: the link may carry another request. */
    void settle() {
        settled = true;
    }

    /** Reads the head of a reply; the caller reads its body. Returns the body's length. */
    int reply() throws IOException {
        int status = getInt();
        int length = getInt();
        if (status != 0)
            throw refusal(status, length);
        return length;
    }

    /**
     * Reads the reply to a shared frame. It comes by itself, not through the buffer: the replies behind it
     * would be in the way of the next request.
     */
    void acknowledged() throws IOException {
        acknowledgement.clear();
        while (acknowledgement.hasRemaining())
            receive(acknowledgement);
        int status = acknowledgement.getInt(0);
        if (status != 0)
            throw refusal(status, acknowledgement.getInt(Integer.BYTES));
    }

    /** Reads the error that ends a stream, after the mark in place of a chunk's length. */
    Refusal refusal() throws IOException {
        Refusal refusal = refusal(getInt(), getInt());
        settle();
        return refusal;
    }

    /** Reads the body of an error. That of a loss begins with two lists. */
    private Refusal refusal(int status, int length) throws IOException {
        ByteBuffer body = ByteBuffer.wrap(getBytes(length)).order(ByteOrder.LITTLE_ENDIAN);
        int[] lost = status == LOST ? numbers(body) : new int[0];
        int[] silent = status == LOST ? numbers(body) : new int[0];
        return new Refusal(StandardCharsets.UTF_8.decode(body).toString(), lost, silent);
    }

    private static int[] numbers(ByteBuffer body) {
        int[] numbers = new int[body.getInt()];
        for (int i = 0; i < numbers.length; i++)
            numbers[i] = body.getInt();
        return numbers;
    }

    /**
     * What the engine said before it closed the connection in the middle of a request, or `failure` where it
     * said nothing. The socket keeps what was sent before it was closed. Where the engine has not closed it,
     * it does so now, because its own end is closed to it: this never waits for ever.
     */
    IOException lastWords(IOException failure) {
        if (!channel.isOpen())
            return failure;
        try {
            channel.shutdownOutput();
            buffer.clear().limit(0);
            while (true)
                reply(); // of frames before
        } catch (Refusal said) {
            said.addSuppressed(failure);
            return said;
        } catch (IOException nothing) {
            failure.addSuppressed(nothing);
        }
        return failure instanceof ClosedChannelException ? failure : ended("a request", failure);
    }

    private static IOException ended(String where, IOException failure) {
        return new IOException("The shuffle engine of this host closed the connection in the middle of "
                        + where + ". Its process may have ended; its log says why",
                failure);
    }

    @Override
    public void close() {
        if (!settled || !channel.isOpen() || !engine.keep(this))
            discard();
    }

    /** The port of the service that this engine is. */
    int port() {
        return port;
    }

    /** Whether it has memory for frames. */
    boolean hasSlots() {
        return slots != null;
    }

    /** Closes the socket, whatever the state. By its owner, who uses the slots no more. */
    void discard() {
        try {
            channel.close();
        } catch (IOException e) {
            // The descriptor is gone in any case.
        }
        if (slots != null)
            slots.unmap();
        slots = null;
    }
}
