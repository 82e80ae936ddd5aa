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
#include <thread>

#include "absl/time/time.h"
#include "proto/agent.pb.h"

namespace megascale::agent {

// Decides when to repeat a report. Pure; one thread at a time.
class Repeater {
 public:
  static constexpr absl::Duration kBusyMax = absl::Seconds(30);

  // The loop has made this report, and makes the next one within `interval` unless it is busy.
  void OnReport(const v1::ActualState& report, absl::Duration interval, absl::Duration now);
  // Returns the report to send now; nullopt: the loop reports in time, or has been busy for too
  // long.
  // A repeated report has the same content as the loop's newest one. So a rank that hangs while the
  // loop is busy is noticed later, and a rank that works is not blamed for the busy agent.
  std::optional<v1::ActualState> Due(absl::Duration now);

 private:
  v1::ActualState report_;
  absl::Duration interval_ = absl::InfiniteDuration();
  absl::Duration reported_ = absl::ZeroDuration();
  absl::Duration sent_ = absl::ZeroDuration();
};

class Heartbeat {
 public:
  using Send = std::function<void(v1::ActualState)>;

  // `send` is called with a lock held, by this thread or the caller of Report.
  explicit Heartbeat(Send send);
  ~Heartbeat();

  void Report(v1::ActualState report, absl::Duration interval);

 private:
  void Run();

  const Send send_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  Repeater repeater_;
  std::thread thread_;
};

}  // namespace megascale::agent
