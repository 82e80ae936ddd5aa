#include "controlplane/agent/service/heartbeat.h"

#include <utility>

#include "runtime/base/clock.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(250);

}  // namespace

Heartbeat::Heartbeat(Send send) : send_(std::move(send)), thread_([this] { Run(); }) {}

Heartbeat::~Heartbeat() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

// The lock keeps a repeated report from following a newer one.
void Heartbeat::Report(v1::ActualState report, absl::Duration interval, ReadRank read) {
  std::lock_guard<std::mutex> lock(mutex_);
  read_ = std::move(read);
  repeater_.OnReport(report, interval, base::RealClock().Monotonic());
  send_(std::move(report));
}

void Heartbeat::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (
      !wake_.wait_for(lock, absl::ToChronoMilliseconds(kLookInterval), [&] { return stopping_; })) {
    const absl::Duration now = base::RealClock().Monotonic();
    const auto read = [&](const std::string& job_id, const telemetry::v1::RankStatus& reported) {
      return read_(job_id, reported, now);
    };
    if (std::optional<v1::ActualState> report = repeater_.Due(now, read)) send_(*std::move(report));
  }
}

}  // namespace megascale::agent
