"""Start a program on a host of a lab: ``python -m shoal.lab.enter FOLDER HOST -- PROGRAM ARGUMENT…``.

The process moves to the host's namespaces and becomes the program, with its own number and its own pipes.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from shoal.lab import namespaces


def main(arguments: list[str]) -> None:
    """Never returns; ends with status 3 if the lab is gone, 127 if there is no such program."""
    folder, host, _, *program = arguments
    lab = json.loads((Path(folder) / "lab.json").read_text(encoding="utf-8"))
    try:
        namespaces.enter(lab["nets"][host], user=lab["user"])
    except OSError as error:
        sys.exit(_fail(f"the lab {lab['name']!r} is gone: {error.strerror}", 3))
    namespaces.call_host(host, str(Path(folder) / "hosts"))
    os.environ |= {
        "SHOAL_LAB": lab["name"],
        "SHOAL_LAB_HOST": host,
        "GLOO_SOCKET_IFNAME": namespaces.DEVICE,  # for programs that are not ours
    }
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(_fail(f"{program[0]}: {error.strerror}", 127))


def _fail(text: str, status: int) -> int:
    print(f"shoal: {text}", file=sys.stderr)  # noqa: T201
    return status


if __name__ == "__main__":
    main(sys.argv[1:])
