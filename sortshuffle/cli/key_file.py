"""``--key-file``: the option for the key of encrypted map outputs, in commands that look into them."""

from __future__ import annotations

import click

from sortshuffle import calls
from sortshuffle.errors import UsageError
from sortshuffle.format.encryption import EncryptionKey, why_no_encryption

MOST_BYTES = 4096  # to read of the file: a key has at most 64 hex digits

key_file_option = click.option(
    "--key-file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="The key of encrypted map outputs, in hex digits. Without it their payloads are not looked at.",
)


def read_key(path: str | None) -> EncryptionKey | None:
    """Read the key in a file; None without a file. Raises `UsageError` for a file without a key, and if this
    Python cannot decrypt."""
    if path is None:
        return None
    if missing := why_no_encryption():
        raise UsageError(f"--key-file: {missing}")
    try:
        with calls.open_file(path, "rb") as file:  # may be a pipe, as in --key-file <(...)
            text = file.read(MOST_BYTES)
        return EncryptionKey(bytes.fromhex(text.decode("ascii")))
    except OSError as error:
        raise UsageError(f"the key file cannot be read: {error}") from error
    except ValueError:
        what = f"{path} holds no key: 32, 48 or 64 hex digits are wanted"
        raise UsageError(f"{what}, such as those of sortshuffle.files_key(spark).hex()") from None
