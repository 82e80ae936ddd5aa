// The learning rates of all steps are those of PyTorch's schedulers. schedules.json is the output
// of make_schedules.py.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "proto/job.pb.h"
#include "runtime/base/fd.h"
#include "runtime/optim/schedule.h"

namespace megascale {
namespace {

using json = nlohmann::json;

job::v1::Schedule ScheduleOf(const std::string& name) {
  if (name == "cosine") return job::v1::SCHEDULE_COSINE;
  if (name == "linear") return job::v1::SCHEDULE_LINEAR;
  return name == "wsd" ? job::v1::SCHEDULE_WSD : job::v1::SCHEDULE_CONSTANT;
}

job::v1::OptimizerSpec SpecOf(const json& golden, const json& one) {
  job::v1::OptimizerSpec spec;
  spec.set_lr(golden["lr"].get<double>());
  spec.set_min_lr(golden["min_lr"].get<double>());
  spec.set_warmup_steps(one["warmup_steps"].get<int64_t>());
  spec.set_decay_steps(one["decay_steps"].get<int64_t>());
  spec.set_schedule(ScheduleOf(one["schedule"].get<std::string>()));
  if (one["decay"] == "cosine") spec.set_decay(job::v1::DECAY_COSINE);
  if (one["decay"] == "linear") spec.set_decay(job::v1::DECAY_LINEAR);
  return spec;
}

TEST(SchedulesTest, EveryStepHasTheRateOfPyTorch) {
  const auto text = base::ReadFile("tests/golden/schedules.json", /*size_bytes_max=*/1 << 20);
  ASSERT_TRUE(text.ok()) << text.status();
  const json golden = json::parse(*text);
  ASSERT_EQ(golden["cases"].size(), 10u);
  for (const json& one : golden["cases"]) {
    const job::v1::OptimizerSpec spec = SpecOf(golden, one);
    const auto total = static_cast<int64_t>(one["rates"].size());
    ASSERT_EQ(total, 110);
    for (int64_t step = 1; step <= total; ++step) {
      const double expected = one["rates"][static_cast<size_t>(step - 1)].get<double>();
      EXPECT_NEAR(optim::LearningRate(spec, total, step), expected, 1e-12 * expected)
          << one["schedule"] << " " << one["decay"] << ", warm-up " << one["warmup_steps"]
          << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace megascale
