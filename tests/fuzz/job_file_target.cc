#include <algorithm>
#include <string>

#include "cli/job_file/job_file.h"
#include "google/protobuf/util/message_differencer.h"
#include "runtime/base/check.h"
#include "runtime/job/job_spec.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

constexpr size_t kLineBytesMax = 2000;

void CheckLine(const absl::Status& refusal) {
  MEGASCALE_CHECK(refusal.code() == absl::StatusCode::kInvalidArgument);
  MEGASCALE_CHECK(refusal.message().size() <= kLineBytesMax);
  for (const char c : refusal.message()) {
    MEGASCALE_CHECK_MSG(static_cast<unsigned char>(c) >= ' ', std::string(refusal.message()));
  }
}

}  // namespace

void RunJobFile(absl::string_view input) {
  const auto spec = cli::LoadJobText("job.yaml", std::string(input), {});
  if (!spec.ok()) return CheckLine(spec.status());
  const auto again = cli::LoadJobText("again", cli::ToYaml(*spec), {});
  MEGASCALE_CHECK_MSG(again.ok(), again.status().ToString());
  MEGASCALE_CHECK_MSG(google::protobuf::util::MessageDifferencer::Equals(*spec, *again),
                      cli::ToYaml(*spec));
  MEGASCALE_CHECK(job::WorldSize(*spec) >= 1 && job::NumMicrobatches(*spec) >= 1);
}

}  // namespace megascale::fuzz
