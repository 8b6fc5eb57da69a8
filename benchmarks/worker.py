"""The worker of a benchmark, which reads and writes JSON lines; one process per framework.

A file of cases defines ``CASES = {name: setup}``; ``setup(**arguments)`` returns ``(run, facts)``,
and ``run(n)`` does the work ``n`` times and blocks until it is done. A case stays set up until it
is dropped. This imports only the standard library, so any Python can be a worker.
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
Profile = Callable[[Callable[[], object]], dict]


def serve(cases: dict[str, Setup], profile: Profile | None = None) -> None:
    """Answers requests until told to exit. Other output goes to stderr.

    Args:
        cases: Functions that set up a case, by name.
        profile: Function that runs work and returns its kernels, for requests of profiles.
    """
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    live: dict[str, Callable] = {}
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "exit":
            break
        try:
            answer = _answer(request, cases, live, profile)
        except Exception as error:
            answer = {"error": repr(error)[:1000], "trace": traceback.format_exc()[-2000:]}
        out.write("@" + json.dumps(answer) + "\n")


def _answer(
    request: dict, cases: dict[str, Setup], live: dict[str, Callable], profile: Profile | None
) -> dict:
    what, name = request["do"], request["id"]
    if what == "setup":
        start = time.perf_counter()
        live[name], facts = cases[request["case"]](**request["arguments"])
        return {**facts, "setup_s": round(time.perf_counter() - start, 3)}
    if what == "drop":
        del live[name]
        return {}
    if what == "profile":
        if profile is None:
            raise NotImplementedError("these cases have no profile")
        return profile(lambda: live[name](request["times"]))
    cpu, wall = time.process_time(), time.perf_counter()
    result = live[name](request["times"])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": wall, "cpu": cpu, "result": result}
