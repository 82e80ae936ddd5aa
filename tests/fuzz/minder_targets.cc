#include "runtime/base/check.h"
#include "runtime/minder/model_file.h"
#include "runtime/minder/recording.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {

void RunMinderModels(absl::string_view input) {
  const auto models = minder::ParseModels(input);
  if (!models.ok()) return CheckLine(models.status());
  const std::string text = minder::FormatModels(*models);
  const auto again = minder::ParseModels(text);
  MEGASCALE_CHECK_MSG(again.ok(), again.status().message());
  MEGASCALE_CHECK(minder::FormatModels(*again) == text);
}

void RunMinderRecording(absl::string_view input) {
  constexpr int kSecondsMax = 900;
  const auto recording = minder::ParseRecording(input);
  if (!recording.ok()) return CheckLine(recording.status());
  const minder::CommonTime common = minder::CommonTimeOf(*recording, {.seconds_max = kSecondsMax});
  MEGASCALE_CHECK(common.num_seconds >= 0 && common.num_seconds <= kSecondsMax);
  const auto again = minder::ParseRecording(minder::FormatRecording(*recording));
  MEGASCALE_CHECK_MSG(again.ok(), again.status().message());
  MEGASCALE_CHECK(again->machines.size() <= recording->machines.size());
}

}  // namespace megascale::fuzz
