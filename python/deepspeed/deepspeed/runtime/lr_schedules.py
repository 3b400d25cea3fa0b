"""Learning-rate schedules by DeepSpeed's names; the curves are capstan's."""

import json

from capstan import _C

LR_SCHEDULE = "lr_schedule"
LR_RANGE_TEST, ONE_CYCLE = "LRRangeTest", "OneCycle"
WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]

LR_RANGE_TEST_MIN_LR, LR_RANGE_TEST_STEP_RATE = "lr_range_test_min_lr", "lr_range_test_step_rate"
LR_RANGE_TEST_STEP_SIZE, LR_RANGE_TEST_STAIRCASE = "lr_range_test_step_size", "lr_range_test_staircase"
EDGE_VALUE, MID_VALUE = "edge_value", "mid_value"
CYCLE_FIRST_STEP_SIZE, CYCLE_SECOND_STEP_SIZE = "cycle_first_step_size", "cycle_second_step_size"
CYCLE_FIRST_STAIR_COUNT, CYCLE_SECOND_STAIR_COUNT = "cycle_first_stair_count", "cycle_second_stair_count"
DECAY_STEP_SIZE = "decay_step_size"
CYCLE_MIN_LR, CYCLE_MAX_LR, DECAY_LR_RATE = "cycle_min_lr", "cycle_max_lr", "decay_lr_rate"
CYCLE_MIN_MOM, CYCLE_MAX_MOM, DECAY_MOM_RATE = "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"
CYCLE_MOMENTUM = "cycle_momentum"
WARMUP_MIN_LR, WARMUP_MAX_LR, WARMUP_NUM_STEPS = "warmup_min_lr", "warmup_max_lr", "warmup_num_steps"
WARMUP_TYPE, WARMUP_LOG_RATE, WARMUP_LINEAR_RATE = "warmup_type", "log", "linear"
WARMUP_MIN_RATIO, COS_MIN_RATIO, TOTAL_NUM_STEPS = "warmup_min_ratio", "cos_min_ratio", "total_num_steps"


def get_torch_optimizer(optimizer):
    """The optimizer whose groups a schedule moves: the innermost one with groups of its own."""
    import torch
    while not isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"a schedule needs an optimizer with param_groups, not a {type(optimizer).__name__}")
    return optimizer


class _Schedule:
    """Writes the rates of the configured curve into the groups of an optimizer."""

    def __init__(self, optimizer, params, last_batch_iteration):
        self.optimizer = get_torch_optimizer(optimizer)
        self.last_batch_iteration = last_batch_iteration
        groups = self.optimizer.param_groups
        self._base_lrs = [float(group["lr"]) for group in groups]
        given = {key: value for key, value in params.items() if value is not None}
        text = json.dumps({"type": type(self).__name__, "params": given})
        self._curve = _C.ScheduleOptions(text, len(groups))
        if last_batch_iteration == -1:
            self._write(-1)
        self._last_lr = [group["lr"] for group in groups]

    def _per_group(self, value):
        """A list with one entry per group, of one value or of such a list."""
        groups = len(self.optimizer.param_groups)
        return list(value) if isinstance(value, (list, tuple)) else [value] * groups

    def _rates(self, index):
        return [self._curve.rates(index, base, g) for g, base in enumerate(self._base_lrs)]

    def _write(self, index):
        for group, (lr, momentum) in zip(self.optimizer.param_groups, self._rates(index)):
            if hasattr(group["lr"], "fill_"):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
            if momentum is None:
                continue
            if "betas" in group:
                group["betas"] = (momentum, group["betas"][1])
            elif "momentum" in group:
                group["momentum"] = momentum

    def get_lr(self):
        return [lr for lr, _ in self._rates(self.last_batch_iteration)]

    def get_lr_ratio(self):
        """The first group's rate over its own."""
        return self.get_lr()[0] / self._base_lrs[0]

    def get_mom(self):
        """As the optimizer's groups have it: (beta1, beta2), or one number."""
        found = []
        for group, (_, momentum) in zip(self.optimizer.param_groups, self._rates(self.last_batch_iteration)):
            if momentum is None:
                return None
            found.append((momentum, group["betas"][1]) if "betas" in group else momentum)
        return found

    def get_last_lr(self):
        """The rates that are in the optimizer's groups: before the first step(), those it starts with."""
        return self._last_lr

    def step(self, last_batch_iteration=None, *, batch_iteration=None):
        """To the next index, or to the one that is given, by either of its names."""
        given = batch_iteration if last_batch_iteration is None else last_batch_iteration
        self.last_batch_iteration = self.last_batch_iteration + 1 if given is None else given
        self._write(self.last_batch_iteration)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self):
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state):
        self.last_batch_iteration = state["last_batch_iteration"]


def _warmup_steps(value):
    """Fewer than 2 steps warm up as 2 do; anything but a count is an error."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or int(value) != value:
        raise ValueError(f"warmup_num_steps must be a non-negative integer, got {value!r}")
    return int(value)


def _warmup_type(value):
    if value in (WARMUP_LOG_RATE, WARMUP_LINEAR_RATE):
        return value
    from deepspeed.utils.logging import logger
    logger.warning(f"warmup_type {value!r} is neither 'log' nor 'linear'; 'log' is used")
    return WARMUP_LOG_RATE


class LRRangeTest(_Schedule):

    def __init__(self, optimizer, lr_range_test_min_lr=1e-3, lr_range_test_step_size=2000,
                 lr_range_test_step_rate=1.0, lr_range_test_staircase=False, last_batch_iteration=-1):
        super().__init__(optimizer, dict(lr_range_test_min_lr=lr_range_test_min_lr,
                                         lr_range_test_step_size=lr_range_test_step_size,
                                         lr_range_test_step_rate=lr_range_test_step_rate,
                                         lr_range_test_staircase=lr_range_test_staircase), last_batch_iteration)
        self.min_lr = self._per_group(lr_range_test_min_lr)


class OneCycle(_Schedule):

    def __init__(self, optimizer, cycle_min_lr, cycle_max_lr, decay_lr_rate=0.0, cycle_first_step_size=2000,
                 cycle_second_step_size=None, cycle_first_stair_count=0, cycle_second_stair_count=None,
                 decay_step_size=0, cycle_momentum=True, cycle_min_mom=0.8, cycle_max_mom=0.9, decay_mom_rate=0.0,
                 last_batch_iteration=-1):
        params = {key: value for key, value in locals().items()
                  if key not in ("self", "optimizer", "last_batch_iteration", "__class__")}
        fall = cycle_first_step_size if cycle_second_step_size is None else cycle_second_step_size
        self.total_size = cycle_first_step_size + fall
        self.step_ratio = cycle_first_step_size / self.total_size if self.total_size else 0.0
        super().__init__(optimizer, params, last_batch_iteration)
        self.min_lrs, self.max_lrs = self._per_group(cycle_min_lr), self._per_group(cycle_max_lr)
        self.max_moms = self._per_group(cycle_max_mom) if cycle_momentum else None

    def get_mom(self):
        """Before the first step() the start of the curve. The groups hold the lower bound then: it is the first update's."""
        found = super().get_mom()
        if found is None or self.last_batch_iteration >= 0:
            return found
        return [(high, *both[1:]) if isinstance(both, tuple) else high for both, high in zip(found, self.max_moms)]


class WarmupLR(_Schedule):

    def __init__(self, optimizer, warmup_min_lr=0.0, warmup_max_lr=None, warmup_num_steps=1000,
                 warmup_type=WARMUP_LOG_RATE, last_batch_iteration=-1, **more):
        self.warmup_type, warmup_num_steps = _warmup_type(warmup_type), _warmup_steps(warmup_num_steps)
        super().__init__(optimizer, dict(warmup_min_lr=warmup_min_lr, warmup_max_lr=warmup_max_lr,
                                         warmup_num_steps=warmup_num_steps, warmup_type=self.warmup_type, **more),
                         last_batch_iteration)
        self.warmup_num_steps = max(2, warmup_num_steps)
        self.min_lrs = self._per_group(warmup_min_lr)
        self.max_lrs = self._per_group(self._base_lrs if warmup_max_lr is None else warmup_max_lr)


class WarmupDecayLR(WarmupLR):

    def __init__(self, optimizer, total_num_steps, warmup_min_lr=0.0, warmup_max_lr=0.001, warmup_num_steps=1000,
                 warmup_type=WARMUP_LOG_RATE, last_batch_iteration=-1):
        self.total_num_steps = total_num_steps
        super().__init__(optimizer, warmup_min_lr, warmup_max_lr, warmup_num_steps, warmup_type, last_batch_iteration,
                         total_num_steps=total_num_steps)


class WarmupCosineLR(_Schedule):

    def __init__(self, optimizer, total_num_steps, warmup_min_ratio=0.0, warmup_num_steps=1000, cos_min_ratio=0.0001,
                 warmup_type=WARMUP_LOG_RATE, last_batch_iteration=-1):
        self.warmup_type, warmup_num_steps = _warmup_type(warmup_type), _warmup_steps(warmup_num_steps)
        self.total_num_steps, self.warmup_num_steps = total_num_steps, max(2, warmup_num_steps)
        super().__init__(optimizer, dict(total_num_steps=total_num_steps, warmup_min_ratio=warmup_min_ratio,
                                         warmup_num_steps=warmup_num_steps, cos_min_ratio=cos_min_ratio,
                                         warmup_type=self.warmup_type), last_batch_iteration)
        self.org_lrs = self._base_lrs


SCHEDULES = {cls.__name__: cls for cls in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)}


def add_tuning_arguments(parser):
    """Command-line options for the schedules' parameters."""
    group = parser.add_argument_group("Convergence Tuning", "Convergence tuning configurations")
    group.add_argument("--lr_schedule", type=str, default=None, help="LR schedule for training.")
    for name, default in ((LR_RANGE_TEST_MIN_LR, 0.001), (LR_RANGE_TEST_STEP_RATE, 1.0), (CYCLE_MIN_LR, 0.01),
                          (CYCLE_MAX_LR, 0.1), (DECAY_LR_RATE, 0.0), (CYCLE_MIN_MOM, 0.8), (CYCLE_MAX_MOM, 0.9),
                          (DECAY_MOM_RATE, 0.0), (WARMUP_MIN_LR, 0), (WARMUP_MAX_LR, 0.001)):
        group.add_argument(f"--{name}", type=float, default=default)
    for name, default in ((LR_RANGE_TEST_STEP_SIZE, 1000), (CYCLE_FIRST_STEP_SIZE, 1000), (CYCLE_SECOND_STEP_SIZE, -1),
                          (CYCLE_FIRST_STAIR_COUNT, -1), (CYCLE_SECOND_STAIR_COUNT, -1), (DECAY_STEP_SIZE, 1000),
                          (WARMUP_NUM_STEPS, 1000)):
        group.add_argument(f"--{name}", type=int, default=default)
    group.add_argument(f"--{WARMUP_TYPE}", type=str, default=WARMUP_LOG_RATE)
    return parser


def parse_arguments():
    import argparse
    return add_tuning_arguments(argparse.ArgumentParser()).parse_known_args()
