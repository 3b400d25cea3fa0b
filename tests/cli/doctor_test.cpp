// What `capstan doctor` finds in what a run left: values in, findings out.
#include <cmath>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/cli/doctor/judge.h"
#include "capstan/json/reader.h"
#include "capstan/json/writer.h"

namespace capstan::cli::doctor {
namespace {

using profile::OpTime;
using profile::RankNotes;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// Ranks that trained for 100 s, each of them waiting for so many of these.
Evidence ranks_that_waited(const std::vector<double>& seconds) {
  Evidence evidence;
  for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
    RankNotes notes{.rank = static_cast<int>(rank),
                    .world_size = static_cast<int>(seconds.size()),
                    .state = "closed",
                    .seconds = 100,
                    .steps = 50};
    notes.times = {{.kind = "phase", .name = "forward", .seconds = 30},
                   {.kind = "wait", .name = "reduce_scatter", .seconds = seconds[rank]}};
    evidence.ranks.push_back(notes);
  }
  return evidence;
}

JobRecord failed_job(int first, launch::Ending ending) {
  JobRecord job{.command = "train.py",
                .exit_code = ending.code(),
                .first_failed_rank = first,
                .sentence = "it failed",
                .ranks = std::vector<RankEnd>(2)};
  job.ranks[static_cast<std::size_t>(first)] = {ending, 10.5, {"what it said"}};
  job.ranks[static_cast<std::size_t>(1 - first)] = {{.exit_code = 3}, 12.0, {"connection lost"}};
  return job;
}

std::vector<StepLine> steps_with(std::size_t count, double loss, double speed = 1000) {
  std::vector<StepLine> steps;
  for (std::size_t i = 1; i <= count; ++i) {
    steps.push_back({.step = static_cast<std::int64_t>(i),
                     .loss = loss,
                     .grad_norm = 1,
                     .skipped = false,
                     .tokens_per_s = speed});
  }
  return steps;
}

TEST(Doctor, FindsNothingInAGoodRun) {
  Evidence evidence = ranks_that_waited({5, 6, 4});
  evidence.steps = steps_with(200, 3);
  evidence.job = JobRecord{.ranks = std::vector<RankEnd>(3)};
  EXPECT_THAT(judge(evidence), IsEmpty());
  EXPECT_THAT(judge(Evidence{}), IsEmpty());
}

TEST(Doctor, NamesTheRankThatWasKilledAndWhoFollowed) {
  Evidence evidence;
  evidence.job = failed_job(1, {.signal = SIGKILL});
  const Findings found = judge(evidence);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].weight, Weight::cause);
  EXPECT_THAT(found[0].what, HasSubstr("rank 1 stopped first: it was killed from outside"));
  EXPECT_THAT(found[0].evidence,
              testing::ElementsAre("[rank 1] what it said",
                                   "rank 0 ended 1.5 s later: it exited with code 3"));
}

TEST(Doctor, SaysWhatToDoAboutHostMemory) {
  Evidence evidence;
  evidence.job = failed_job(0, {.signal = SIGKILL, .out_of_memory = true});
  EXPECT_THAT(who_stopped_first(evidence).at(0).advice, HasSubstr("use less host memory"));
  evidence.job = JobRecord{.ranks = std::vector<RankEnd>(2), .memory_limit_bytes = 1000};
  for (RankEnd& rank : evidence.job->ranks) rank.ending.peak_rss_bytes = 460;
  EXPECT_THAT(how_full_the_host_is(evidence).at(0).what, HasSubstr("920 B of 1000 B"));
  evidence.job->ranks[0].ending.peak_rss_bytes = 300;
  EXPECT_THAT(how_full_the_host_is(evidence), IsEmpty());
}

TEST(Doctor, NamesTheSlowRankAndWhatItSpentItsTimeOn) {
  Evidence evidence = ranks_that_waited({40, 42, 2, 41});
  Findings found = who_is_slow(evidence);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("rank 2 is slow: the others waited 39 %"));
  EXPECT_THAT(found[0].evidence.at(0), HasSubstr("reduce_scatter"));
  evidence.ranks[2].times[0].seconds += 38;
  EXPECT_THAT(who_is_slow(evidence).at(0).evidence.at(1),
              HasSubstr("rank 2 spent 38.00 s more than the others on its forward"));
  evidence.ranks[2].times.push_back({.kind = "wait", .name = "disk", .seconds = 30});
  EXPECT_THAT(who_is_slow(evidence).at(0).evidence.at(1), HasSubstr("waiting for the disk"));
}

TEST(Doctor, DoesNotCallARankSlowForLittle) {
  EXPECT_THAT(who_is_slow(ranks_that_waited({10, 1})), IsEmpty());
  EXPECT_THAT(who_is_slow(ranks_that_waited({90})), IsEmpty());
}

TEST(Doctor, TellsHowLongTheDiskWasWaitedFor) {
  Evidence evidence = ranks_that_waited({1, 1});
  evidence.ranks[1].times.push_back({.kind = "wait", .name = "disk", .seconds = 60});
  evidence.ranks[1].times.push_back({.kind = "io", .name = "read", .bytes = 2048});
  const Findings found = how_slow_disks_are(evidence);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("rank 1 waited 60 % of the time"));
  EXPECT_THAT(found[0].evidence.at(0), HasSubstr("; 2 KiB"));
  evidence.ranks[1].times.back() = {.kind = "io", .name = "save", .seconds = 30};
  EXPECT_THAT(how_slow_disks_are(evidence), SizeIs(2));
}

TEST(Doctor, NamesTheFirstOutputThatIsNotFinite) {
  Evidence evidence = ranks_that_waited({1, 1});
  evidence.ranks[0].not_finite = {"step 8: the summed gradient of a.weight"};
  Findings found = what_was_not_finite(evidence);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("the summed gradient of a.weight is inf or NaN"));
  EXPECT_THAT(found[0].advice, HasSubstr("find_nan"));
  evidence.ranks[0].not_finite.insert(evidence.ranks[0].not_finite.begin(),
                                      "step 8: the output of h.2");
  evidence.ranks[1].not_finite = {"step 7: the output of h.3"};
  found = what_was_not_finite(evidence);
  EXPECT_EQ(found.at(0).what, "the output of h.3 is inf or NaN, first in step 7 on rank 1");
}

TEST(Doctor, FindsCopiesOfParametersThatDiffer) {
  Evidence evidence = ranks_that_waited({1, 1, 1});
  for (RankNotes& notes : evidence.ranks) {
    notes.fingerprints = {{.step = 4, .units = {{"a", 1}, {"b", 2}}}};
  }
  EXPECT_THAT(whose_parameters_differ(evidence), IsEmpty());
  evidence.ranks[2].fingerprints[0].units[1].second = 3;
  EXPECT_THAT(whose_parameters_differ(evidence).at(0).what,
              HasSubstr("ranks 0 and 2 trained different models: after step 4 their parameters of "
                        "'b' differ"));
  evidence.ranks[2].model_part = 1;  // of another part of the model
  EXPECT_THAT(whose_parameters_differ(evidence), IsEmpty());
}

TEST(Doctor, FindsRanksThatCallDifferentCollectivesOrDoNotCome) {
  Evidence evidence;
  evidence.job = failed_job(0, {.exit_code = 1});
  evidence.job->ranks[0].last_lines = {
      "CommError: rank 0: all_gather of 8 fp32 did not finish within 5.0 s"};
  Findings found = who_went_another_way(evidence);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("rank 1 did not come to a collective"));
  evidence.job->ranks[1].last_lines = {"rank 0 and 1 gather different units (b, c)"};
  EXPECT_THAT(who_went_another_way(evidence).at(0).what, HasSubstr("different collectives"));
}

TEST(Doctor, FindsSpikesRisesAndTheEndOfALoss) {
  Evidence evidence;
  evidence.steps = steps_with(100, 3);
  evidence.steps[60].loss = 6.2;
  Findings found = how_the_loss_went(evidence);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_THAT(found[0].what, HasSubstr("jumped up in 1 step"));
  EXPECT_THAT(found[0].evidence.at(0), HasSubstr("step 61: 6.2"));
  evidence.steps = steps_with(100, 3);
  for (std::size_t i = 50; i < 100; ++i) {
    evidence.steps[i].loss = 3 + 0.03 * static_cast<double>(i - 50);
  }
  EXPECT_THAT(how_the_loss_went(evidence).at(0).what, HasSubstr("the loss rose again"));
  evidence.steps[70].loss = std::nullopt;
  EXPECT_THAT(how_the_loss_went(evidence).at(0).what, HasSubstr("inf or NaN from step 71 on"));
}

TEST(Doctor, CountsSkippedStepsAndSlowdowns) {
  Evidence evidence;
  evidence.steps = steps_with(100, 3);
  evidence.steps[0].skipped = true;
  EXPECT_EQ(what_was_skipped(evidence).at(0).weight, Weight::remark);
  for (std::size_t i = 0; i < 30; ++i) evidence.steps[i].skipped = true;
  EXPECT_EQ(what_was_skipped(evidence).at(0).weight, Weight::suspicion);
  EXPECT_THAT(how_the_speed_went(evidence), IsEmpty());
  for (std::size_t i = 60; i < 100; ++i) evidence.steps[i].tokens_per_s = 500;
  EXPECT_THAT(how_the_speed_went(evidence).at(0).what, HasSubstr("training became slower"));
}

TEST(RankNotes, AreReadAsTheyWereWritten) {
  RankNotes notes{.rank = 3, .world_size = 4, .model_part = 1, .state = "failed", .error = "a\nb"};
  notes.times = {{"wait", "all_gather", 7, 1.25, 0.5, 4096}};
  notes.memory_peaks = {{"device parameters", 123}};
  notes.not_finite = {"step 1: the output of x"};
  notes.fingerprints = {{.step = 2, .units = {{"u", -5}}}};
  const std::string text = json::write(to_json(notes));
  const auto read = profile::notes_from_json(json::read(text, "test"));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(json::write(to_json(*read)), text);
  EXPECT_FALSE(profile::notes_from_json(json::read("{}", "test")).has_value());
  EXPECT_FALSE(profile::notes_from_json(json::read("[1]", "test")).has_value());
}

TEST(JobRecord, IsReadAsItWasWritten) {
  JobRecord job = failed_job(1, {.signal = 9, .peak_rss_bytes = 77, .out_of_memory = true});
  const std::string text = json::write(to_json(job));
  const auto read = record_from_json(json::read(text, "test"));
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(json::write(to_json(*read)), text);
  EXPECT_FALSE(record_from_json(json::read("{\"capstan_job\": 2}", "test")).has_value());
}

}  // namespace
}  // namespace capstan::cli::doctor
