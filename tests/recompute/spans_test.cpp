#include "capstan/recompute/spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "capstan/base/error.h"

namespace capstan::recompute {
namespace {

using ::testing::ElementsAre;

TEST(CutIntoSpans, CoversAllBlocksInOrder) {
  EXPECT_THAT(cut_into_spans(3, std::nullopt), ElementsAre(Span{0, 1}, Span{1, 2}, Span{2, 3}));
  EXPECT_THAT(cut_into_spans(7, 3), ElementsAre(Span{0, 2}, Span{2, 4}, Span{4, 7}));
  EXPECT_THAT(cut_into_spans(2, 9), ElementsAre(Span{0, 1}, Span{1, 2}));
  EXPECT_TRUE(cut_into_spans(0, std::nullopt).empty());
}

TEST(SpansOf, HaveAsManyBlocksAsAskedForAndTheLastTheRest) {
  EXPECT_THAT(spans_of({.span_blocks = 2}, 5), ElementsAre(Span{0, 2}, Span{2, 4}, Span{4, 5}));
  EXPECT_THAT(spans_of({.checkpoint_count = 1}, 5), ElementsAre(Span{0, 5}));
}

TEST(CutIntoSpans, RefusesACountThatIsNotPositive) {
  EXPECT_THROW(cut_into_spans(3, 0), ConfigError);
}

}  // namespace
}  // namespace capstan::recompute
