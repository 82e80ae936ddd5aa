#include "tests/bench/minder/task_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace megascale::minder {
namespace {

using ::testing::HasSubstr;

// Windows as they are need no model.
const std::vector<Variant>& WithoutModels() {
  static const std::vector<Variant> variants = {
      {"raw windows", {.embedding = Embedding::kRaw}},
      {"without continuity", {.embedding = Embedding::kRaw, .needs_continuity = false}}};
  return variants;
}

Comparison Compare(const TaskSet& set) {
  static const TaskModels models;
  Comparer comparer(set, WithoutModels(), models);
  while (!comparer.is_done()) comparer.Step();
  return comparer.result();
}

// Tasks of 4 to 24 machines; the fourth has no fault.
TEST(TaskSetTest, TheCountsOfTwoPartsAddUpToThoseOfTheWhole) {
  const Comparison whole = Compare({.seed = 1, .num_tasks = 6});
  const Comparison begin = Compare({.seed = 1, .num_tasks = 3});
  const Comparison end = Compare({.seed = 1, .first = 3, .num_tasks = 6});
  const auto sum = [](const SizedCounts& first, const SizedCounts& then) {
    Counts counts = first.all();
    counts.Add(then.all());
    return counts;
  };
  EXPECT_EQ(whole.ceiling.all().right + whole.ceiling.all().missed, 5) << "faults";
  EXPECT_EQ(sum(begin.ceiling, end.ceiling), whole.ceiling.all());
  for (size_t v = 0; v < WithoutModels().size(); ++v) {
    EXPECT_EQ(sum(begin.variants[v], end.variants[v]), whole.variants[v].all());
  }
  EXPECT_GT(whole.variants[0].all().right, 0);
  EXPECT_GT(whole.variants[1].all().wrong, 0);
}

TEST(TaskSetTest, ATaskIsTheSameWhateverIsSkipped) {
  const Task task = MakeTaskOf({.seed = 7, .num_tasks = 40}, 35);
  const Task again = MakeTaskOf({.seed = 7, .first = 30, .num_tasks = 40}, 35);
  EXPECT_EQ(task.metrics[0].machines.size(), 12u);
  EXPECT_EQ(again.metrics[0].machines, task.metrics[0].machines);
  EXPECT_EQ(again.faulty, task.faulty);
}

TEST(TaskSetTest, TheTablesHaveTheTasksTheRatesAndTheCounts) {
  Comparison comparison;
  comparison.set = {.seed = 700'000, .first = 112, .num_tasks = 160};
  comparison.ceiling = {.small = {.right = 21, .missed = 2}, .large = {.right = 10, .missed = 3}};
  comparison.variants = {{.small = {.right = 20, .wrong = 1, .missed = 3},
                          .large = {.right = 10, .wrong = 0, .missed = 3}}};
  const std::string text = FormatTables(comparison, {{"Minder", {}}});
  EXPECT_THAT(text, HasSubstr("tasks 113 to 160 of seed 700000, of 4 to 1,500 machines; 36 have a "
                              "fault, of which 5 show in no metric or end too soon\n"));
  EXPECT_THAT(text, HasSubstr("Minder                           0.968     0.833     0.896        "
                              "0.968      0.952      1.000\n"));
  EXPECT_THAT(text, HasSubstr("right, wrong, missed:                          all             "
                              "below 128              from 128\n"));
  EXPECT_THAT(text, HasSubstr("Minder                            30      1      6      20      1   "
                              "   3      10      0      3\n"));
}

}  // namespace
}  // namespace megascale::minder
