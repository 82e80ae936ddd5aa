#include <algorithm>
#include <string>

#include "absl/strings/str_split.h"
#include "cli/job_file/job_file.h"
#include "google/protobuf/util/message_differencer.h"
#include "runtime/base/check.h"
#include "runtime/job/job_spec.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

constexpr size_t kLineBytesMax = 2000;
constexpr int kLinesMax = 21;

void CheckLines(const absl::Status& refusal) {
  MEGASCALE_CHECK(refusal.code() == absl::StatusCode::kInvalidArgument);
  int num_lines = 0;
  for (const absl::string_view line : absl::StrSplit(refusal.message(), '\n')) {
    MEGASCALE_CHECK(!line.empty() && line.size() <= kLineBytesMax);
    MEGASCALE_CHECK(++num_lines <= kLinesMax);
    for (const char c : line) {
      MEGASCALE_CHECK_MSG(static_cast<unsigned char>(c) >= ' ', std::string(line));
    }
  }
}

}  // namespace

void RunJobFile(absl::string_view input) {
  const auto spec = cli::LoadJobText("job.yaml", std::string(input), {});
  if (!spec.ok()) return CheckLines(spec.status());
  const auto again = cli::LoadJobText("again", cli::ToYaml(*spec), {});
  MEGASCALE_CHECK_MSG(again.ok(), again.status().ToString());
  MEGASCALE_CHECK_MSG(google::protobuf::util::MessageDifferencer::Equals(*spec, *again),
                      cli::ToYaml(*spec));
  MEGASCALE_CHECK(job::WorldSize(*spec) >= 1 && job::NumMicrobatches(*spec) >= 1);
}

}  // namespace megascale::fuzz
