// Decides when an agent whose loop is busy repeats its newest report, so that the driver does not
// take the machine for lost. Pure; one thread at a time.
#pragma once

#include <functional>
#include <optional>

#include "absl/time/time.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

class Repeater {
 public:
  static constexpr absl::Duration kBusyMax = absl::Seconds(30);

  // Returns what a running rank's heartbeat slot says now; nullopt: another process has the slot.
  using ReadRank = std::function<std::optional<telemetry::v1::RankStatus>(
      const std::string& job_id, const telemetry::v1::RankStatus& reported)>;

  // The loop has made this report, and makes the next one within `interval` unless it is busy.
  void OnReport(const v1::ActualState& report, absl::Duration interval, absl::Duration now);
  // Returns the report to send now; nullopt: the loop reports in time, or has been busy for too
  // long. A repeated report carries its age. Only the progress of running ranks is read again: a
  // rank that hangs meanwhile is noticed in time, and a rank that works is not blamed for the busy
  // agent. That a process ended, only the loop can tell, so the sign of life of a rank stays as it
  // was.
  std::optional<v1::ActualState> Due(absl::Duration now, const ReadRank& read);

 private:
  v1::ActualState report_;
  absl::Duration interval_ = absl::InfiniteDuration();
  absl::Duration reported_ = absl::ZeroDuration();
  absl::Duration sent_ = absl::ZeroDuration();
};

}  // namespace megascale::agent
