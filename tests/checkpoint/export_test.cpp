// Our checkpoints in DeepSpeed's layout, read again by our own reader of that layout; that the real
// package reads them too is shown by test_deepspeed.py.
#include "capstan/checkpoint/deepspeed/export.h"

#include <cmath>
#include <cstring>
#include <map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/checkpoint/copy.h"
#include "capstan/checkpoint/deepspeed/archive_writer.h"
#include "capstan/checkpoint/deepspeed/import.h"
#include "capstan/checkpoint/deepspeed/torch_archive.h"
#include "capstan/checkpoint/folder.h"
#include "tests/checkpoint/trained_fixture.h"

namespace capstan::checkpoint {
namespace {

std::string bytes_of(Reader& reader, const std::string& column, const std::string& name) {
  const IndexTensor* const tensor = reader.find(column, name);
  if (tensor == nullptr) return "missing";
  std::string all;
  reader.read(*tensor, 0, tensor->spec.bytes(),
              [&](std::int64_t, std::span<const std::byte> bytes) {
                all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
              });
  return all;
}

TEST(Export, EveryStageAndNumberOfRanksComesBackBitForBit) {
  const test::TempFolder folder;
  Reader ours(save_trained(folder / "ours"));
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {1, 2, 3}) {
      const std::string what = fmt::format("stage {} on {} ranks", stage, ranks);
      const std::filesystem::path into = folder / fmt::format("theirs{}{}", stage, ranks);
      export_deepspeed(ours, into, {.stage = stage, .ranks = ranks});
      const auto found = find_deepspeed(into, "");
      ASSERT_TRUE(found.has_value()) << what;
      Reader theirs = open_reader(*found);
      for (const char* const name : {"a", "b"}) {
        EXPECT_EQ(bytes_of(ours, kMasterColumn, name), bytes_of(theirs, kModelColumn, name))
            << what;
        for (const char* const state : {"optimizer.exp_avg", "optimizer.exp_avg_sq"}) {
          EXPECT_EQ(bytes_of(ours, state, name), bytes_of(theirs, state, name)) << what;
        }
      }
      for (const char* const name : {"frozen", "offset"}) {
        EXPECT_EQ(bytes_of(ours, kModelColumn, name), bytes_of(theirs, kModelColumn, name)) << what;
      }
      const TrainingState& state = theirs.index().state;
      EXPECT_EQ(state.progress.at("steps"), 5) << what;
      EXPECT_EQ(state.progress.at("optimizer_steps"), 5) << what;
      EXPECT_EQ(state.optimizer_scalars.at("beta1"), 0.8) << what;
      EXPECT_EQ(state.precision.at("params"), "bf16") << what;
      EXPECT_EQ(state.aliases.at("head"), "a") << what;
      EXPECT_THAT(state.client_state, testing::HasSubstr("\"epoch\"")) << what;
    }
  }
}

TEST(Export, ADynamicLossScaleGoesAlongWithItsRules) {
  const test::TempFolder folder;
  SaveRequest request = trained_request(folder / "ours");
  request.state.precision = {{"params", "fp16"}};
  request.state.loss_scale = {{"scale", 4096},
                              {"steps", 9},
                              {"last_overflow", 6},
                              {"tolerance", 1},
                              {"skipped_in_a_row", 0},
                              {"factor", 2},
                              {"window_steps", 100},
                              {"hysteresis", 3},
                              {"consecutive_hysteresis", 1},
                              {"min_scale", 0.5}};
  Reader ours(save_trained(request));
  for (const int stage : {0, 1, 2, 3}) {
    const std::filesystem::path into = folder / fmt::format("theirs{}", stage);
    export_deepspeed(ours, into, {.stage = stage});
    std::map<std::string, double> expected = request.state.loss_scale;
    if (stage == 0) {  // its optimizer knows neither patience nor a minimum
      for (const char* const name : {"hysteresis", "consecutive_hysteresis", "min_scale"}) {
        expected.erase(name);
      }
      expected["tolerance"] = 0;
    }
    EXPECT_EQ(open_reader(into / "step5").index().state.loss_scale, expected) << "stage " << stage;
  }
}

TEST(Export, WhatAPythonEngineKeepsBesideTheClientsStateIsNotTold) {
  const test::TempFolder folder;
  SaveRequest request = trained_request(folder / "ours");
  request.state.client_state =
      R"({"deepspeed": {"counters": {}, "groups": [{"lr": 0.5}]}, "client": {"epoch": 3}})";
  Reader ours(save_trained(request));
  export_deepspeed(ours, folder / "theirs", {});
  const TrainingState state = open_reader(folder / "theirs/step5").index().state;
  EXPECT_THAT(state.client_state, testing::HasSubstr("\"epoch\": 3"));
  EXPECT_THAT(state.client_state, testing::Not(testing::HasSubstr("counters")));
}

TEST(Export, TensorsAndTuplesOfTheClientAreThatAgain) {
  const test::TempFolder folder;
  SaveRequest request = trained_request(folder / "ours");
  request.state.client_state = R"({"deepspeed": {"groups": []}, "client": {
      "ema": {"$tensor": "0: ema"}, "pair": {"$tuple": [1, {"$float": "inf"}]},
      "keys": {"$dict": [[7, "seven"]]}}})";
  std::vector<ColumnSpec> columns = trained_columns();
  columns.push_back({kClientColumn, {{"0: ema", Element::i64, {3}}}});
  Reader ours(save_trained(request, columns));
  export_deepspeed(ours, folder / "theirs", {});
  const TorchArchive archive(folder / "theirs/step5/mp_rank_00_model_states.pt");
  EXPECT_EQ(archive.root().find("pair")->kind, PyKind::tuple);
  EXPECT_EQ(archive.root().find("pair")->items.at(1)->number(), HUGE_VAL);
  EXPECT_EQ(archive.root().find("keys")->find(std::int64_t{7})->text, "seven");
  Reader theirs = open_reader(folder / "theirs/step5");
  EXPECT_EQ(bytes_of(theirs, kClientColumn, "ema"), bytes_of(ours, kClientColumn, "0: ema"));
}

// Not in the model's order, as users give them.
TEST(Export, SeveralGroupsComeBackWithTheirParametersAndNumbers) {
  const test::TempFolder folder;
  SaveRequest request = trained_request(folder / "ours");
  const std::map<std::string, double> shared = {{"beta1", 0.8}, {"beta2", 0.999}, {"eps", 1e-8}};
  request.state.param_groups = {{{"b"}, {{"lr", 0.5}, {"weight_decay", 0}}},
                                {{"a"}, {{"lr", 0.25}, {"weight_decay", 0.1}}}};
  for (ParamGroup& group : request.state.param_groups) {
    group.hyper.insert(shared.begin(), shared.end());
  }
  Reader ours(save_trained(request));
  EXPECT_EQ(ours.index().state.param_groups, request.state.param_groups);
  for (const int stage : {0, 1, 2, 3}) {
    for (const int ranks : {1, 3}) {
      const std::string what = fmt::format("stage {} on {} ranks", stage, ranks);
      const std::filesystem::path into = folder / fmt::format("theirs{}{}", stage, ranks);
      export_deepspeed(ours, into, {.stage = stage, .ranks = ranks});
      Reader theirs = open_reader(into / "step5");
      EXPECT_EQ(theirs.index().state.param_groups, request.state.param_groups) << what;
      for (const char* const name : {"a", "b"}) {
        EXPECT_EQ(bytes_of(ours, kMasterColumn, name), bytes_of(theirs, kModelColumn, name))
            << what;
        for (const char* const state : {"optimizer.exp_avg", "optimizer.exp_avg_sq"}) {
          EXPECT_EQ(bytes_of(ours, state, name), bytes_of(theirs, state, name)) << what;
        }
      }
    }
  }
}

// Their files at stage 0 have no names.
TEST(Import, GroupsThatOnlyNamesTellApartAreRefused) {
  const test::TempFolder folder;
  SaveRequest request = trained_request(folder / "ours");
  request.state.param_groups = {{{"c"}, {}}, {{"a", "b"}, {}}};
  std::vector<ColumnSpec> columns = trained_columns();
  for (ColumnSpec& column : columns) {
    column.tensors.push_back({"c", column.tensors.front().element, {13}});
  }
  Reader ours(save_trained(request, columns));
  export_deepspeed(ours, folder / "theirs", {.stage = 0});
  EXPECT_THAT(error_text([&] { open_reader(folder / "theirs/step5"); }),
              testing::HasSubstr("two groups have parameters of shape [13]"));
}

TEST(Import, AMissingRankOrAShortFileIsTold) {
  const test::TempFolder folder;
  Reader ours(save_trained(folder / "ours"));
  for (const int stage : {2, 3}) {
    const std::filesystem::path into = folder / fmt::format("theirs{}", stage);
    export_deepspeed(ours, into, {.stage = stage, .ranks = 3});
    const std::filesystem::path file =
        into / "step5" / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt";
    std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
    EXPECT_THAT(error_text([&] { open_reader(into / "step5"); }),
                testing::HasSubstr(file.filename().string()));
    std::filesystem::remove(file);
    EXPECT_THAT(error_text([&] { open_reader(into / "step5"); }),
                testing::HasSubstr("3 ranks saved, but there are 2 *_optim_states.pt"));
  }
}

// As DeepSpeed's fused optimizers write it at stage 0: one tensor for all masters.
TEST(Import, FlatMastersOfAFusedOptimizerAreCutByTheModulesOrder) {
  const test::TempFolder folder;
  ArchiveWriter archive;
  const auto tensor = [&](Element element, std::vector<std::int64_t> shape) {
    return archive.tensor(element, std::move(shape),
                          [](std::int64_t begin, std::span<std::byte> into) {
                            for (std::size_t i = 0; i < into.size(); ++i) {
                              into[i] = test_byte(begin + static_cast<std::int64_t>(i), 5);
                            }
                          });
  };
  const PyRef state = py_dict({{py_text("step"), archive.scalar(4)},
                               {py_text("exp_avg"), tensor(Element::f32, {10})},
                               {py_text("exp_avg_sq"), tensor(Element::f32, {10})}});
  const PyRef adam = py_dict({{py_text("state"), py_dict({{py_int(0), state}})},
                              {py_text("param_groups"), py_list({py_dict({})})}});
  const PyRef root =
      py_dict({{py_text("module"), py_dict({{py_text("a"), tensor(Element::bf16, {2, 3})},
                                            {py_text("offset"), tensor(Element::f32, {9})},
                                            {py_text("b"), tensor(Element::bf16, {4})}})},
               {py_text("buffer_names"), py_list({py_text("offset")})},
               {py_text("global_steps"), py_int(4)},
               {py_text("optimizer"),
                py_dict({{py_text("optimizer_state_dict"), adam},
                         {py_text("fp32_groups_flat"), py_list({tensor(Element::f32, {10})})}})}});
  archive.write(folder / "mp_rank_00_model_states.pt", *root);
  Reader reader = open_reader(folder.path());
  const std::string b = bytes_of(reader, kModelColumn, "b");
  ASSERT_EQ(b.size(), 16U);
  EXPECT_EQ(std::byte(b.front()), test_byte(24, 5));
  EXPECT_EQ(bytes_of(reader, "optimizer.exp_avg_sq", "b"), b);
  EXPECT_EQ(reader.index().state.progress.at("optimizer_steps"), 4);
}

TEST(Export, WithoutAnOptimizerIsRefused) {
  const test::TempFolder folder;
  Reader weights(save({.folder = folder.path()}).folder);
  EXPECT_THAT(error_text([&] { export_deepspeed(weights, folder / "theirs", {}); }),
              testing::HasSubstr("export a checkpoint that was saved with its optimizer"));
}

TEST(Copy, IsTheSameUnderAnotherNameAndNeverTheNewest) {
  const test::TempFolder folder;
  Reader first(save({.folder = folder.path(), .tag = "first", .version = 4}).folder);
  copy_checkpoint(first, {folder.path(), "copy", /*latest=*/false});
  EXPECT_TRUE(holds_version(folder / "copy", 4));
  EXPECT_EQ(Reader(folder / "copy").read_extra_file("config.json"), "{}\n");
  EXPECT_EQ(newest_complete(folder.path())->tag, "first");
}

TEST(Export, MarksWithoutTheirValuesAreRefused) {
  for (const char* const mark : {R"({"$float": 3})", R"({"$tensor": null})", R"({"$dict": [[1]]})",
                                 R"({"$tuple": "x"})", R"({"$counter": [7]})"}) {
    const test::TempFolder folder;
    SaveRequest request = trained_request(folder.path());
    request.state.client_state = fmt::format(R"({{"a": {}}})", mark);
    Reader reader(save_trained(request));
    EXPECT_THAT(error_text([&] { export_deepspeed(reader, folder / "theirs", {}); }),
                testing::HasSubstr("does not stand before what it marks"))
        << mark;
  }
}

}  // namespace
}  // namespace capstan::checkpoint
