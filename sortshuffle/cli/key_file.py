"""``--key-file``: the key of encrypted map outputs, for the commands that look into them."""

from __future__ import annotations

import click

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.format.encryption import EncryptionKey, why_no_encryption

MOST_BYTES = 4096  # of the file, which has 64 hex digits at most

key_file_option = click.option(
    "--key-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="The key of encrypted map outputs, in hex digits. Without it their payloads are not looked at.",
)


def read_key(path: str | None) -> EncryptionKey | None:
    """The key in a file; None for no file. Raises `UsageError` for a file that holds none, and where this
    Python cannot decrypt."""
    if path is None:
        return None
    if missing := why_no_encryption():
        raise UsageError(f"--key-file: {missing}")
    try:
        with calls.open_file(path, "rb") as file:  # which may be a pipe, of --key-file <(...)
            text = file.read(MOST_BYTES)
        return EncryptionKey(bytes.fromhex(text.decode("ascii")))
    except OSError as error:
        raise UsageError(f"the key file cannot be read: {error}") from error
    except ValueError:
        what = f"{path} holds no key: 32, 48 or 64 hex digits are wanted"
        raise UsageError(f"{what}, such as those of sortshuffle.files_key(spark).hex()") from None
