"""`JvmServer`: accepts connections of the JVMs of this host, and serves their requests.

    accepted --greeting--> between requests --request--> in a request --reply--> between requests
    any --the JVM closes it, or breaks the protocol--> closed

Each connection has a thread: the JVM's task waits for its answer anyway, and most of the work of a request
(compressing, reading and sending large pieces) runs without Python's lock. (Two threads that write reach 1.7
to 2.1 times the speed of one.)

Rules
* If a connection ends within a request, the server abandons what the request began.
* If a request fails, the JVM gets the reason and the connection goes on. If writing a map output fails, the
  JVM gets the reason and the connection is closed, because more frames may be on their way.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import closing

from sortshuffle import calls
from sortshuffle.errors import OutOfDiskError, ProtocolError, SortShuffleError, UsageError
from sortshuffle.format.checksum import BytesLike
from sortshuffle.options import KIB
from sortshuffle.service.jvm import shared_frames
from sortshuffle.service.jvm.block_reader import BlockReader
from sortshuffle.service.jvm.byte_stream import ByteStream, StreamEndedError
from sortshuffle.service.jvm.engine import Engine
from sortshuffle.service.jvm.greeting import GREETING, check_greeting, pack_greeting
from sortshuffle.service.jvm.lost_blocks import LostBlocksError
from sortshuffle.service.jvm.map_output_writer import MapOutputWriter, records_of
from sortshuffle.service.jvm.protocol import (
    FRAME,
    REQUEST,
    Operation,
    ReadRequest,
    RemoveRequest,
    SharedFrame,
    Status,
    WriteRequest,
    pack_chunk,
    pack_lost,
    pack_reply,
    pack_request,
    pack_stream_error,
    pack_text,
    unpack_frame,
    unpack_request,
    unpack_share,
)
from sortshuffle.service.jvm.shared_frames import SharedFrames

SEND_BYTES = 512 * KIB  # of records in one chunk: large enough that the cost of a call does not show
# Pieces that are smaller on average are joined: a call takes 0.3 us for each piece, copying takes 0.1 ns for
# each byte. So at most 512 pieces are sent together, while one call takes 1024
PIECE_BYTES = 2 * KIB
ACCEPT_PAUSE = 0.1  # seconds, when the system has no descriptor or memory for a new connection
DRAIN_BYTES = 256 * KIB

_ACKNOWLEDGEMENT = pack_reply(Status.DONE)
_FINISH = pack_request(Operation.FINISH, 0)

_log = logging.getLogger(__name__)


class JvmServer:
    """Serves connections on ``listening``, a Unix socket. Owns it."""

    def __init__(self, listening: socket.socket, engine: Engine) -> None:
        self._listening = listening
        self._engine = engine
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="sortshuffle-jvm", daemon=True)

    def start(self) -> None:
        """Start the threads that serve until `stop`, or until the process ends."""
        self._thread.start()

    def stop(self) -> None:
        """Accept no more connections. Open ones end with their JVMs."""
        self._stopped = True
        try:
            calls.shutdown(self._listening, socket.SHUT_RDWR)  # wakes the thread
        except OSError:
            pass
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        while True:
            try:
                accepted, _ = calls.accept(self._listening)
            except (OSError, MemoryError) as error:
                if self._stopped or self._listening.fileno() < 0:
                    return
                _log.warning("no connection of a JVM can be taken for a moment: %s", error)
                time.sleep(ACCEPT_PAUSE)
                continue
            try:
                connection = JvmConnection(accepted, self._engine)
                threading.Thread(target=connection.run, name="sortshuffle-jvm-task", daemon=True).start()
            except (RuntimeError, MemoryError) as error:  # no thread can be started
                _log.warning("no connection of a JVM can be served for a moment: %s", error)
                accepted.close()


class JvmConnection:
    """Serves one connection. Owns it."""

    def __init__(self, connection: socket.socket, engine: Engine) -> None:
        self._socket = connection
        self._stream = ByteStream(connection)
        self._engine = engine
        self._shared: SharedFrames | None = None

    def run(self) -> None:
        """Serve until the JVM closes the connection."""
        with self._socket:
            try:
                self._serve_all()
            except StreamEndedError:
                pass
            except Exception:
                _log.exception("a connection of a JVM is closed")
            finally:
                if self._shared is not None:
                    self._shared.close()

    def _serve_all(self) -> None:
        try:
            self._greet()
        except SortShuffleError as error:
            _log.warning("a connection is closed: %s", error)
            return
        try:
            while True:
                self._serve(*self._request())
        except ProtocolError as error:
            self._refuse(error)

    def _greet(self) -> None:
        data = self._stream.received(GREETING.size)
        try:
            key_bytes = check_greeting(data)
        except ProtocolError:
            self._stream.send([pack_greeting(self._engine.port)])  # tells the JVM this release's version
            raise
        if key_bytes:
            self._use_key(bytes(self._stream.received(key_bytes)))
        self._stream.send([pack_greeting(self._engine.port)])

    def _use_key(self, key: bytes) -> None:
        """Give the key to the engine. If it refuses, send port 0 and the reason: the JVM's greeting fails."""
        try:
            self._engine.use_key(key)
        except SortShuffleError as error:
            self._stream.send([pack_greeting(), pack_reply(_status_of(error), pack_text(str(error)))])
            raise

    def _request(self) -> tuple[Operation, int]:
        return unpack_request(self._stream.received(REQUEST.size))

    def _serve(self, operation: Operation, size: int) -> None:
        match operation:
            case Operation.WRITE:
                self._write(WriteRequest.unpack(self._stream.received(size)))
            case Operation.READ:
                self._read(self._stream.received(size))
            case Operation.REMOVE:
                self._remove(RemoveRequest.unpack(self._stream.received(size)))
            case Operation.SHARE:
                self._share(unpack_share(self._stream.received(size)))
            case _:
                raise ProtocolError(f"{operation.name} outside of a map output")

    def _share(self, size: int) -> None:
        if self._shared is not None:
            raise ProtocolError("memory that is shared a second time")
        self._shared = shared_frames.make(size)
        path = self._shared.path if self._shared is not None else ""
        self._stream.send([pack_reply(Status.DONE, path.encode())])

    # Writing

    def _write(self, request: WriteRequest) -> None:
        try:
            with self._engine.writing(request) as writing:
                reply = self._take_frames(writing)
        except StreamEndedError:
            raise
        except Exception as error:
            self._refuse(error)
        else:
            self._stream.send([reply])

    def _take_frames(self, writing: MapOutputWriter) -> bytes:
        while True:
            operation, size = self._request()
            if operation is Operation.FINISH:
                return writing.finish()
            if operation is Operation.SHARED_FRAME:
                self._add_shared(writing, SharedFrame.unpack(self._stream.received(size)))
                continue
            if operation is not Operation.FRAME:
                raise ProtocolError(f"{operation.name} within a map output")
            size -= FRAME.size
            records = unpack_frame(self._stream.received(FRAME.size), size)
            memory = writing.frame_memory(size)
            try:
                self._stream.fill(memory.view)
                writing.add(records_of(memory.view, records))
            finally:
                memory.release()

    def _add_shared(self, writing: MapOutputWriter, frame: SharedFrame) -> None:
        if self._shared is None:
            raise ProtocolError("a frame in shared memory, where none is shared")
        writing.add(self._shared.records(frame))
        if self._stream.has_received(_FINISH):  # no more frames follow: one call sends both replies
            self._stream.send_later(_ACKNOWLEDGEMENT)
        else:
            self._stream.send([_ACKNOWLEDGEMENT])

    def _refuse(self, error: Exception) -> None:
        """Send why a request failed, and close the connection in a way that lets the JVM read the reason."""
        self._engine.note_failure(error)
        _log.warning("a request is refused: %s", error, exc_info=_shows_traceback(error))
        self._stream.send([pack_reply(_status_of(error), pack_text(str(error)))])
        # The JVM's next write fails now. Read what it sent earlier: closing with unread data discards the
        # reply
        try:
            calls.shutdown(self._socket, socket.SHUT_RD)
            while calls.recv(self._socket, DRAIN_BYTES):
                continue
        except OSError:
            pass  # the JVM has closed it
        raise StreamEndedError

    # Reading

    def _read(self, body: bytearray) -> None:
        try:
            request = ReadRequest.unpack(body)
        except ProtocolError as error:
            self._stream.send([pack_stream_error(Status.BAD_REQUEST, str(error))])
            return
        with closing(self._engine.read(request)) as reader:
            answer = _Answer(self._stream, reader)
            try:
                if request.only_looks:
                    reader.look()
                else:
                    reader.locate()
                    for piece in reader.pieces():
                        answer.add(piece)
            except LostBlocksError as error:
                answer.end(pack_lost(str(error), error.blocks, error.silent))
            except StreamEndedError:
                raise
            except Exception as error:
                _log.warning("blocks cannot be read: %s", error, exc_info=_shows_traceback(error))
                # a ProtocolError counts as FAILED: a service on another host broke its protocol, not this JVM
                status = Status.BAD_REQUEST if isinstance(error, UsageError) else Status.FAILED
                answer.end(pack_stream_error(status, str(error)))
            else:
                answer.end(pack_chunk(0, reader.totals()))

    def _remove(self, request: RemoveRequest) -> None:
        try:
            self._engine.remove(request)
        except Exception as error:
            _log.warning("shuffle %d is not wholly removed: %s", request.shuffle, error)
            self._stream.send([pack_reply(_status_of(error), pack_text(str(error)))])
        else:
            self._stream.send([pack_reply(Status.DONE)])


class _Answer:
    """The answer to READ. Gathers pieces until they are worth a call; sends the end with the last ones."""

    def __init__(self, stream: ByteStream, reader: BlockReader) -> None:
        self._stream = stream
        self._reader = reader
        self._pieces: list[BytesLike] = []
        self._size = 0

    def add(self, piece: BytesLike) -> None:
        size = len(piece)
        if not size:
            return
        if size >= SEND_BYTES and self._pieces:  # do not join a large piece with small ones
            self._stream.send(self._chunk())
        self._pieces.append(piece)
        self._size += size
        if self._size >= SEND_BYTES:
            self._stream.send(self._chunk())

    def end(self, end: bytes) -> None:
        self._stream.send([*self._chunk(), end] if self._pieces else [end])

    def _chunk(self) -> list[BytesLike]:
        """Return a chunk of the pieces added since the last one."""
        pieces, size = self._pieces, self._size
        self._pieces, self._size = [], 0
        if size < PIECE_BYTES * len(pieces):
            pieces = [b"".join(pieces)]
        return [pack_chunk(size, self._reader.totals()), *pieces]


def _status_of(error: Exception) -> Status:
    if isinstance(error, OutOfDiskError):
        return Status.NO_SPACE
    return Status.BAD_REQUEST if isinstance(error, UsageError | ProtocolError) else Status.FAILED


def _shows_traceback(error: Exception) -> bool:
    return not isinstance(error, OSError | UsageError | ProtocolError)
