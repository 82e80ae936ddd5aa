#include "cli/view/live_view.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "cli/view/terminal.h"
#include "runtime/model/config.h"

namespace megascale::cli {
namespace {

// The share of the rate of matrix products that models with a width of some hundreds or more reach.
constexpr double kShareOfCeiling = 0.5;
constexpr absl::Duration kShort = absl::Seconds(10);

}  // namespace

std::string TrainingTimeEstimate(const control::v1::Job& job) {
  const double rate = kShareOfCeiling * job.flops_ceiling();
  if (rate <= 0 || job.tokens_per_second() > 0 || IsTerminal(job.state())) return "";
  const auto config = model::MakeModelConfig(job.spec().model());
  if (!config.ok()) return "";  // of a newer driver
  const job::v1::TrainSpec& train = job.spec().train();
  const double steps_left = static_cast<double>(train.steps() - job.last_step());
  const double tokens_left =
      steps_left * static_cast<double>(train.global_batch_size()) * train.seq_length();
  const double flops = tokens_left * model::TrainFlopsPerToken(*config, train.seq_length());
  const absl::Duration time = absl::Seconds(flops / rate);
  return absl::StrFormat(
      "%s of training (estimate: half of %.0f GFLOP/s; measured steps tell better)",
      time < kShort ? "a few seconds" : absl::StrCat("about ", ShortDuration(time)),
      job.flops_ceiling() / 1e9);
}

}  // namespace megascale::cli
