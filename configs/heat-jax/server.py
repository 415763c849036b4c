"""The heat study's network in JAX: no torch, no optimizer library, gradients by `all_reduce`."""

import os

import jax
import jax.numpy as jnp
import numpy as np

from stream_server import StreamServer

HIDDEN = 256
CENTRE, SCALE = 300.0, 115.0  # of temperatures drawn from 100 to 500 K
FIRST_DECAY, SECOND_DECAY, TINY = 0.9, 0.999, 1e-8


def predict(layers, inputs):
    for layer in layers[:-1]:
        inputs = jax.nn.relu(inputs @ layer["weights"] + layer["bias"])
    return inputs @ layers[-1]["weights"] + layers[-1]["bias"]


@jax.jit
def mean_squared_error(layers, inputs, temperatures):
    return jnp.mean((predict(layers, inputs) - temperatures) ** 2)


loss_and_gradients = jax.jit(jax.value_and_grad(mean_squared_error))


@jax.jit
def adam(layers, gradients, first, second, count, lr):
    """Kingma and Ba (2015): new weights, and the running moments of the gradients."""
    first = jax.tree.map(lambda m, g: FIRST_DECAY * m + (1 - FIRST_DECAY) * g, first, gradients)
    second = jax.tree.map(lambda v, g: SECOND_DECAY * v + (1 - SECOND_DECAY) * g**2, second, gradients)
    step = lr * jnp.sqrt(1 - SECOND_DECAY**count) / (1 - FIRST_DECAY**count)
    layers = jax.tree.map(lambda w, m, v: w - step * m / (jnp.sqrt(v) + TINY), layers, first, second)
    return layers, first, second


def limit_threads(num_threads):
    """XLA would take all cores on every rank. It asks for their number when it is first used, and not before."""
    os.environ.setdefault("NPROC", str(num_threads))


class HeatServer(StreamServer):
    """A direct surrogate, as ../heat has it: every time step of a simulation is predicted from its parameters alone."""

    def prepare_training_attributes(self):
        limit_threads(self.num_threads)
        num_nodes = int(np.prod(self.config.study.fields["temperature"].shape))
        sizes = [len(self.parameter_names) + 1, HIDDEN, HIDDEN, num_nodes]
        # The same seed makes the same weights on all ranks.
        keys = jax.random.split(jax.random.key(self.config.study.seed), len(sizes) - 1)
        self.layers = [
            {"weights": jax.random.normal(key, (num_in, num_out)) * jnp.sqrt(2 / num_in), "bias": jnp.zeros(num_out)}
            for key, num_in, num_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
        ]
        self.first = self.second = jax.tree.map(jnp.zeros_like, self.layers)
        self.num_updates = 0

    def process_batch(self, batch, config):
        times = batch.time_steps / config.study.time_steps.num
        inputs = np.column_stack(((batch.parameters - CENTRE) / SCALE, 2 * times - 1))
        return inputs, (batch.fields["temperature"].reshape(len(batch), -1) - CENTRE) / SCALE

    def training_step(self, batch, batch_idx):
        loss, gradients = loss_and_gradients(self.layers, *batch)
        gradients = self.all_reduce(gradients)
        self.num_updates += 1
        self.layers, self.first, self.second = adam(
            self.layers, gradients, self.first, self.second, self.num_updates, self.config.user["lr"]
        )
        return loss

    def validation_step(self, batch, batch_idx):
        return mean_squared_error(self.layers, *batch)

    def predict(self, batch):
        return predict(self.layers, batch[0])

    def render(self, sample, prediction):
        truth = sample.fields["temperature"]
        return {"temperature": (truth, CENTRE + SCALE * prediction.output.reshape(truth.shape))}

    def state_dict(self):
        state = {"layers": self.layers, "first": self.first, "second": self.second}
        return {**jax.tree.map(np.asarray, state), "num_updates": self.num_updates}

    def replicated_state(self):
        return {"layers": self.layers}

    def load_state_dict(self, state):
        vars(self).update(state)
