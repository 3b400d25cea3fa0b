"""Samples by difficulty: the analyzer, its files, and the sampler that goes on exactly on any number of ranks."""

import struct

import numpy as np
import pytest
import ranks
import torch
from torch import nn

from capstan.errors import ConfigError, Error, IoError

deepspeed = pytest.importorskip("deepspeed", reason="needs the package deepspeed")

from deepspeed.runtime.data_pipeline.data_sampling.data_analyzer import (  # noqa: E402
    DataAnalyzer, DistributedDataAnalyzer)
from deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset import (  # noqa: E402
    MMapIndexedDataset, MMapIndexedDatasetBuilder, find_fit_int_dtype)

SAMPLES = 60
VALUES = np.array([(7 * i) % 20 for i in range(SAMPLES)])  # three samples of each value below 20


class Numbers(torch.utils.data.Dataset):
    """Sample i is i, as the model sees it."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([float(index)])


# The files


def by_hand(path, rows, kind, number):
    """The layout as it is described, written without the builder."""
    data = [np.asarray(row, kind).tobytes() for row in rows]
    (path.parent / f"{path.name}.bin").write_bytes(b"".join(data))
    sizes, begins = [len(row) for row in rows], np.cumsum([0] + [len(each) for each in data])[:-1]
    (path.parent / f"{path.name}.idx").write_bytes(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, number, len(rows), 1) + struct.pack(f"<{len(rows)}i", *sizes)
        + struct.pack(f"<{len(rows)}q", *begins) + struct.pack("<q", 0))


@pytest.mark.parametrize("number, kind", [(1, "u1"), (2, "i1"), (3, "<i2"), (4, "<i4"), (5, "<i8"), (6, "<u2"), (7, "<u4"), (8, "<u8")])
def test_files_have_the_described_layout_and_are_read_back(tmp_path, number, kind):
    rows = [[1, 2, 3], [], [100]]
    by_hand(tmp_path / "hand", rows, kind, number)
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "ours.bin"), dtype=np.dtype(kind))
    for row in rows:
        builder.add_item(torch.tensor(row, dtype=torch.long))
    builder.finalize(str(tmp_path / "ours.idx"))
    for end in ("idx", "bin"):
        assert (tmp_path / f"ours.{end}").read_bytes() == (tmp_path / f"hand.{end}").read_bytes()
    read = MMapIndexedDataset(str(tmp_path / "hand"))
    assert [row.tolist() for row in read] == rows and read.dtype == np.dtype(kind) and read[-1].tolist() == [100]
    assert read.get(0, offset=1, length=2).tolist() == [2, 3] and MMapIndexedDataset.exists(str(tmp_path / "ours"))


def test_files_that_are_cut_or_of_another_kind_are_refused(tmp_path):
    by_hand(tmp_path / "good", [[1, 2], [3]], "<i8", 5)
    for end, problem in (("idx", "the index ends early"), ("bin", "the data have 16 bytes of 24")):
        for each in ("idx", "bin"):
            (tmp_path / f"cut.{each}").write_bytes((tmp_path / f"good.{each}").read_bytes()[:-8 if each == end else None])
        with pytest.raises(IoError, match=problem):
            MMapIndexedDataset(str(tmp_path / "cut"))
    (tmp_path / "other.idx").write_bytes(b"x" * 100)
    with pytest.raises(IoError, match="no index of an indexed data set"):
        MMapIndexedDataset(str(tmp_path / "other"))
    with pytest.raises(IoError, match="cannot read the index"):
        MMapIndexedDataset(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="numbers from 300 to 300"):
        MMapIndexedDatasetBuilder(str(tmp_path / "narrow.bin"), dtype=np.uint8).add_item([300])


def test_two_data_sets_become_one(tmp_path):
    by_hand(tmp_path / "a", [[1], [2, 3]], "<i4", 4)
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "all.bin"), dtype=np.int32)
    builder.add_item([9])
    builder.end_document()
    builder.merge_file_(str(tmp_path / "a"))
    builder.finalize(str(tmp_path / "all.idx"))
    assert [row.tolist() for row in MMapIndexedDataset(str(tmp_path / "all"))] == [[9], [1], [2, 3]]
    with pytest.raises(ConfigError, match="rows of int32"):
        MMapIndexedDatasetBuilder(str(tmp_path / "other.bin"), dtype=np.int64).merge_file_(str(tmp_path / "a"))


def test_the_smallest_dtype_that_fits():
    for low, high, kind in ((0, 255, "u1"), (0, 256, "u2"), (-1, 1, "i1"), (0, 2**32, "u8"), (-2**40, 0, "i8")):
        assert find_fit_int_dtype(low, high) == np.dtype(kind)


# The analyzer


def difficulty(batch):
    return torch.tensor([VALUES[int(each)] for each in batch])


def digits(batch):
    return torch.bincount((batch.long() % 10).flatten(), minlength=10)


def analyzer(folder, **more):
    return DataAnalyzer(Numbers(), batch_size=7, metric_names=["hard", "digits"], metric_functions=[difficulty, digits],
                        metric_types=["single_value_per_sample", "accumulate_value_over_samples"], save_path=str(folder), **more)


def rows_of(folder, name):
    return [row.tolist() for row in MMapIndexedDataset(str(folder / name))]


def analyze_on_ranks(folder):
    DistributedDataAnalyzer(Numbers(), batch_size=7, metric_names=["hard", "digits"], metric_functions=[difficulty, digits],
                            metric_types=["single_value_per_sample", "accumulate_value_over_samples"],
                            save_path=folder).run_map_reduce()


def test_any_number_of_workers_finds_the_same(tmp_path):
    analyzer(tmp_path / "one").run_map_reduce()
    for worker in (2, 0, 1):
        analyzer(tmp_path / "many", num_workers=3, worker_id=worker, num_threads=2).run_map()
    analyzer(tmp_path / "many", num_workers=3, num_threads=2).run_reduce()
    ranks.run(2, analyze_on_ranks, str(tmp_path / "ranks"))
    files = sorted(path.name for path in (tmp_path / "one" / "hard").iterdir())
    assert len(files) == 8
    for each in ("many", "ranks"):
        assert sorted(path.name for path in (tmp_path / each / "hard").iterdir()) == files
        for name in ("hard", "digits"):
            for path in (tmp_path / "one" / name).iterdir():
                assert path.read_bytes() == (tmp_path / each / name / path.name).read_bytes(), path
    hard = tmp_path / "one" / "hard"
    assert rows_of(hard, "hard_sample_to_metric") == [[value] for value in VALUES]
    assert rows_of(hard, "hard_index_to_metric") == [[value] for value in range(20)]
    assert rows_of(hard, "hard_index_to_sample") == [np.flatnonzero(VALUES == value).tolist() for value in range(20)]
    assert sum(rows_of(hard, "hard_index_to_sample_percentile_merged"), []) == np.argsort(VALUES, kind="stable").tolist()
    assert rows_of(tmp_path / "one" / "digits", "digits_metric_value") == [[6] * 10]
    assert MMapIndexedDataset(str(hard / "hard_index_to_sample")).dtype == np.uint8


def test_metrics_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no such type of a metric"):
        DataAnalyzer(Numbers(), metric_names=["x"], metric_functions=[digits], metric_types=["mean"])
    for function, problem in ((lambda batch: batch.flatten() / 2, "values of float32"), (lambda batch: torch.tensor([1]), "1 values for 7")):
        with pytest.raises(ConfigError, match=problem):
            DataAnalyzer(Numbers(), batch_size=7, metric_names=["x"], metric_functions=[function],
                         metric_types=["single_value_per_sample"], save_path=str(tmp_path)).run_map()
    with pytest.raises(Error):  # another worker has not run
        analyzer(tmp_path / "early", num_workers=2).run_reduce()


# The sampler, in an engine


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    analyzer(folder).run_map_reduce()
    return str(folder / "hard" / "hard_")


def metric(index, **more):
    return {"index_to_sample_path": index + "index_to_sample", "index_to_metric_path": index + "index_to_metric",
            "difficulty_type": "value", "clustering_type": "schedule_based", "min_difficulty": 4, "max_difficulty": 19,
            "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 6, "difficulty_step": 1}, **more}


def config(metrics, accumulation=1, **sampling):
    curriculum = {"enabled": bool(metrics), "curriculum_metrics": metrics}
    return {"train_batch_size": 12, "gradient_accumulation_steps": accumulation, "optimizer": {"type": "SGD", "params": {"lr": 1e-9}},
            "data_efficiency": {"enabled": True, "seed": 3,
                                "data_sampling": {"enabled": True, "curriculum_learning": curriculum, **sampling}}}


class Product(nn.Linear):
    def __init__(self):
        super().__init__(1, 1)

    def forward(self, x):
        return super().forward(x).mean()


def run(given, steps, folder=None, begin=False, functions=None):
    """The samples of each step, those of this rank."""
    model = Product()
    engine, _, loader, _ = deepspeed.initialize(model=model, config=given, model_parameters=model.parameters(), training_data=Numbers())
    seen = []
    if functions is not None:
        engine.set_custom_curriculum_learning_schedule(functions)
    engine.set_data_post_process_func(lambda data, state: (data, dict(state["current_difficulties"])))
    if begin:
        engine.load_checkpoint(folder)
    batches = iter(loader)
    for _ in range(steps):
        step = []
        for _ in range(engine.gradient_accumulation_steps()):
            data, told = next(batches)
            step += data.flatten().int().tolist()
            engine.backward(engine(data))
            engine.step()
        seen.append((step, told))
    if folder and not begin:
        engine.save_checkpoint(folder)
    engine.destroy()
    return seen


def together(per_rank):
    """The samples of all ranks in each step, and the difficulties."""
    return [(sorted(sum((step for step, _ in parts), [])), parts[0][1]) for parts in zip(*per_rank)]


def test_a_step_s_samples_are_those_that_its_difficulty_admits(index):
    seen = together(ranks.run(1, run, config({"hard": metric(index)}), 12))
    bounds = [6, 9, 11, 14, 16] + [19] * 7
    assert [told for _, told in seen] == [{"hard": bound} for bound in bounds]
    for (step, _), bound in zip(seen, bounds):
        assert len(step) == 12 and max(VALUES[step]) <= bound
    assert max(VALUES[sum((step for step, _ in seen), [])]) == 19
    plain = together(ranks.run(1, run, config({}), 5))
    assert sorted(sum((step for step, _ in plain), [])) == list(range(SAMPLES))  # without a curriculum: each once


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_goes_on_with_the_very_next_samples_on_any_number_of_ranks(index, tmp_path, workers):
    whole = together(ranks.run(1, run, config({"hard": metric(index)}), 9))
    cut = [together(ranks.run(2, run, config({"hard": metric(index)}, num_workers=workers), 3, str(tmp_path)))]
    cut.append(together(ranks.run(3, run, config({"hard": metric(index)}, accumulation=2, num_workers=workers), 6, str(tmp_path), True)))
    assert cut[0] + cut[1] == whole


def test_percentiles_several_metrics_and_functions(index):
    percent = metric(index, difficulty_type="percentile", min_difficulty=10, max_difficulty=100, index_to_metric_path=None,
                     index_to_sample_path=index + "index_to_sample_percentile_merged",
                     schedule_config={"total_curriculum_step": 4, "difficulty_step": 10})
    easiest = np.argsort(VALUES, kind="stable")
    for (step, told), share in zip(together(ranks.run(1, run, config({"hard": percent}), 4)), (30, 50, 70, 100)):
        assert told == {"hard": share} and set(step) <= set(easiest[:SAMPLES * share // 100].tolist())
    told_only = metric(index, clustering_type="single_cluster", index_to_sample_path="nowhere", min_difficulty=1,
                       schedule_type="custom")
    both = {"hard": metric(index), "length": told_only}
    seen = together(ranks.run(1, run, config(both), 2, None, False, {"length": lambda step: 5 * step}))
    assert [told for _, told in seen] == [{"hard": 6, "length": 5}, {"hard": 9, "length": 10}]
    assert max(VALUES[seen[0][0]]) <= 6


def test_the_loader_ends_after_its_epochs(index):
    def count():
        model = Product()
        given = config({"hard": metric(index)}, num_epochs=2)
        engine, _, loader, _ = deepspeed.initialize(model=model, config=given, model_parameters=model.parameters(), training_data=Numbers())
        return len(loader), sum(1 for _ in loader)

    assert ranks.run(1, count)[0] == (10, 10)


@pytest.mark.parametrize("change, problem", [
    ({"index_to_sample_path": "nowhere"}, "cannot read the index"),
    ({"index_to_metric_path": None}, "index_to_metric_path is missing"),
    ({"max_difficulty": 2}, "max_difficulty 2 is below min_difficulty 4"),
])
def test_what_cannot_work_is_said_before_the_first_step(index, change, problem):
    def made():
        with pytest.raises(Error, match=problem):
            run(config({"hard": metric(index, **change)}), 1)

    ranks.run(1, made)


def test_dynamic_batching_is_refused_by_name(index):
    def made():
        with pytest.raises(ConfigError, match="dynamic batching"):
            run(config({}, dynamic_batching={"enabled": True, "max_tokens": 10}), 1)

    ranks.run(1, made)
