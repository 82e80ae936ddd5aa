#include "runtime/inference/sampling.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace megascale::inference {
namespace {

const std::vector<double> kLogits = {std::log(0.2), std::log(0.5), std::log(0.3)};

TEST(SamplingTest, ZeroTemperatureTakesTheLikeliest) {
  EXPECT_EQ(ChooseToken(kLogits, {0, 0}, 0.999), 1);
  EXPECT_EQ(ChooseToken({1.0, 1.0}, {0, 0}, 0.999), 0);
}

TEST(SamplingTest, SharesFollowTheProbabilities) {
  EXPECT_EQ(ChooseToken(kLogits, {1, 0}, 0.0), 1);
  EXPECT_EQ(ChooseToken(kLogits, {1, 0}, 0.49), 1);
  EXPECT_EQ(ChooseToken(kLogits, {1, 0}, 0.51), 2);
  EXPECT_EQ(ChooseToken(kLogits, {1, 0}, 0.79), 2);
  EXPECT_EQ(ChooseToken(kLogits, {1, 0}, 0.81), 0);
  EXPECT_EQ(ChooseToken(kLogits, {1, 0}, std::nextafter(1.0, 0.0)), 0);
}

TEST(SamplingTest, TopKLeavesTheRestOut) {
  EXPECT_EQ(ChooseToken(kLogits, {1, 1}, 0.999), 1);
  EXPECT_EQ(ChooseToken(kLogits, {1, 2}, 0.999), 2);
  EXPECT_EQ(ChooseToken(kLogits, {1, 9}, 0.999), 0);
}

TEST(SamplingTest, TopPKeepsTheFewestThatHaveItsShare) {
  for (const double uniform : {0.0, 0.4, 0.999}) {
    EXPECT_EQ(ChooseToken(kLogits, {1, 0, 0.4}, uniform), 1) << "0.5 alone has that";
    EXPECT_EQ(ChooseToken(kLogits, {1, 0, 1e-9}, uniform), 1) << "at least one";
  }
  EXPECT_EQ(ChooseToken(kLogits, {1, 0, 0.7}, 0.62), 1) << "0.5 of 0.8 together";
  EXPECT_EQ(ChooseToken(kLogits, {1, 0, 0.7}, 0.63), 2);
  EXPECT_EQ(ChooseToken(kLogits, {1, 0, 0.7}, 0.999), 2);
  EXPECT_EQ(ChooseToken(kLogits, {1, 0, 0.9}, 0.999), 0);
  // The first of the two most likely has 0.625 of their probability.
  EXPECT_EQ(ChooseToken(kLogits, {1, 2, 0.6}, 0.999), 1);
  EXPECT_EQ(ChooseToken(kLogits, {1, 2, 0.7}, 0.999), 2);
}

TEST(SamplingTest, LowTemperaturesSharpen) {
  EXPECT_EQ(ChooseToken(kLogits, {0.1, 0}, 0.98), 1);
  EXPECT_EQ(ChooseToken(kLogits, {100, 0}, 0.34), 2);
}

TEST(SamplingTest, NumbersAreTheSameForASeed) {
  UniformNumbers a(7), b(7), c(8);
  double sum = 0;
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const double value = a.Next();
    EXPECT_EQ(value, b.Next());
    differs = differs || value != c.Next();
    EXPECT_GE(value, 0);
    EXPECT_LT(value, 1);
    sum += value;
  }
  EXPECT_TRUE(differs);
  EXPECT_NEAR(sum / 1000, 0.5, 0.05);
}

}  // namespace
}  // namespace megascale::inference
