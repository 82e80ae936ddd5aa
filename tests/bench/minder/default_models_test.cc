// The program's default models are what `megascale minder train` makes of the committed recording:
// the first metric's here, those of all metrics under `./dev soak`.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "cli/minder/job_series.h"
#include "runtime/base/fd.h"
#include "runtime/minder/model_file.h"
#include "runtime/minder/recording.h"
#include "runtime/minder/training.h"
#include "tests/soak.h"

namespace megascale::bench {
namespace {

constexpr char kRecording[] = "tests/bench/minder/calm-train.csv";
// Other processors and libraries round otherwise.
constexpr double kTolerance = 1e-3;

minder::Recording WithFirstMetrics(minder::Recording recording, size_t count) {
  recording.metrics.resize(count);
  for (minder::RecordedMachine& machine : recording.machines) machine.metrics.resize(count);
  return recording;
}

TEST(DefaultModelsTest, AreMadeFromTheCommittedRecording) {
  const minder::MinderModels& models = minder::DefaultModels();
  EXPECT_EQ(models.made_by,
            std::string("megascale minder train ") + kRecording + " --epochs 30 --seed 1");
  const auto text = base::ReadFile(kRecording, size_t{16} << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  auto recording = minder::ParseRecording(*text);
  ASSERT_TRUE(recording.ok()) << recording.status();
  ASSERT_EQ(recording->metrics.size(), models.metrics.size());
  const size_t count = IsSoak() ? models.metrics.size() : 1;
  const std::vector<minder::Recording> trained_on = {
      WithFirstMetrics(*std::move(recording), count)};
  const auto trained = minder::TrainModels(trained_on, cli::MachineMetrics());
  ASSERT_TRUE(trained.ok()) << trained.status();
  ASSERT_EQ(trained->metrics.size(), count);
  for (size_t m = 0; m < count; ++m) {
    EXPECT_EQ(trained->metrics[m].name, models.metrics[m].name);
    const std::vector<double>& weights = trained->metrics[m].model.weights();
    const std::vector<double>& expected = models.metrics[m].model.weights();
    ASSERT_EQ(weights.size(), expected.size());
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_NEAR(weights[i], expected[i], kTolerance)
          << models.metrics[m].name << ", weight " << i;
    }
  }
}

}  // namespace
}  // namespace megascale::bench
