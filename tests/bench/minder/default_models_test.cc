// The program's default models are what `megascale minder train` makes of the committed recordings:
// the first metric's here, those of all metrics under `./dev soak`.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/minder/job_series.h"
#include "runtime/base/fd.h"
#include "runtime/minder/model_file.h"
#include "runtime/minder/recording.h"
#include "runtime/minder/training.h"
#include "tests/soak.h"

namespace megascale::bench {
namespace {

// The second has only the metrics that are newer than the first.
constexpr const char* kRecordings[] = {"tests/bench/minder/calm-train.csv",
                                       "tests/bench/minder/calm-collectives.csv"};
// Other processors and libraries round otherwise.
constexpr double kTolerance = 1e-3;

std::vector<minder::Recording> ReadRecordings() {
  std::vector<minder::Recording> recordings;
  for (const char* const path : kRecordings) {
    const auto text = base::ReadFile(path, size_t{16} << 20);
    EXPECT_TRUE(text.ok()) << text.status();
    auto recording = minder::ParseRecording(text.value_or(""));
    EXPECT_TRUE(recording.ok()) << recording.status();
    if (recording.ok()) recordings.push_back(*std::move(recording));
  }
  return recordings;
}

minder::Recording WithFirstMetrics(minder::Recording recording, size_t count) {
  recording.metrics.resize(count);
  for (minder::RecordedMachine& machine : recording.machines) machine.metrics.resize(count);
  return recording;
}

void ExpectEqual(const minder::MetricModel& trained, const minder::MetricModel& model) {
  EXPECT_EQ(trained.name, model.name);
  const std::vector<double>& weights = trained.model.weights();
  const std::vector<double>& expected = model.model.weights();
  ASSERT_EQ(weights.size(), expected.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    ASSERT_NEAR(weights[i], expected[i], kTolerance) << model.name << ", weight " << i;
  }
}

TEST(DefaultModelsTest, AreMadeFromTheCommittedRecordings) {
  const minder::MinderModels& models = minder::DefaultModels();
  EXPECT_EQ(models.made_by, absl::StrCat("megascale minder train ", kRecordings[0], " ",
                                         kRecordings[1], " --epochs 30 --seed 1"));
  std::vector<minder::Recording> recordings = ReadRecordings();
  ASSERT_EQ(recordings.size(), 2u);
  const size_t num_older = recordings[0].metrics.size();
  ASSERT_EQ(num_older + recordings[1].metrics.size(), models.metrics.size());
  ASSERT_EQ(cli::MachineMetrics().size(), models.metrics.size());
  const size_t count = IsSoak() ? num_older : 1;
  recordings[0] = WithFirstMetrics(std::move(recordings[0]), count);
  if (!IsSoak()) recordings.pop_back();
  const auto trained = minder::TrainModels(recordings, cli::MachineMetrics());
  ASSERT_TRUE(trained.ok()) << trained.status();
  ASSERT_EQ(trained->metrics.size(), IsSoak() ? models.metrics.size() : count);
  for (size_t m = 0; m < trained->metrics.size(); ++m) {
    ExpectEqual(trained->metrics[m], models.metrics[m]);
  }
}

}  // namespace
}  // namespace megascale::bench
