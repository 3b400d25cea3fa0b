"""What users of the original run into and must not meet here."""

import ctypes
import functools
import gc
import sys
import threading
import time

import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn

import capstan

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")


def config(stage, **more):
    return {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0}, **more}


def make(model, stage, lr=0.1):
    return capstan.initialize(model, config(stage), optimizer=torch.optim.SGD(model.parameters(), lr=lr))


class Shared(nn.Module):
    """Reads a parameter of another module in its own forward, and has a method that is not forward."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.body = nn.Linear(8, 8)

    def encode(self, x):
        return self.body(self.embed(x))

    def forward(self, x):
        return nn.functional.linear(self.encode(x), self.embed.weight)


def borrowed(stage):
    torch.manual_seed(0)
    model = Shared()
    engine = make(model, stage)
    losses = []
    for step in range(3):
        x = torch.arange(6).view(2, 3) + dist.get_rank() + step
        loss = nn.functional.cross_entropy(engine(x).flatten(0, 1), x.flatten())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    with torch.no_grad():
        losses.append(model.encode(torch.arange(3)).sum().item())  # any method
        losses.append(engine(torch.arange(3)[None]).sum().item())  # evaluation
    return losses


def test_parameters_of_other_modules_and_any_method_work_at_stage_3():
    assert ranks.run(2, borrowed, 3) == ranks.run(2, borrowed, 0)


def two_engines(stage):
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    engines = [make(first, stage), make(second, stage)]
    losses = []
    for step in range(3):
        x = torch.full((2, 4), 1.0 + step + dist.get_rank())
        loss = engines[1](engines[0](x)).square().mean()
        loss.backward()  # one graph through both; nobody's engine.backward()
        for engine in engines:
            engine.step()
        losses.append(loss.item())
    return losses


def test_one_loss_through_two_engines():
    results = [ranks.run(2, two_engines, stage) for stage in (0, 3)]
    assert results[0] == results[1]
    assert results[0][0][-1] != results[0][0][0]


def sharded_construction():
    def build():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))

    plain = build()
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = build()
    assert all(p.shape == (0,) for p in model.parameters())
    with deepspeed.zero.GatheredParameters(model.parameters()):
        for mine, theirs in zip(model.parameters(), plain.parameters()):
            assert torch.equal(mine, theirs)
    engine = make(model, 3)
    engine.backward(engine(torch.ones(2, 32)).sum())
    engine.step()
    return True


def test_sharded_construction_gives_the_weights_of_an_ordinary_one():
    assert all(ranks.run(2, sharded_construction))


def dropped():
    def resident():
        ctypes.CDLL(None).malloc_trim(0)  # the C library keeps what was freed, more or less of it
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    sizes = []
    for turn in range(6):
        model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024))
        engine = make(model, turn % 4)
        engine.backward(engine(torch.ones(2, 1024)).sum())
        engine.step()
        engine.close()
        del engine, model
        gc.collect()
        sizes.append(resident())
    return sizes


def test_a_dropped_engine_gives_its_memory_back():
    sizes = ranks.run(1, dropped)[0]
    assert sizes[-1] - sizes[1] < 8 * 2**20  # one engine holds 16 MiB and more


def ticking():
    model = nn.Linear(64, 64)
    engine = make(model, 3)
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    engine.backward(engine(torch.ones(2, 64)).sum())
    thread = threading.Thread(target=tick)
    if dist.get_rank() == 0:
        time.sleep(1.0)  # the other rank waits inside step() meanwhile
    else:
        thread.start()
    engine.step()
    stop.set()
    if thread.is_alive():
        thread.join()
    return ticks[0]


def test_other_threads_run_while_a_step_waits_for_a_peer():
    assert ranks.run(2, ticking)[1] > 50


def runs_beside(call):
    """Whether another thread runs while this one is in `call`: only if that lets the interpreter's lock go."""
    ticks, stop = [0], threading.Event()

    def tick():
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)

    sys.setswitchinterval(1000)  # nobody is asked to let go
    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks[0]
    call()
    after = ticks[0]
    stop.set()
    sys.setswitchinterval(0.005)
    thread.join()
    return after > before


def late_updates():
    """Calls that wait for updates that still run when step() has returned."""
    model = nn.Linear(4096, 4096)
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_optimizer": {"device": "cpu"}}
    engine = capstan.initialize(model, {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero,
                                        "capstan": {"late_updates": "always"}},
                                optimizer=capstan.optimizers.AdamW(model.parameters(), lr=0.1))
    calls = [lambda: engine.core.set_groups([{**engine.optimizer.hyper_params()[0], "lr": 0.2}]),
             lambda: engine.core.local_param(0)]
    ran = [runs_beside(lambda: sum(range(1000)))]  # that does not
    for call in calls:
        engine.backward(engine(torch.ones(2, 4096)).sum())
        engine.step()
        ran.append(runs_beside(call))
    return ran


def test_other_threads_run_while_a_call_waits_for_late_updates():
    assert ranks.run(1, late_updates)[0] == [False, True, True]


def compiled(stage, backend):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)) for _ in range(2)])
    engine = make(model, stage)
    if backend:
        engine.compile_units(backend=backend)
    losses = []
    for _ in range(3):
        loss = engine(torch.ones(2, 16) + dist.get_rank()).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


@functools.cache
def uncompiled():
    return ranks.run(2, compiled, 0, None)


@pytest.mark.parametrize("stage, backend", [(0, "eager"), (1, "aot_eager"), (2, "eager"), (3, "eager"), (3, "aot_eager")])
def test_compiled_models_train_alike(stage, backend):
    """The whole model below stage 3, each unit at it. The backends trace as the real one does, and keep the arithmetic."""
    assert ranks.run(2, compiled, stage, backend) == uncompiled()


def save_and_load(folder, stage, load, kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    optimizer = {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": kind == "torch"}}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                      config=config(stage, optimizer=optimizer))
    if load:
        path, client = engine.load_checkpoint(folder)
        assert path is not None and client == {"epoch": 3}
        assert engine.global_steps == 2
    losses = []
    for step in range(2):
        loss = engine(torch.ones(2, 8) * (step + 1)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        if not load and step == 1:
            engine.save_checkpoint(folder, client_state={"epoch": 3})
    if not load:
        for step in range(2):
            loss = engine(torch.ones(2, 8) * (step + 1)).square().mean()
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["own", "torch"])
def test_a_checkpoint_goes_on_at_another_stage_and_world_size(tmp_path, kind):
    saved = ranks.run(2, save_and_load, str(tmp_path), 3, False, kind)[0]
    resumed = ranks.run(1, save_and_load, str(tmp_path), 1, True, kind)[0]
    assert resumed == pytest.approx(saved[2:], rel=1e-5)
