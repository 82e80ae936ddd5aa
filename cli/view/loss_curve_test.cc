#include "cli/view/loss_curve.h"

#include <cmath>
#include <limits>

#include "cli/view/overfitting.h"
#include "gtest/gtest.h"

namespace megascale::cli {
namespace {

using Lines = std::vector<std::string>;

TEST(LossCurveTest, DrawsAFallInAscii) {
  std::vector<CurvePoint> points;
  for (int step = 1; step <= 10; ++step) points.push_back({step, 11.0 - step});
  EXPECT_EQ(DrawCurve(points, {10, 4, false}), (Lines{
                                                   "      10 +**",
                                                   "         |  ***",
                                                   "       4 +     ***",
                                                   "       1 +        **",
                                                   "         +----------",
                                                   "          1       10",
                                               }));
}

TEST(LossCurveTest, DrawsAFallInBraille) {
  std::vector<CurvePoint> points;
  for (int step = 0; step < 8; ++step) points.push_back({step, 7.0 - step});
  EXPECT_EQ(DrawCurve(points, {4, 2, true}), (Lines{
                                                 "       7 ┤⠑⢄",
                                                 "       0 ┤  ⠑⢄",
                                                 "         └────",
                                                 "          0  7",
                                             }));
}

TEST(LossCurveTest, BridgesGapsAndJoinsSteepSteps) {
  const Lines lines = DrawCurve({{0, 3}, {9, 0}}, {10, 4, false});
  EXPECT_EQ(lines[0], "       3 +**");
  EXPECT_EQ(lines[1], "         |  ***");
  EXPECT_EQ(lines[3], "       0 +        **");
  const Lines steep = DrawCurve({{0, 3}, {1, 0}}, {2, 4, false});
  EXPECT_EQ(steep[0], "       3 +*");
  EXPECT_EQ(steep[1], "         | *");
  EXPECT_EQ(steep[3], "       0 + *");
}

TEST(LossCurveTest, AveragesStepsThatShareAColumn) {
  std::vector<CurvePoint> points;
  for (int step = 0; step < 1000; ++step) points.push_back({step, step % 2 == 0 ? 1.0 : 3.0});
  const Lines lines = DrawCurve(points, {10, 3, false});
  EXPECT_EQ(lines[1], "       2 +**********");
}

TEST(LossCurveTest, OneValueIsALineInTheMiddle) {
  const Lines lines = DrawCurve({{5, 2.5}}, {6, 3, false});
  EXPECT_EQ(lines[0], "         |");
  EXPECT_EQ(lines[1], "     2.5 +*");
  EXPECT_EQ(lines[4], "          5    5");
}

TEST(LossCurveTest, DrawsASecondCurveInThePictureOfTheFirst) {
  std::vector<CurvePoint> points;
  for (int step = 1; step <= 10; ++step) points.push_back({step, 11.0 - step});
  CurveOptions options = {10, 4, false};
  options.second = {{3, 10}, {6, 7}, {10, 7}};
  EXPECT_EQ(DrawCurve(points, options), (Lines{
                                            "      10 +**o",
                                            "         |  ***o   o",
                                            "       4 +     ***",
                                            "       1 +        **",
                                            "         +----------",
                                            "          1       10",
                                        }));
  options.unicode = true;
  EXPECT_NE(DrawCurve(points, options)[0].find("○"), std::string::npos);
  options.second = {{3, 13}};  // the picture has room for both
  EXPECT_EQ(DrawCurve(points, options)[0].substr(0, 9), "      13 ");
}

TEST(OverfittingTest, SaysByHowMuchAndSinceWhen) {
  std::vector<CurvePoint> training;
  for (int step = 1; step <= 30; ++step) training.push_back({step, 4.0 - 0.1 * step});
  EXPECT_EQ(OverfittingText(training, {}, "byte"), "");
  EXPECT_EQ(OverfittingText(training, {{10, 3.5}, {20, 3.0}}, "byte"),
            "loss on held-out text 3.000 nats per byte after step 20, 0.550 more than on training "
            "text (2.450); it still falls");
  EXPECT_EQ(OverfittingText(training, {{10, 3.5}, {20, 3.0}, {30, 3.25}}, "token"),
            "loss on held-out text 3.250 nats per token after step 30, 1.800 more than on training "
            "text (1.450); it overfits: the lowest was 3.000 after step 20, and it has risen by "
            "0.250 since");
  EXPECT_EQ(OverfittingText(training, {{20, 3.0}, {30, 3.001}}, "token"),
            "loss on held-out text 3.001 nats per token after step 30, 1.551 more than on training "
            "text (1.450); it has not fallen since step 20");
}

TEST(LossCurveTest, LeavesOutWhatIsNotFinite) {
  EXPECT_EQ(DrawCurve({}, {}), Lines{"(no step was recorded)"});
  EXPECT_EQ(DrawCurve({{1, std::nan("")}}, {}), Lines{"(no step was recorded)"});
  const Lines lines =
      DrawCurve({{1, 1}, {2, std::numeric_limits<double>::infinity()}, {3, 0}}, {3, 2, false});
  EXPECT_EQ(lines[0], "       1 +*");
  EXPECT_EQ(lines[1], "       0 + **");
}

TEST(LossCurveTest, ClampsAbsurdSizes) {
  EXPECT_EQ(DrawCurve({{1, 1}, {2, 2}}, {0, -5, true}).size(), 4u);
}

}  // namespace
}  // namespace megascale::cli
