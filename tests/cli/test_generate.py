"""capstan generate as a user runs it: the texts of Hugging Face, the same wherever parameters live."""

import json
import os
import pty
import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

CAPSTAN = Path(os.environ["CAPSTAN_BIN"]) / "capstan"
TIMEOUT = 240  # seconds; a run takes a few on an idle machine
# Of different lengths, and more than two ranks share evenly.
PROMPTS = ["The capstan", "a", "Heave round, all hands together, ", "42"]


def generate(*words, check=True, stdin=""):
    done = subprocess.run([CAPSTAN, "generate", *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT,
                          input=stdin)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def new_tokens(*words):
    return [json.loads(line)["new_tokens"] for line in generate(*words, "--json").stdout.splitlines()]


def hugging_face_model(folder, eos=0, **save):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(vocab_size=256, n_positions=64, n_embd=32, n_layer=2, n_head=2,
                                     bos_token_id=0, eos_token_id=eos)
    torch.manual_seed(3)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():  # far from uniform, so that texts do not hang on the last bit
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder, **save)
    return model


def expected_tokens(model, **how):
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([list(prompt.encode())])
        out = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, do_sample=False, **how)
        texts.append(out[0, ids.shape[1]:].tolist())
    return texts


def test_greedy_texts_are_those_of_hugging_face(tmp_path):
    model = hugging_face_model(tmp_path, max_shard_size="40KB")  # in several files
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert new_tokens(tmp_path, *PROMPTS, "--max-new-tokens", 25) == expected_tokens(model, max_new_tokens=25)


@pytest.mark.parametrize("early, penalty", [("false", 1.0), ("true", 0.5), ("never", -0.5)])
def test_beam_texts_are_those_of_hugging_face(tmp_path, early, penalty):
    model = hugging_face_model(tmp_path)
    stop = {"false": False, "true": True, "never": "never"}[early]
    how = dict(max_new_tokens=12, num_beams=3, length_penalty=penalty, early_stopping=stop)
    for eos in [token for text in expected_tokens(model, **how) for token in text]:  # one that some texts end with
        expected = expected_tokens(model, eos_token_id=eos, **how)
        if len({text[-1] == eos for text in expected}) == 2:
            break
    assert {len(text) for text in expected} != {12}
    hugging_face_model(tmp_path, eos=eos)
    assert new_tokens(tmp_path, *PROMPTS, "--max-new-tokens", 12, "--num-beams", 3, "--length-penalty", penalty,
                      "--early-stopping", early) == expected


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "text.txt").write_text("".join(f"The number {i} is followed by the number {i + 1}.\n" for i in range(900)))
    config = {"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
              "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}}
    subprocess.run([CAPSTAN, "train", "-n", "1", "--model", "gpt2-tiny", "--data", folder / "text.txt", "--tokens", "64", "--vocab", "256",
                    "--max-steps", "30", "--eval-batches", "1", "--sample-tokens", "0", "--save", folder / "saved",
                    "--config", json.dumps(config)], check=True, timeout=TIMEOUT, capture_output=True)
    return folder / "saved"


def placed(stage, folder, device=None):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 0}
    if device:
        zero["offload_param"] = {"device": device, "nvme_path": str(folder), "pin_memory": False}
        # A training configuration as it is: an inference engine has no optimizer to place.
        zero["offload_optimizer"] = {"device": device, "nvme_path": str(folder), "pin_memory": False}
    return json.dumps({"bf16": {"enabled": True}, "zero_optimization": zero, "train_micro_batch_size_per_gpu": 1})


@pytest.mark.parametrize("search", [["--num-beams", 2], ["--sample", "--seed", 5, "--top-p", 0.9]], ids=["beams", "sample"])
def test_texts_are_the_same_at_every_stage_placement_and_number_of_ranks(checkpoint, tmp_path, search):
    common = [checkpoint, *PROMPTS, "--max-new-tokens", 12, *search]
    expected = new_tokens(*common, "--config", placed(0, tmp_path))
    runs = [(1, 3, None), (1, 3, "nvme"), (2, 1, None), (2, 3, "cpu"), (2, 3, "nvme"), (3, 3, None)]
    for ranks, stage, device in runs if "--sample" in search else runs[4:5]:
        assert new_tokens(*common, "-n", ranks, "--config", placed(stage, tmp_path, device)) == expected, (ranks, stage, device)
    assert not list(tmp_path.iterdir())


def test_a_rank_holds_its_share_and_one_unit(checkpoint, tmp_path):
    def peak(config):
        done = generate(checkpoint, "-n", 2, "x", "--max-new-tokens", 3, "--config", json.dumps(config))
        number, unit = re.search(r"on a device: parameters ([\d.]+) (B|KiB|MiB)", done.stderr).groups()
        return float(number) * {"B": 1, "KiB": 1024, "MiB": 1024**2}[unit]

    frugal = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0,
              "stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0}
    disk = {"offload_param": {"device": "nvme", "nvme_path": str(tmp_path), "pin_memory": False}}
    whole = peak({"zero_optimization": {"stage": 0}})
    unit = peak({"zero_optimization": {**frugal, **disk}})
    assert unit < 0.5 * whole
    assert peak({"zero_optimization": frugal}) == pytest.approx(0.5 * whole + unit, rel=0.02)


def test_more_ranks_than_prompts_from_stdin_and_beyond_the_context(checkpoint):
    alone = generate(checkpoint, "--max-new-tokens", 40, "--context", 16, stdin="The number\n\n").stdout
    many = generate(checkpoint, "-n", 3, "--max-new-tokens", 40, "--context", 16, "--config", placed(3, ""),
                    stdin="The number\n")
    assert alone.startswith("The number") and len(alone) == len("The number") + 41
    assert "on 3 ranks" in many.stderr and many.stdout.startswith("The number")


def test_a_person_who_gave_no_prompt_is_told_what_is_awaited(checkpoint):
    person, terminal = pty.openpty()
    os.write(person, b"The number\n\x04")  # Ctrl-D
    done = subprocess.run([CAPSTAN, "generate", checkpoint, "--max-new-tokens", "2"], stdin=terminal, capture_output=True,
                          text=True, timeout=TIMEOUT)
    os.close(terminal)
    os.close(person)
    assert done.returncode == 0 and "one per line; Ctrl-D ends" in done.stderr and done.stdout.startswith("The number")


def test_the_cache_changes_no_text(checkpoint):
    common = [checkpoint / "global_step30", "The number 7", "--max-new-tokens", 30]
    assert generate(*common).stdout == generate(*common, "--no-cache").stdout


def test_errors_say_what_where_and_the_fix(checkpoint, tmp_path):
    cases = [([tmp_path, "x"], ["there is no model", str(tmp_path), "capstan train --save"]),
             ([checkpoint, "x", "--tag", "other"], ['no checkpoint "other"', "choose one of: global_step30"]),
             ([checkpoint, "x", "--sample", "--num-beams", 2], ["--num-beams 2 --sample", "remove one"]),
             ([checkpoint, "x", "--temperature", 0.5], ["--temperature requires --sample", "--help"]),
             ([checkpoint, "x", "--length-penalty", 2], ["--length-penalty requires --num-beams", "--help"]),
             ([checkpoint, "x", "--prompts", "lines.txt"], ["prompt excludes --prompts", "--help"]),
             ([next(checkpoint.glob("*/index.json")).parent, "x", "--tag", "one"], ["--tag one", "remove --tag"]),
             ([checkpoint, "--prompts", tmp_path / "none"], ["cannot read the prompts", "one prompt per line"]),
             ([checkpoint], ["there is no prompt", "where: /dev/stdin\n", "one per line on stdin"])]
    for words, parts in cases:
        done = generate(*words, check=False)
        assert done.returncode == 2
        for part in parts:
            assert part in done.stderr, done.stderr
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused = generate(tmp_path, "x", check=False).stderr
    assert "not a GPT-2" in refused and "capstan.initialize" in refused


@pytest.fixture
def published(checkpoint, tmp_path):
    """The checkpoint's weights as Hugging Face's files, to be changed."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint / "global_step30" / name, folder)
    return folder


def refusal(folder, *more):
    def limit():  # the memory that a config.json asks for must never be taken
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))

    done = subprocess.run([CAPSTAN, "generate", folder, "x", "--max-new-tokens", "3", *more], capture_output=True, text=True,
                          timeout=TIMEOUT, preexec_fn=limit)
    assert done.returncode == 2 and done.stdout == "", done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("key, value", [("n_layer", 10**12), ("n_layer", 3), ("n_embd", 2**40), ("n_positions", 10**15),
                                        ("vocab_size", 10**12)])
def test_a_config_that_is_not_the_weights_own_is_refused_before_memory_is_taken(published, key, value):
    config = json.loads((published / "config.json").read_text())
    config[key] = value
    config["n_inner"] = None
    config["n_head"] = 1
    (published / "config.json").write_text(json.dumps(config))
    error = refusal(published)
    assert f'"{key}" is {value} there, but the weights are of a model with' in error, error


def test_integers_and_what_is_not_a_number_are_no_weights(published):
    weights = published / "model.safetensors"
    data = weights.read_bytes()
    length = int.from_bytes(data[:8], "little")
    weights.write_bytes(data[:8] + data[8:8 + length].replace(b'"BF16"', b'"I16" ') + data[8 + length:])
    error = refusal(published)
    assert "holds I16 in the checkpoint, floating-point numbers in the model" in error
    weights.write_bytes(data[:8 + length] + b"\xff\x7f" * ((len(data) - 8 - length) // 2))  # NaN, all of them
    for more in ([], ["--sample"], ["--num-beams", "2"]):
        assert "not a number (NaN)" in refusal(published, *more)


def test_an_end_token_outside_the_vocabulary_is_refused(published):
    config = json.loads((published / "config.json").read_text())
    config["eos_token_id"] = -1
    (published / "config.json").write_text(json.dumps(config))
    assert '"eos_token_id" is -1' in refusal(published)


def test_which_checkpoint_was_taken_is_always_told(checkpoint, tmp_path):
    folder = tmp_path / "two"
    shutil.copytree(checkpoint, folder)
    shutil.copytree(folder / "global_step30", folder / "newer")
    (folder / "newer" / "index.json").write_text("{")
    for words in ([folder], [folder, "--tag", "global_step30"], [folder / "global_step30"]):
        told = generate(*words, "x", "--max-new-tokens", 1).stderr
        assert f"model: {folder}/global_step30\n" in told
        assert ("newer is skipped: the index is damaged" in told) == (words == [folder])


def test_the_tokenizer_goes_with_the_checkpoint(tmp_path):
    """The one that was learnt from the text: Hugging Face reads it, and a run that goes on with other text keeps it."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    text = "".join(f"The number {i} is followed by the number {i + 1}.\n" for i in range(900))
    (tmp_path / "text.txt").write_text(text)
    words = [CAPSTAN, "train", "-n", "1", "--model", "gpt2-tiny", "--data", tmp_path / "text.txt", "--tokens", "32",
             "--eval-batches", "1", "--sample-tokens", "0", "--save", tmp_path / "saved"]
    subprocess.run([*words, "--vocab", "400", "--max-steps", "2"], check=True, timeout=TIMEOUT, capture_output=True)
    learnt = tmp_path / "saved/global_step2/tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(learnt))
    line = json.loads(generate(tmp_path / "saved", "The number 7", "--max-new-tokens", 9, "--json").stdout)
    given = tokenizer.encode("The number 7").ids
    assert line["text"] == tokenizer.decode(given + line["new_tokens"]) and len(given) < len("The number 7")
    config = json.loads((tmp_path / "saved/global_step2/config.json").read_text())
    assert config["eos_token_id"] == tokenizer.token_to_id("<|endoftext|>") and config["vocab_size"] == 400
    (tmp_path / "text.txt").write_text("Another text, in which nothing is like in the first. " * 300)
    subprocess.run([*words, "--resume", tmp_path / "saved", "--max-steps", "3"], check=True, timeout=TIMEOUT, capture_output=True)
    assert (tmp_path / "saved/global_step3/tokenizer.json").read_bytes() == learnt.read_bytes()


def test_a_tokenizer_that_is_given_goes_with_the_checkpoint(tmp_path, checkpoint):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    text = "".join(f"The number {i} is followed by the number {i + 1}.\n" for i in range(900))
    (tmp_path / "text.txt").write_text(text)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([text], vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    subprocess.run([CAPSTAN, "train", "-n", "1", "--model", "gpt2-tiny", "--data", tmp_path / "text.txt", "--tokens", "32",
                    "--tokenizer", tmp_path / "tokenizer.json", "--max-steps", "1", "--eval-batches", "1", "--sample-tokens",
                    "0", "--save", tmp_path / "saved"], check=True, timeout=TIMEOUT, capture_output=True)
    assert (tmp_path / "saved/global_step1/tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    assert not list(checkpoint.rglob("tokenizer.json"))  # that one was trained on bytes
