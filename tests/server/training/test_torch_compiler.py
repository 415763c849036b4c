"""torch's compiler is imported by who compiles, and by nobody else."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

TRAINING = """
import sys
import torch
from stream_server.server.training.torch import framework, reduction, step, weights
from stream_server.config.training_sections import TrainingSettings
from stream_server.server.training.torch.lightning import Fabric
from stream_server.server.training.torch.precision import numerics

def compiler_is_loaded():
    return "torch._dynamo.symbolic_convert" in sys.modules

def train(model, optimizer, backward):
    before = [it.detach().clone() for it in model.parameters()]
    backward(model(torch.ones(2, 3)).sum())
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    assert not any(map(torch.equal, before, model.parameters()))

def make():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())

fabric = Fabric(accelerator="cpu", devices=1)
model = make()
optimizer = torch.optim.Adam(model.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=10)
train(model, optimizer, torch.Tensor.backward)
schedule.step()
with numerics(TrainingSettings(batch_size=4)):
    train(*fabric.setup(model, optimizer), fabric.backward)
assert not compiler_is_loaded()
marks = torch.optim.Optimizer.zero_grad.__wrapped__
assert getattr(marks, "__dynamo_disable", None) is marks
"""
COMPILING = """
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward

plain = make()
compiled = torch.compile(plain, backend=backend)
assert compiler_is_loaded()
again = torch.optim.Adam(compiled.parameters())
train(compiled, again, torch.Tensor.backward)
assert graphs
# Fabric finds the model in what was compiled, and compiles it again around its own.
module, wrapped = fabric.setup(compiled, again)
assert compiled is not plain
assert module.module is plain
train(module, wrapped, fabric.backward)
train(model, optimizer, torch.Tensor.backward)
assert getattr(marks, "__dynamo_disable", None) is not marks
"""
# A submodule, and a name of the package itself.
IMPORTS = """
import torch._dynamo.config
assert compiler_is_loaded()
from torch._dynamo import OptimizedModule
assert OptimizedModule.__module__ == "torch._dynamo.eval_frame"
assert torch._dynamo is sys.modules["torch._dynamo"]
"""


@pytest.mark.parametrize("then", [COMPILING, IMPORTS], ids=["compiling", "imports"])
def test_it_is_there_once_it_is_asked_for_and_not_before(then: str) -> None:
    done = subprocess.run([sys.executable, "-c", TRAINING + then], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
