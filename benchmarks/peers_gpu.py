"""The peers' cases on a GPU, in one process.

Runs in the peers' Python, so it imports only the workers from this repository.
"""

from benchmarks import kernel_profile, peers, peers_language
from benchmarks.worker import Setup, serve

CASES: dict[str, Setup] = {
    "language-train": peers_language.train,
    "language-decode": peers_language.generate,
    "language-ctranslate2": peers_language.ctranslate2,
    "train": peers.train,
    "decode": peers.generate,
    "ctranslate2": peers.ctranslate2,
}

if __name__ == "__main__":
    serve(CASES, kernel_profile.of_torch)
