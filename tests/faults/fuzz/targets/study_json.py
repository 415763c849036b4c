"""study.json: a study that says of itself what was read and can be planned, or `ConfigError` with every problem."""

import json

from stream_server.config import load
from stream_server.errors import ConfigError
from stream_server.server.run.plan import make_plan
from tests.faults.fuzz import scratch
from tests.faults.fuzz.target import Target

FOLDER = scratch.folder()
FILE, AGAIN = FOLDER / "study.json", FOLDER / "again.json"
SMALLEST = {
    "study": {"simulations": 4, "time_steps": 10, "fields": {"u": [4]}},
    "parameters": {"bounds": {"x": [0, 1], "y": [1, 100, "log"]}},
    "simulation": {"command": ["python", "sim.py", "{x}", "{y:.3f}"]},
    "server": {"class": "server.py:Server"},
    "buffer": {"capacity": 20},
    "training": {"batch_size": 2},
}
LARGER = {
    "study": {
        "name": "larger",
        "output_dir": "runs/larger",
        "simulations": 12,
        "time_steps": {"first": 10, "last": 100, "every": 10},
        "seed": 7,
        "fields": {"u": {"shape": [4, 2], "dtype": "float32"}, "v": {"shape": [], "optional": True}},
    },
    "parameters": {"file": "design.csv"},
    "simulation": {
        "command": ["sh", "-c", "run {left:.3e} ${HOME} {simulation:06d}"],
        "ranks": 2,
        "templates": ["input.txt"],
        "timeout_s": 60.5,
        "per_job": 2,
        "on_failure": "give_up",
        "job": {"environment": {"A": "b"}, "mpirun": ["mpirun", "-n", "{ranks}"]},
    },
    "server": {"class": "server.py:Server", "ranks": 2},
    "launcher": {"max_running": 4, "restarts": 2},
    "client": {"window": "64MiB", "if_server_away": "continue"},
    "buffer": {"policy": "reservoir", "capacity": "1.5kB", "watermark": 8},
    "training": {"batch_size": 4, "draws_per_sample": 2.5, "early_stop": {"patience": 3}, "log_every_batches": 0.1},
    "validation": {"simulations": 2, "every_batches": 0.25, "at": [0.5, 10]},
    "checkpoint": {"every_s": 10, "keep": 3, "keep_best": 2},
    "load": {"checkpoint": "runs/other", "what": "model"},
    "normalization": {"fields": ["u"], "per": "value", "freeze_after": 100},
    "network": {"ports": [5000, 6000], "security": "none"},
    "user": {"lr": 1e-3},
}


def run(data: bytes) -> None:
    """Load it, and load again what the study says of itself."""
    FILE.write_bytes(data)
    try:
        config = load(FILE)
    except ConfigError as error:
        str(error).encode()
        return
    make_plan(config)
    AGAIN.write_text(json.dumps(config.resolved()))
    assert load(AGAIN) == config


(FOLDER / "server.py").write_text("def __getattr__(name): ...\n")
(FOLDER / "design.csv").write_text("left,right\n" + "1,2\n" * 14)
(FOLDER / "input.txt").write_text("left = {left:.3f}\n")
SEEDS = tuple(json.dumps(study).encode() for study in (SMALLEST, LARGER))
COMMENT = b'// a comment\n{"study": {"simulations": 1, }, // another\n "user": null}'
TARGET = Target(run=run, seeds=(*SEEDS, COMMENT), is_json=True, max_bytes=4096)
