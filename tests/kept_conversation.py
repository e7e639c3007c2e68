"""Records a conversation between a client and this release's shuffle service, and a greeting with a secret.

    python tests/kept_conversation.py [DIRECTORY]        by default tests/written_by/VERSION

Each line is a message: `>` and the bytes of the client in hex digits, or `<` and those of the server.
`test_kept_conversation.py` says what they are. Where the service cuts the data may differ each time.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from kept_files import APPLICATION, ATTEMPT, DRIVER, EXCHANGE, KEPT, MAP_INDEX, Variant, write_file
from serving import PATIENCE, SMALL, make_home, serving

from sortshuffle.errors import Place
from sortshuffle.format.header import Codec, PayloadKind
from sortshuffle.service.wire.protocol import (
    HEADER_BYTES,
    HELLO_BYTES,
    DamageReport,
    ErrorResponse,
    Fault,
    FoundOutput,
    Header,
    Hello,
    MapOutputAddress,
    PartitionRequest,
    Sender,
    Stream,
    Verdict,
    pack_add_credit,
    pack_cancel,
    pack_close,
    pack_damage_verdict,
    pack_find_request,
    pack_find_response,
    pack_remove_request,
    pack_remove_response,
    proof,
)
from sortshuffle.storage.files.ranges import ALL_REGIONS, SubpartitionRange
from sortshuffle.version import __version__

SERVED = Variant(PayloadKind.PICKLE, Codec.NONE, False)
SEGMENT = 1024  # bytes of a credit: what is asked for takes several
OUTPUT = MapOutputAddress(APPLICATION, EXCHANGE, MAP_INDEX, ATTEMPT, SERVED.file_id)
SECRET = b"the secret of the kept greeting"
CLIENT_NONCE, SERVER_NONCE = bytes(range(32)), bytes(range(32, 64))
"""Without a secret nobody looks at them."""
TOKEN = bytes(range(16, 32))
ZERO, ONE = SubpartitionRange(0, 0), SubpartitionRange(1, 1)


@dataclass(slots=True)
class Recording:
    """The messages between a client and the service at the other end of ``service``."""

    service: socket.socket
    lines: list[str] = field(default_factory=list)

    def say(self, message: bytes) -> None:
        self.lines.append(f"> {message.hex()}")
        self.service.sendall(message)

    def hear_hello(self) -> None:
        hello = Hello.unpack(self._exactly(HELLO_BYTES), Sender.SERVER)
        self.lines.append(f"< {replace(hello, nonce=SERVER_NONCE).pack().hex()}")

    def hear(self) -> Header:
        head = self._exactly(HEADER_BYTES)
        header = Header.unpack(head, Sender.SERVER)
        self.lines.append(f"< {(head + self._exactly(header.length)).hex()}")
        return header

    def hear_stream(self, channel: int) -> None:
        """Until its end. A credit is given for each response."""
        while self.hear().length:
            self.say(pack_add_credit(channel, 1))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.service.recv(size - len(data))
            assert part, "the service has closed the connection"
            data += part
        return data


def write_conversation(directory: Path) -> None:
    """The service's root has a short path, because answers name it."""
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        home = make_home(Path("disk"))
        write_file(Path("written"), SERVED)
        shutil.copytree("written", home, dirs_exist_ok=True)
        with (
            serving(Path("disk"), replace(SMALL, segment_bytes=SEGMENT)) as service,
            socket.create_connection(service.address.rsplit(":", 1), PATIENCE) as connected,
        ):
            lines = conversation(Recording(connected))
    (directory / "conversation.txt").write_text("\n".join(lines) + "\n")


def conversation(recording: Recording) -> list[str]:
    """Every kind of message, one question after the other: so the answers come in one order."""
    missing = replace(OUTPUT, file_id=bytes(16))
    recording.say(Hello(CLIENT_NONCE).pack())
    recording.hear_hello()
    recording.say(PartitionRequest(1, 1, OUTPUT, ZERO, ALL_REGIONS, 0, Stream.INDEX).pack())
    recording.hear_stream(1)
    recording.say(PartitionRequest(2, 1, OUTPUT, ZERO, ALL_REGIONS, 0, Stream.EXTENTS).pack())
    recording.hear_stream(2)
    recording.say(PartitionRequest(3, 9, OUTPUT, ONE, ALL_REGIONS, 64, Stream.EXTENTS).pack())
    recording.hear_stream(3)
    recording.say(PartitionRequest(4, 0, OUTPUT, ZERO, ALL_REGIONS, 0, Stream.EXTENTS).pack())
    recording.say(pack_cancel(4))
    recording.say(PartitionRequest(5, 1, missing, ZERO, ALL_REGIONS, 0, Stream.EXTENTS).pack())
    recording.hear()
    for question in (
        DamageReport(6, OUTPUT, 0, 0).pack(),
        pack_find_request(7, replace(OUTPUT, map_index=18, attempt=0, file_id=DRIVER)),
        pack_remove_request(8, APPLICATION, EXCHANGE, TOKEN),
    ):
        recording.say(question)
        recording.hear()
    recording.say(pack_close())
    return recording.lines


def write_greeting(directory: Path) -> None:
    """With a secret. Both proofs follow from it and from both hellos."""
    hellos = (
        Hello(CLIENT_NONCE).pack(),
        Hello(SERVER_NONCE, segment_bytes=SEGMENT, proof_required=True).pack(),
    )
    messages = {
        ">": (hellos[0], proof(SECRET, "client", *hellos)),
        "<": (hellos[1], proof(SECRET, "server", *hellos)),
    }
    lines = [f"{who} {messages[who][step].hex()}" for step in (0, 1) for who in (">", "<")]
    (directory / "greeting.txt").write_text("\n".join(lines) + "\n")


PLACE = Place("/disk/file.data", 1, 2, 3, "map 4")


def answers() -> dict[str, bytes]:
    """Each answer that a conversation does not have whenever one likes: what is found or not, each verdict,
    whether a removal is known, and each kind of error."""
    found = FoundOutput(OUTPUT.file_id, 204, "/disk/home/exchange-3-map-17-attempt-204", "host-a")
    return {
        "found": pack_find_response(1, found),
        "not found": pack_find_response(1, None),
        **{f"verdict {each.name}": pack_damage_verdict(2, each) for each in Verdict},
        "removal known": pack_remove_response(3, True),
        "removal unknown": pack_remove_response(3, False),
        **{
            f"error {each.name}": ErrorResponse(4, each, "what happened", PLACE, "5", "6").pack()
            for each in Fault
        },
        "error without a place": ErrorResponse(4, Fault.INTERNAL, "what happened").pack(),
    }


def write_answers(directory: Path) -> None:
    lines = [f"{message.hex()} {name}" for name, message in answers().items()]
    (directory / "answers.txt").write_text("\n".join(lines) + "\n")


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else KEPT / __version__).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    write_greeting(directory)
    write_answers(directory)
    write_conversation(directory)


if __name__ == "__main__":
    main()
