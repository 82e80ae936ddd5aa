#include "controlplane/driver/core/preflight_check.h"

#include <google/protobuf/util/message_differencer.h>

#include "absl/strings/str_cat.h"

namespace megascale::driver {

using google::protobuf::util::MessageDifferencer;

PreflightRefusal JudgePreflights(const JobRecord& job) {
  const auto& first = job.preflights(0);
  for (const auto& other : job.preflights()) {
    if (!job.has_data() || MessageDifferencer::Equals(job.data(), other.preflight().data()))
      continue;
    return {other.node_id(), absl::StrCat("data.files: the text on node ", other.node_id(),
                                          " differs from that on which the job has trained; every "
                                          "machine needs the same files")};
  }
  for (const auto& other : job.preflights()) {
    if (MessageDifferencer::Equals(first.preflight().data(), other.preflight().data())) continue;
    return {other.node_id(), absl::StrCat("data.files: the text on node ", other.node_id(),
                                          " differs from that on node ", first.node_id(),
                                          "; every machine needs the same files")};
  }
  const int64_t first_step = job.has_data() ? job.first_step() : first.preflight().first_step();
  const int64_t steps = job.submitted().spec().train().steps();
  if (!job.submitted().from_checkpoint().empty() && first_step >= steps) {
    return {"", absl::StrCat("train.steps: ", steps, " is not more than the ", first_step,
                             " steps of ", job.submitted().from_checkpoint())};
  }
  return {};
}

}  // namespace megascale::driver
