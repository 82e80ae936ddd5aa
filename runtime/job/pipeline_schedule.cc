#include "runtime/job/pipeline_schedule.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/check.h"
#include "runtime/job/job_spec.h"

namespace megascale::job {
namespace {

constexpr std::pair<v1::PipelineSchedule, plan::Schedule> kSchedules[] = {
    {v1::PIPELINE_SCHEDULE_1F1B, plan::Schedule::k1F1B},
    {v1::PIPELINE_SCHEDULE_GPIPE, plan::Schedule::kGPipe},
    {v1::PIPELINE_SCHEDULE_INTERLEAVED_1F1B, plan::Schedule::kInterleaved1F1B},
    {v1::PIPELINE_SCHEDULE_ZB_H1, plan::Schedule::kZeroBubbleH1},
};

absl::string_view FieldOf(plan::ScheduleMisfit::Option option) {
  using Option = plan::ScheduleMisfit::Option;
  switch (option) {
    case Option::kSchedule:
      return "parallel.pipeline_schedule";
    case Option::kNumStages:
      return "parallel.pipeline_model_parallel_size";
    case Option::kChunksPerStage:
      return "parallel.virtual_pipeline_model_parallel_size";
    case Option::kNumMicrobatches:
      return "train.global_batch_size";
  }
  return "parallel";
}

}  // namespace

plan::ScheduleOptions ScheduleOf(const v1::JobSpec& spec) {
  const v1::ParallelSpec& parallel = spec.parallel();
  const auto* const named = std::find_if(
      std::begin(kSchedules), std::end(kSchedules),
      [&](const auto& schedule) { return schedule.first == parallel.pipeline_schedule(); });
  MEGASCALE_CHECK(named != std::end(kSchedules));
  return {.schedule = named->second,
          .num_stages = parallel.pipeline_model_parallel_size(),
          .chunks_per_stage = parallel.virtual_pipeline_model_parallel_size(),
          .num_microbatches = NumMicrobatches(spec)};
}

v1::PipelineSchedule DefaultSchedule(int chunks_per_stage) {
  const auto* const named =
      std::find_if(std::begin(kSchedules), std::end(kSchedules), [&](const auto& schedule) {
        return schedule.second == plan::DefaultSchedule(chunks_per_stage);
      });
  MEGASCALE_CHECK(named != std::end(kSchedules));
  return named->first;
}

absl::Status CheckSchedule(const v1::JobSpec& spec) {
  const plan::ScheduleOptions options = ScheduleOf(spec);
  const std::optional<plan::ScheduleMisfit> misfit = plan::FindMisfit(options);
  if (!misfit) return absl::OkStatus();
  const v1::TrainSpec& train = spec.train();
  const std::string sum =
      misfit->option == plan::ScheduleMisfit::Option::kNumMicrobatches
          ? absl::StrCat("global_batch_size / (data × micro_batch_size) = ",
                         train.global_batch_size(), " / (", spec.parallel().data_parallel_size(),
                         " × ", train.micro_batch_size(), ") = ", options.num_microbatches)
          : absl::StrCat("pipeline × virtual stages = ", options.num_stages, " × ",
                         options.chunks_per_stage);
  return absl::InvalidArgumentError(
      absl::StrCat(FieldOf(misfit->option), ": ", misfit->why, " (", sum, ")"));
}

}  // namespace megascale::job
