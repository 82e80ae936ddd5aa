#include "runtime/checkpoint/format/box.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "runtime/checkpoint/testing/test_random_boxes.h"

namespace megascale::checkpoint {
namespace {

constexpr uint32_t kNumTrials = 2000;

std::vector<int64_t> ElementsOfAll(const std::vector<Box>& boxes,
                                   const std::vector<int64_t>& tensor_shape) {
  std::vector<int64_t> all;
  for (const Box& box : boxes) {
    const std::vector<int64_t> elements = ElementsOf(box, tensor_shape);
    all.insert(all.end(), elements.begin(), elements.end());
  }
  return all;
}

TEST(BoxTest, AShapesElementsAreCountedOrItIsAbsurd) {
  EXPECT_EQ(NumElements({}).value(), 1);
  EXPECT_EQ(NumElements({3, 0, 4}).value(), 0);
  EXPECT_EQ(NumElements({3, -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(NumElements({int64_t{1} << 62, 2}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BoxTest, ABoxThatLeavesItsTensorIsRefusedWithTheDimension) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(CheckBox({{2, 1}, {3, 5}}, {5, 6}).ok());
  EXPECT_TRUE(CheckBox({{5, 0}, {0, 6}}, {5, 6}).ok());
  EXPECT_TRUE(CheckBox({}, {}).ok());
  for (const Box& box : {Box{{2, 1}, {3, 6}}, Box{{2, -1}, {3, 5}}, Box{{2, 1}, {3, -1}},
                         Box{{2, kLargest}, {3, 1}}, Box{{2, 1}, {3, kLargest}}}) {
    const absl::Status status = CheckBox(box, {5, 6});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StrContains(status.message(), "of dimension 1, which has 6")) << status;
  }
  for (const Box& box : {Box{{2}, {3, 5}}, Box{{2, 1}, {3}}, Box{}, Box{{0, 0, 0}, {1, 1, 1}}}) {
    EXPECT_TRUE(absl::StrContains(CheckBox(box, {5, 6}).message(), "the tensor's 2 dimensions"));
  }
}

TEST(BoxTest, ARangeIsAFewBoxesInItsOrder) {
  for (uint32_t seed = 0; seed < kNumTrials; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<int64_t> shape = random.Shape();
    const Box box = random.Part(WholeBox(shape));
    const int64_t begin = random.Below(CountOf(box.shape) + 1);
    const int64_t count = random.Below(CountOf(box.shape) - begin + 1);
    const std::vector<Box> boxes = BoxesOfRange(box, begin, count);
    const std::vector<int64_t> all = ElementsOf(box, shape);
    ASSERT_EQ(ElementsOfAll(boxes, shape),
              std::vector<int64_t>(all.begin() + begin, all.begin() + begin + count));
    ASSERT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size()) - (shape.empty() ? 0 : 1));
  }
}

TEST(BoxTest, WhatTwoBoxesShareAndWhatIsLeftOfOne) {
  int num_shared = 0;
  for (uint32_t seed = 0; seed < kNumTrials; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<int64_t> shape = random.Shape();
    const Box a = random.Part(WholeBox(shape));
    const Box b = random.Part(WholeBox(shape));
    const std::vector<int64_t> in_a = ElementsOf(a, shape), in_b = ElementsOf(b, shape);
    std::vector<int64_t> shared, left;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                          std::back_inserter(shared));
    std::set_difference(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                        std::back_inserter(left));
    const std::optional<Box> both = Intersect(a, b);
    ASSERT_EQ(both.has_value(), !shared.empty());
    if (!both) continue;
    ++num_shared;
    ASSERT_EQ(ElementsOf(*both, shape), shared);
    std::vector<Box> rest;
    Subtract(a, *both, &rest);
    std::vector<int64_t> found = ElementsOfAll(rest, shape);
    std::sort(found.begin(), found.end());
    ASSERT_EQ(found, left);
  }
  EXPECT_GT(num_shared, kNumTrials / 4);
}

TEST(BoxTest, RunsFollowEachOtherInBothBoxes) {
  for (uint32_t seed = 0; seed < kNumTrials; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<int64_t> shape = random.Shape();
    const Box from = random.Part(WholeBox(shape));
    const Box part = random.Part(from);
    Box to = part;  // a box around the part
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      to.offset[dim] = random.Below(part.offset[dim] + 1);
      const int64_t end = part.offset[dim] + part.shape[dim];
      to.shape[dim] = end + random.Below(shape[dim] - end + 1) - to.offset[dim];
    }
    const std::vector<int64_t> in_from = ElementsOf(from, shape), in_to = ElementsOf(to, shape);
    std::vector<int64_t> visited;
    ASSERT_TRUE(ForEachRun(part, from, to, [&](const BoxRun& run) {
                  for (int64_t k = 0; k < run.count; ++k) {
                    visited.push_back(in_from.at(static_cast<size_t>(run.from_begin + k)));
                    EXPECT_EQ(visited.back(), in_to.at(static_cast<size_t>(run.to_begin + k)));
                  }
                  return absl::OkStatus();
                }).ok());
    ASSERT_EQ(visited, ElementsOf(part, shape));
  }
}

TEST(BoxTest, WholeRowsAreOneRunAndAFailureEndsTheRuns) {
  int num_runs = 0;
  const auto count = [&num_runs](const BoxRun&) {
    ++num_runs;
    return absl::OkStatus();
  };
  const Box rows = {{1, 0, 0}, {2, 2, 3}};
  ASSERT_TRUE(ForEachRun(rows, rows, WholeBox({4, 2, 3}), count).ok());
  EXPECT_EQ(num_runs, 1);
  num_runs = 0;
  const Box columns = {{0, 0, 1}, {4, 2, 2}};
  ASSERT_TRUE(ForEachRun(columns, columns, WholeBox({4, 2, 3}), count).ok());
  EXPECT_EQ(num_runs, 8);
  num_runs = 0;
  const absl::Status status = ForEachRun(columns, columns, WholeBox({4, 2, 3}), [&](const BoxRun&) {
    return ++num_runs == 3 ? absl::DataLossError("third") : absl::OkStatus();
  });
  EXPECT_EQ(status.message(), "third");
  EXPECT_EQ(num_runs, 3);
}

// Counts for each element the boxes that contain it; returns the first one whose count is not 1.
std::optional<Coverage> CountCoverage(const std::vector<int64_t>& shape,
                                      const std::vector<Box>& boxes) {
  std::vector<size_t> times(static_cast<size_t>(CountOf(shape)), 0);
  for (const int64_t element : ElementsOfAll(boxes, shape)) ++times[static_cast<size_t>(element)];
  for (size_t i = 0; i < times.size(); ++i) {
    if (times[i] != 1) return Coverage{.element = static_cast<int64_t>(i), .num_boxes = times[i]};
  }
  return std::nullopt;
}

void ExpectCoverage(const std::vector<int64_t>& shape, const std::vector<Box>& boxes) {
  const auto expected = CountCoverage(shape, boxes);
  const auto found = FindBadCoverage(shape, boxes);
  ASSERT_EQ(found.has_value(), expected.has_value());
  if (!found) return;
  EXPECT_EQ(found->element, expected->element);
  EXPECT_EQ(found->num_boxes, expected->num_boxes);
}

TEST(BoxTest, TheFirstElementThatIsNotInExactlyOneBoxIsFound) {
  int num_bad = 0;
  for (uint32_t seed = 0; seed < kNumTrials; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const std::vector<int64_t> shape = random.Shape();
    std::vector<Box> boxes = random.Pieces(WholeBox(shape), static_cast<int>(random.Below(12)));
    ASSERT_FALSE(FindBadCoverage(shape, boxes).has_value());
    Box& changed = boxes[static_cast<size_t>(random.Below(static_cast<int64_t>(boxes.size())))];
    switch (random.Below(4)) {
      case 0:  // a hole
        changed = random.Part(changed);
        break;
      case 1:  // an overlap
        boxes.push_back(random.Part(WholeBox(shape)));
        break;
      case 2:  // both, perhaps
        changed = random.Part(WholeBox(shape));
        break;
      default:
        changed = boxes.back();
        boxes.pop_back();
    }
    ExpectCoverage(shape, boxes);
    num_bad += CountCoverage(shape, boxes).has_value();
  }
  EXPECT_GT(num_bad, kNumTrials / 2);
}

TEST(BoxTest, TensorsWithoutElementsOrDimensionsAreCoveredToo) {
  EXPECT_FALSE(FindBadCoverage({3, 0}, {}).has_value());
  EXPECT_FALSE(FindBadCoverage({0, 3}, {WholeBox({0, 3})}).has_value());
  EXPECT_FALSE(FindBadCoverage({}, {Box{}}).has_value());
  EXPECT_EQ(FindBadCoverage({}, {})->num_boxes, 0u);
  EXPECT_EQ(FindBadCoverage({}, {Box{}, Box{}})->num_boxes, 2u);
  EXPECT_FALSE(FindBadCoverage({4}, {Box{{2}, {0}}, WholeBox({4})}).has_value());
}

// 10^18 elements, in 8 column boxes of 128 flat ranges each: counting them would never end.
TEST(BoxTest, TheCostDoesNotGrowWithTheElements) {
  const std::vector<int64_t> shape = {1'000'000'007, 999'999'992};
  std::vector<Box> boxes;
  for (int64_t column = 0; column < 8; ++column) {
    const Box box = {{0, column * shape[1] / 8}, {shape[0], shape[1] / 8}};
    const int64_t elements = CountOf(box.shape);
    for (int64_t part = 0; part < 128; ++part) {
      const int64_t begin = elements / 128 * part;
      const int64_t end = part == 127 ? elements : elements / 128 * (part + 1);
      for (Box& piece : BoxesOfRange(box, begin, end - begin)) boxes.push_back(std::move(piece));
    }
  }
  EXPECT_FALSE(FindBadCoverage(shape, boxes).has_value());
  const auto last = std::max_element(
      boxes.begin(), boxes.end(), [](const Box& a, const Box& b) { return a.offset < b.offset; });
  const int64_t element = IndexWithin(WholeBox(shape), last->offset);
  boxes.erase(last);
  const auto bad = FindBadCoverage(shape, boxes);
  ASSERT_TRUE(bad.has_value());
  EXPECT_EQ(bad->element, element);
  EXPECT_EQ(bad->num_boxes, 0u);
}

}  // namespace
}  // namespace megascale::checkpoint
