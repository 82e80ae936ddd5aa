// Runs two seeds; `./dev soak` runs many. For other seeds:
//   ./dev chaos --seed S --faults N --set FIELD=VALUE
#include <gtest/gtest.h>

#include <cstdio>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/chaos/chaos_run.h"
#include "tests/soak.h"

namespace megascale::chaos {
namespace {

constexpr uint64_t kSeeds = 2;

// Every layout has data 2 x pipeline 2 unless its fields say otherwise.
const std::vector<std::string> kLayouts[] = {
    {"parallel.pipeline_schedule=1f1b"},
    {"parallel.virtual_pipeline_model_parallel_size=2", "parallel.zero_stage=2"},
    {"parallel.pipeline_schedule=zb_h1", "parallel.zero_stage=2", "parallel.ddp_bucket_size=1",
     "optimizer.type=lamb"},
    {"parallel.data_parallel_size=1", "parallel.tensor_model_parallel_size=2"}};

class ChaosTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  // Shared by all seeds with one layout, which one shard of the test runs.
  static CalmRun* CalmRunOf(const ChaosJob& job) {
    static auto* const runs = new std::map<std::vector<std::string>, CalmRun>();
    return &runs->try_emplace(job.fields, job, IsSoak()).first->second;
  }
};

TEST_P(ChaosTest, TheJobHasTheBitsOfTheCalmRun) {
  const std::vector<std::string>& layout = kLayouts[GetParam() % std::size(kLayouts)];
  const ChaosJob job = {.fields = layout};
  const std::string again = absl::StrCat("--seed ", GetParam(), " --faults ", kFaultsPerSeed,
                                         " --set ", absl::StrJoin(layout, " --set "));
  std::printf("seed %d; again: ./dev chaos %s\n", static_cast<int>(GetParam()), again.c_str());
  const auto say = [](const std::string& line) { std::printf("  %s\n", line.c_str()); };
  const Report report = ChaosRun(GetParam(), job, say).Run(kFaultsPerSeed, CalmRunOf(job));
  for (const std::string& problem : report.problems) ADD_FAILURE() << problem;
}

INSTANTIATE_TEST_SUITE_P(Seeds, ChaosTest,
                         ::testing::Range<uint64_t>(1, 1 + (IsSoak() ? kSoakSeeds : kSeeds)));

}  // namespace
}  // namespace megascale::chaos
