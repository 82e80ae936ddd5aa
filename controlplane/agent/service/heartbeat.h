// Sends the reports of the agent's loop, and heartbeats while the loop is busy. The loop writes
// logs, prunes directories, starts processes and sends to them; each of these may take seconds when
// the machine or its disk is slow. During this time a thread repeats the newest report, so that the
// driver does not take the machine for lost. The thread stops after kBusyMax, so that the driver
// loses a machine whose loop hangs for longer.
// Private to this folder. Threads: any.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "controlplane/agent/core/repeater.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

class Heartbeat {
 public:
  using Send = std::function<void(v1::ActualState)>;
  // As Repeater::ReadRank, at `now`. Called by the thread, also while the loop changes its memory.
  using ReadRank = std::function<std::optional<telemetry::v1::RankStatus>(
      const std::string& job_id, const telemetry::v1::RankStatus& reported, absl::Duration now)>;

  // `send` is called with a lock held, by this thread or the caller of Report.
  explicit Heartbeat(Send send);
  ~Heartbeat();

  // `read`: reads the slots of the ranks in this report.
  void Report(v1::ActualState report, absl::Duration interval, ReadRank read);

 private:
  void Run();

  const Send send_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  Repeater repeater_;
  ReadRank read_;  // of the newest report
  std::thread thread_;
};

}  // namespace megascale::agent
