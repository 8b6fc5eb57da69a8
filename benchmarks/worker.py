"""The worker of a benchmark, which reads and writes JSON lines; one process per framework.

A file of cases defines ``CASES = {name: setup}``; ``setup(**arguments)`` returns ``(run, facts)``,
and ``run(n)`` does the work ``n`` times and blocks until it is done. This imports only the standard
library, so any Python can be a worker.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable

__all__ = ["DEVICE", "serve"]

# torch's name of the device to measure
DEVICE = os.environ.get("BENCHMARK_DEVICE", "cpu")

Setup = Callable[..., tuple[Callable[[int], object], dict]]


def serve(cases: dict[str, Setup]) -> None:
    """Answers requests until told to exit. Other output goes to stderr."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    live: dict[str, Callable] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "exit":
            break
        try:
            answer = _answer(request, cases, live)
        except Exception as error:
            answer = {"error": repr(error)[:1000], "trace": traceback.format_exc()[-2000:]}
        out.write("@" + json.dumps(answer) + "\n")


def _answer(request: dict, cases: dict[str, Setup], live: dict[str, Callable]) -> dict:
    if request["do"] == "setup":
        start = time.perf_counter()
        live[request["id"]], facts = cases[request["case"]](**request["arguments"])
        return {**facts, "setup_s": round(time.perf_counter() - start, 3)}
    cpu, wall = time.process_time(), time.perf_counter()
    result = live[request["id"]](request["times"])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall, "cpu": cpu, "result": result}
