#include "controlplane/driver/detection/new_nodes.h"

#include "absl/strings/str_cat.h"

namespace megascale::driver {

absl::Status NewNodes::Admit(const std::string& certificate, absl::Duration now) {
  std::deque<absl::Duration>& times = times_[certificate];
  while (!times.empty() && now - times.front() >= absl::Hours(1)) times.pop_front();
  if (static_cast<int64_t>(times.size()) < per_hour_) {
    times.push_back(now);
    return absl::OkStatus();
  }
  const std::string who = certificate.empty()
                              ? std::string("agents without a certificate")
                              : absl::StrCat("agents with the certificate '", certificate, "'");
  return absl::ResourceExhaustedError(absl::StrCat(
      who, " have joined under ", times.size(),
      " new node ids within an hour, which is the driver's --new-nodes-per-hour; start "
      "agents with the ids that they had before, or raise the limit"));
}

}  // namespace megascale::driver
