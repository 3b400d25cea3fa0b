"""A process that is forked from a program with an engine: its threads and connections are not there."""

import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent("""
    import os, sys, torch, capstan
    stage = int(sys.argv[1])
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
    engine = capstan.initialize(model, {
        "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0,
                              **({"offload_optimizer": {"device": "cpu"}} if stage > 0 else {})}})

    def step():
        engine.backward(engine(torch.ones(1, 8)).square().mean())
        engine.step()

    step()
    child = os.fork()
    if child == 0:
        try:
            step()
        except capstan.ConfigError as error:
            assert "a fork of it" in str(error), error
            sys.exit(7)  # an ordinary end, with all that Python does there
        sys.exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    step()  # the engine's own process goes on
    print("done")
""")


@pytest.mark.parametrize("stage", [0, 3])
def test_a_step_in_a_forked_child_is_an_error_and_the_child_ends(stage):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(stage)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=300)
    assert done.returncode == 0 and "done" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout and "could not finish" not in done.stdout, done.stdout
