#include "runtime/data/batches/batch_sequence.h"

#include <gtest/gtest.h>

#include <vector>

namespace megascale::data {
namespace {

TEST(BatchSequence, PutsTheBatchesOfAnEvaluationBehindThatOfItsStep) {
  const BatchSequence sequence({.first_step = 0, .last_step = 3, .interval = 2, .batches = 2});
  const std::vector<BatchPlace> expected = {{1, -1}, {2, -1}, {2, 0}, {2, 1},
                                            {3, -1}, {3, 0},  {3, 1}};
  ASSERT_EQ(sequence.size(), static_cast<int64_t>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(sequence.At(static_cast<int64_t>(i) + 1), expected[i]) << i;
  }
}

TEST(BatchSequence, IsThatOfTheStepsWithoutEvaluations) {
  const BatchSequence sequence({.first_step = 7, .last_step = 9, .interval = 0, .batches = 5});
  EXPECT_EQ(sequence.size(), 2);
  EXPECT_EQ(sequence.At(2), (BatchPlace{.step = 9}));
}

// Written out step by step.
std::vector<BatchPlace> Listed(const BatchSequence::Options& options) {
  std::vector<BatchPlace> all;
  for (int64_t step = options.first_step + 1; step <= options.last_step; ++step) {
    all.push_back({.step = step});
    const bool is_due =
        options.interval > 0 && (step % options.interval == 0 || step == options.last_step);
    for (int64_t batch = 0; is_due && batch < options.batches; ++batch)
      all.push_back({step, batch});
  }
  return all;
}

TEST(BatchSequence, IsTheListOfItsStepsWhereverItBegins) {
  for (int64_t first = 0; first <= 9; ++first) {
    for (int64_t last = first; last <= 11; ++last) {
      for (int64_t interval = 0; interval <= 5; ++interval) {
        for (int64_t batches = 0; batches <= 3; ++batches) {
          const BatchSequence::Options options = {first, last, interval, batches};
          const BatchSequence sequence(options);
          const std::vector<BatchPlace> expected = Listed(options);
          ASSERT_EQ(sequence.size(), static_cast<int64_t>(expected.size()));
          for (size_t i = 0; i < expected.size(); ++i) {
            ASSERT_EQ(sequence.At(static_cast<int64_t>(i) + 1), expected[i]);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace megascale::data
