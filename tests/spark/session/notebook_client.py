"""A notebook without a browser, in a process of its own, because Jupyter's client leaves its event loop open:

    python notebook_client.py FILE < cells

The cells are a JSON list. Runs them one after the other in a new kernel, makes FILE when one has displayed
something, and prints a JSON list of results: ``shown``, the HTML of each display below the cell in their
order, and ``printed``, what the cell printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

PATIENCE = 120  # seconds


def run(client: Any, cell: str, path: Path) -> dict[str, Any]:
    number = client.execute(cell)
    shown: list[str] = []
    outputs: set[str] = set()
    printed = ""
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE)
        kind, content = message["msg_type"], message["content"]
        is_of_cell = message["parent_header"].get("msg_id") == number
        if kind == "display_data" and is_of_cell:
            outputs.add(content["transient"]["display_id"])
        if kind in ("display_data", "update_display_data") and content["transient"]["display_id"] in outputs:
            shown.append(content["data"]["text/html"])  # an update goes to the cell of its output
            path.touch()
        elif kind == "stream" and content["name"] == "stdout":
            printed += content["text"]
        elif kind == "error":
            printed += content["evalue"]
        if kind == "status" and content["execution_state"] == "idle" and is_of_cell:
            return {"shown": shown, "printed": printed}


def main() -> None:
    path = Path(sys.argv[1])
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{path}-socket")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE)
        print(json.dumps([run(client, cell, path) for cell in json.load(sys.stdin)]))
    finally:
        client.stop_channels()
        manager.shutdown_kernel()


if __name__ == "__main__":
    main()
