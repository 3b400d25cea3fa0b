"""One rank of several small runs, with the real DeepSpeed package or with ours, for test_deepspeed.py.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=… MASTER_PORT=… python deepspeed_peer.py '[{"stage": 2, "dtype": "bf16", …}, …]'

Each entry is one thing to do, one after another in one process, because importing takes longer than all of them:
a run    stage, dtype (fp32, bf16, fp16), steps; load, save: folders; universal: load such a one; loaded, dump: files for
         parameters and moments as they were loaded, and after the steps; groups: of
         parameters, 1 or 2; the second has a weight decay, a learning rate and betas of its own
weights  zero_to_fp32: a folder; dump: a file for what it makes of it
export   export: one checkpoint of ours; into: the folder for DeepSpeed's layout (only our package can)
"""

import gc
import json
import os
import sys

DEVICE = os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed  # noqa: E402
import torch  # noqa: E402

# Its kernels for collectives would be compiled first; Gloo does.
deepspeed.ops.__compatible_ops__.clear()


class Model(torch.nn.Module):
    """Awkward sizes, a buffer, a frozen parameter."""

    def __init__(self):
        super().__init__()
        self.entry = torch.nn.Linear(7, 11)
        self.body = torch.nn.Linear(11, 13)
        self.head = torch.nn.Linear(13, 3, bias=False)
        self.frozen = torch.nn.Parameter(torch.full((5,), 0.25), requires_grad=False)
        self.register_buffer("offset", torch.arange(3, dtype=torch.float32))

    def forward(self, x):
        hidden = torch.tanh(self.body(torch.tanh(self.entry(x))))
        return self.head(hidden) + self.offset.to(hidden.dtype) * self.frozen[0]


def config(options):
    result = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0,
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01, "torch_adam": True}},
              "zero_optimization": {"stage": options["stage"], "stage3_param_persistence_threshold": 0},
              "zero_allow_untested_optimizer": True}
    if options["dtype"] != "fp32":
        result[options["dtype"]] = {"enabled": True}
    if options["dtype"] == "fp16":
        # It grows in the steps before a save and after it, and by rules that are not the defaults.
        result["fp16"] |= {"initial_scale_power": 8, "loss_scale_window": 2, "hysteresis": 3}
    if options.get("universal"):
        result["checkpoint"] = {"load_universal": True}
    return result


def train(engine, first, steps, dtype):
    losses = []
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 * step + engine.global_rank)
        inputs = torch.randn(4, 7, generator=generator).to(DEVICE, dtype)
        loss = engine(inputs).float().square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def states(engine):
    """(name, master, moments) of every trainable parameter, whole."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state
    if getattr(engine.optimizer, "_hp_optimizer_states_linked", False):
        # DeepSpeed did that when its first group had been updated: the others had no states yet.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    trainable = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
    halves, wholes = (getattr(engine.optimizer, f"{kind}_groups", []) for kind in ("fp16", "fp32"))
    masters = {id(half): whole for group in zip(halves, wholes) for half, whole in zip(*group)}
    for name, parameter in trainable:
        master = safe_get_full_fp32_param(parameter)
        if master is not None:
            yield name, master, {key: safe_get_full_optimizer_state(parameter, key) for key in ("exp_avg", "exp_avg_sq")}
            continue
        # Stage 0 has no such functions: ask its optimizer.
        optimizer = engine.optimizer
        master = masters[id(parameter)] if masters else parameter
        yield name, master, getattr(optimizer, "optimizer", optimizer).state[master]


def write(path, values):
    if torch.distributed.get_rank() == 0:
        with open(path, "w") as out:
            json.dump(values, out)


def numbers(tensor):
    return tensor.detach().float().reshape(-1).tolist()


def dump(engine, path, losses):
    result = {"losses": losses, "steps": engine.global_steps, "skipped": engine.skipped_steps,
              "groups": [[group["lr"], group["weight_decay"], *group["betas"]] for group in engine.optimizer.param_groups]}
    if engine.fp16_enabled():
        result["scale"] = engine.optimizer.loss_scale
    for name, master, moments in states(engine):
        values = {"master": master, "exp_avg": moments["exp_avg"], "exp_avg_sq": moments["exp_avg_sq"]}
        result.update((f"{key}/{name}", numbers(value)) for key, value in values.items())
    write(path, result)


def run(options):
    torch.manual_seed(7)
    model = Model()
    trained = [p for p in model.parameters() if p.requires_grad]
    if options["groups"] == 2:
        # A loaded run begins with other numbers, which the checkpoint's replace.
        rate, decay = (1.0, 0.5) if options.get("load") else (0.02, 0.3)
        trained = [{"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0},
                   {"params": [p for p in trained if p.dim() > 1], "weight_decay": decay, "lr": rate, "betas": (0.8, 0.95)}]
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=trained, config=config(options))
    if options.get("load"):
        path, client = engine.load_checkpoint(options["load"])
        assert path is not None and client["epoch"] == 3 and torch.equal(client["ema"], torch.arange(3.0)), (path, client)
    if options.get("loaded"):
        dump(engine, options["loaded"], [])
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options["dtype"]]
    losses = train(engine, engine.global_steps, options.get("steps", 0), dtype)
    if options.get("save"):
        engine.save_checkpoint(options["save"], client_state={"epoch": 3, "ema": torch.arange(3.0)})
    if options.get("dump"):
        dump(engine, options["dump"], losses)
    engine.destroy()


def weights(options):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    whole = get_fp32_state_dict_from_zero_checkpoint(options["zero_to_fp32"])
    write(options["dump"], {name: numbers(value) for name, value in whole.items()})


def export(options):
    from deepspeed.checkpoint.export import export_checkpoint
    if torch.distributed.get_rank() == 0:
        export_checkpoint(options["export"], options["into"])


def main():
    deepspeed.init_distributed(dist_backend="gloo" if DEVICE == "cpu" else "nccl")
    for options in json.loads(sys.argv[1]):
        print("begins", options, flush=True)
        task = weights if "zero_to_fp32" in options else export if "export" in options else run
        task(options)
        gc.collect()


main()
