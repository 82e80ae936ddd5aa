#include "runtime/timeline/timeline_svg.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/timeline/testing/test_two_stages.h"

namespace megascale::timeline {
namespace {

using plan::RankPlan;

TEST(TimelineSvgTest, DrawsEveryPassWithinTheStep) {
  const std::vector<RankPlan> plans = TwoStages();
  const StepTime time = Time(plans);
  const std::string svg = TimelineSvg(plans, time, "a < b & c");
  EXPECT_TRUE(absl::StrContains(svg, "a &lt; b &amp; c"));
  for (const char* what : {"stage 0", "stage 1", "F.c0.m2", "B.c1.m1", "RG.c0.m0 waits"}) {
    EXPECT_TRUE(absl::StrContains(svg, what)) << what;
  }
  EXPECT_EQ(svg, TimelineSvg(plans, time, "a < b & c"));
  // No bar begins left of the axis or ends right of it.
  for (size_t at = svg.find("<rect x=\""); at != std::string::npos;
       at = svg.find("<rect x=\"", at + 1)) {
    const double x = std::stod(svg.substr(at + 9));
    EXPECT_GE(x, 110);
    EXPECT_LE(x + std::stod(svg.substr(svg.find("width=\"", at) + 7)), 110 + 1400 + 0.01);
  }
}

TEST(TimelineSvgTest, DrawsTheBeginningOfAStepUnderTheGivenNames) {
  const std::vector<RankPlan> plans = TwoStages();
  const Beginning beginning = BeginningOf(Time(plans), 14);
  const std::vector<std::string> names = {"one", "other"};
  const std::string svg = TimelineSvg(plans, beginning.time, "title", names);
  for (const char* what : {">one<", ">other<", "F.c0.m0"}) {
    EXPECT_TRUE(absl::StrContains(svg, what)) << what;
  }
  EXPECT_FALSE(absl::StrContains(svg, "stage 0"));
  EXPECT_FALSE(absl::StrContains(svg, "B.c0.m2"));
  for (size_t at = svg.find("<rect x=\""); at != std::string::npos;
       at = svg.find("<rect x=\"", at + 1)) {
    const double width = std::stod(svg.substr(svg.find("width=\"", at) + 7));
    EXPECT_LE(std::stod(svg.substr(at + 9)) + width, 110 + 1400 + 0.01);
  }
}

}  // namespace
}  // namespace megascale::timeline
