#include "runtime/engine/state/resume.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/optim/schedule.h"

namespace megascale::engine {
namespace {

using checkpoint::v1::Manifest;

constexpr char kOptimizer[] = "optimizer";

template <typename Value>
std::string WasAndIs(absl::string_view field, const Value& was, const Value& is) {
  return absl::StrCat(field, " was ", was, ", is ", is);
}

// Returns "wsd"; the default is cosine.
std::string NameOf(job::v1::Schedule schedule) {
  if (schedule == job::v1::SCHEDULE_UNSPECIFIED) schedule = job::v1::SCHEDULE_COSINE;
  return absl::AsciiStrToLower(absl::StripPrefix(job::v1::Schedule_Name(schedule), "SCHEDULE_"));
}

std::string Describe(const optim::RateChange& change, const job::v1::JobSpec& before,
                     const job::v1::JobSpec& now) {
  std::string was = absl::StrFormat("%.4g", change.was);
  std::string is = absl::StrFormat("%.4g", change.is);
  if (was == is) {
    was = absl::StrFormat("%.17g", change.was);
    is = absl::StrFormat("%.17g", change.is);
  }
  std::string text = WasAndIs(absl::StrCat("the learning rate of step ", change.step), was, is);
  std::vector<std::string> why;
  if (before.train().steps() != now.train().steps()) {
    why.push_back(WasAndIs("train.steps", before.train().steps(), now.train().steps()));
  }
  const job::v1::OptimizerSpec& was_of = before.optimizer();
  const job::v1::OptimizerSpec& is_of = now.optimizer();
  if (NameOf(was_of.schedule()) != NameOf(is_of.schedule())) {
    why.push_back(
        WasAndIs("optimizer.schedule", NameOf(was_of.schedule()), NameOf(is_of.schedule())));
  }
  const int64_t decay_was = optim::DecaySteps(was_of, before.train().steps());
  const int64_t decay_is = optim::DecaySteps(is_of, now.train().steps());
  if (is_of.schedule() == job::v1::SCHEDULE_WSD && decay_was != decay_is) {
    why.push_back(WasAndIs("optimizer.decay_steps", decay_was, decay_is));
  }
  if (!why.empty()) absl::StrAppend(&text, " (", absl::StrJoin(why, "; "), ")");
  return text;
}

// Compares the learning rates with those that the checkpoint's job would have had. The next step's
// changes only where the user allows it: the rates follow also from train.steps and the form of the
// schedule, which are no part of the numerics. A change of later ones, such as a later decay, is
// said.
absl::Status CheckRates(const Manifest& manifest, const ResumingJob& job, ResumePlace* place) {
  const job::v1::JobSpec& before = manifest.spec();
  if (!before.has_train()) return absl::OkStatus();
  const std::optional<optim::RateChange> change =
      optim::FirstRateChange({&before.optimizer(), before.train().steps()},
                             {&job.spec->optimizer(), job.spec->train().steps()}, manifest.step());
  if (!change.has_value()) return absl::OkStatus();
  const std::string text = Describe(*change, before, *job.spec);
  if (change->step > manifest.step() + 1 ||
      checkpoint::AllowsChange(job.allow_changed, kOptimizer)) {
    place->warnings.push_back(text);
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint was made under other conditions: ", text,
                   "; restore them, or go on with other bits by --allow-changed ", kOptimizer));
}

// Returns what has changed of all that decides which text a sample has.
std::vector<std::string> ChangesOfOrder(const Manifest& manifest, const ResumingJob& job) {
  const job::v1::TrainSpec& before = manifest.spec().train();
  const job::v1::TrainSpec& now = job.spec->train();
  std::vector<std::string> changes;
  if (before.seq_length() != now.seq_length()) {
    changes.push_back(WasAndIs("train.seq_length", before.seq_length(), now.seq_length()));
  }
  if (before.seed() != now.seed()) {
    changes.push_back(WasAndIs("train.seed", before.seed(), now.seed()));
  }
  if (!checkpoint::CompareFingerprints(manifest.data(), *job.data, {}).ok()) {
    changes.emplace_back("the data changed");
  }
  return changes;
}

// The first sample is the checkpoint's next one. Other batches of the same samples leave nothing
// out; other samples are other pieces of the text.
void FindSample(const Manifest& manifest, const ResumingJob& job, ResumePlace* place) {
  const int64_t next_sample = manifest.next_sample();
  const int32_t batch = job.spec->train().global_batch_size();
  place->sample_offset = next_sample - manifest.step() * batch;
  if (!manifest.spec().has_train()) return;
  const std::string begins =
      absl::StrCat("step ", manifest.step() + 1, " begins at sample ", next_sample);
  const std::vector<std::string> order = ChangesOfOrder(manifest, job);
  if (!order.empty()) {
    place->warnings.push_back(
        absl::StrCat(absl::StrJoin(order, ", "), ": samples are other pieces of the text; ", begins,
                     " of the new order, so parts of the text may be trained on again or left out "
                     "until the epoch ends"));
  } else if (manifest.spec().train().global_batch_size() != batch) {
    place->warnings.push_back(absl::StrCat(
        WasAndIs("train.global_batch_size", manifest.spec().train().global_batch_size(), batch),
        ": ", begins, ", the first that the checkpoint has not trained on"));
  }
}

}  // namespace

absl::StatusOr<ResumePlace> PlaceToResume(const Manifest& manifest, const ResumingJob& job) {
  if (manifest.kind() == checkpoint::v1::CHECKPOINT_KIND_WEIGHTS) {
    return absl::FailedPreconditionError(
        "holds weights alone, no optimizer state to go on from; begin with them by model.from "
        "instead of --from");
  }
  RETURN_IF_ERROR(checkpoint::CompareFingerprints(manifest.data(), *job.data, job.allow_changed));
  RETURN_IF_ERROR(
      checkpoint::CompareFingerprints(manifest.numerics(), *job.numerics, job.allow_changed));
  if (manifest.step() > job.spec->train().steps()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "has completed ", manifest.step(),
        " steps, more than train.steps = ", job.spec->train().steps(), "; raise train.steps"));
  }
  ResumePlace place;
  place.step = manifest.step();
  RETURN_IF_ERROR(CheckRates(manifest, job, &place));
  FindSample(manifest, job, &place);
  return place;
}

}  // namespace megascale::engine
