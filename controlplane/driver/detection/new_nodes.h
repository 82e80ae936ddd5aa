// Bounds the nodes that one certificate makes: whoever has the key of one machine must not fill the
// driver's memory and log with nodes of made-up names. Pure; threads: one at a time.
#pragma once

#include <deque>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace megascale::driver {

class NewNodes {
 public:
  // As many as a fleet that shares one certificate starts at once.
  static constexpr int64_t kPerHour = 4096;

  explicit NewNodes(int64_t per_hour) : per_hour_(per_hour) {}

  // Counts a node that is new to the driver. `certificate`: the name in its agent's certificate.
  // `now`: monotonic. Errors: ResourceExhausted - the certificate has made as many within the last
  // hour as it may; the node is not counted.
  absl::Status Admit(const std::string& certificate, absl::Duration now);

 private:
  const int64_t per_hour_;
  std::map<std::string, std::deque<absl::Duration>> times_;  // by certificate; of the last hour
};

}  // namespace megascale::driver
