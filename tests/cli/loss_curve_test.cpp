#include "capstan/cli/train/loss_curve.h"

#include <cmath>
#include <cstdio>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::cli::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(AxisMarks, AreRoundAndInside) {
  EXPECT_THAT(axis_marks(0, 100, 5), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(axis_marks(1.3, 3.1, 4), ElementsAre(1.5, 2, 2.5, 3));
  EXPECT_LE(axis_marks(0, 7, 8).size(), 9U);
  for (const double mark : axis_marks(-0.5, 0.5, 2)) EXPECT_FALSE(mark == 0 && std::signbit(mark));
}

TEST(CurvePage, DrawsBothCurvesAndEscapesText) {
  Curve curve;
  curve.title = "a <b> & \"c\"";
  curve.train = {{1, 5.5}, {2, 4.0}, {3, std::numeric_limits<double>::quiet_NaN()}, {4, 2.0}};
  curve.validation = {{2, 4.5}, {4, 2.5}};
  curve.facts = {{"speed", "1 < 2"}};
  curve.sample = "<script>";
  const std::string page = curve_page(curve);
  EXPECT_THAT(page, HasSubstr("<title>a &lt;b&gt; &amp; &quot;c&quot;</title>"));
  EXPECT_EQ(count(page, "<polyline"), 1U);
  EXPECT_EQ(count(page, "<circle"), 2U);
  EXPECT_THAT(page, Not(HasSubstr("nan")));
  EXPECT_THAT(page, Not(HasSubstr("<script>")));
  EXPECT_THAT(page, HasSubstr("1 &lt; 2"));
}

TEST(CurvePage, PutsTheHighestLossOnTopAndTheLastStepAtTheRight) {
  Curve curve;
  curve.train = {{0, 4}, {10, 2}};
  EXPECT_THAT(curve_page(curve), HasSubstr("points='54.0,12.0 454.0,274.0 '"));
}

// Every text, in pixels, where the page is 360 wide and has margins of 15.
TEST(CurvePage, IsReadableOnAPhone) {
  Curve curve;
  curve.train = {{0, 4}, {100000, 0.0005}};
  const std::string page = curve_page(curve);
  double width = 0;
  double text = 0;
  const std::size_t at = page.find("viewBox='");
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(std::sscanf(&page[at], "viewBox='0 0 %lf %*f' font-size='%lf'", &width, &text), 2);
  EXPECT_GE(text * 330 / width, 10);
  EXPECT_THAT(page, Not(HasSubstr("font-size:")));  // nothing else decides
}

TEST(CurvePage, MarksWholeStepsOnly) {
  Curve curve;
  curve.train = {{1, 4}, {2, 2}};
  const std::string page = curve_page(curve);
  EXPECT_EQ(count(page, "text-anchor='middle'>0.5<"), 0U);
  EXPECT_EQ(count(page, "text-anchor='middle'>1<"), 1U);
  EXPECT_EQ(count(page, "text-anchor='middle'>2<"), 1U);
}

TEST(CurvePage, StaysSmallForLongRunsAndWorksForNone) {
  Curve curve;
  for (int i = 1; i <= 200000; ++i) curve.train.push_back({static_cast<double>(i), 3.0});
  EXPECT_LT(curve_page(curve).size(), 100000U);
  EXPECT_THAT(curve_page({}), HasSubstr("</svg>"));
}

// A run that diverged, or a file that was changed by hand.
TEST(LossCurve, LossesBeyondAllMeasureEndInAPageToo) {
  for (const double loss : {1e300, -1e308, 1e17, 0.0, 1e-300}) {
    Curve curve;
    curve.train = {{1, loss}, {2, loss}, {9e18, loss}};
    EXPECT_NE(curve_page(curve), "");
    EXPECT_LE(axis_marks(loss, loss, 6).size(), 8U);
  }
  Curve both;
  both.train = {{1, 1e308}, {2, -1e308}};
  EXPECT_NE(curve_page(both), "");
}

}  // namespace
}  // namespace capstan::cli::train
