#include "controlplane/agent/service/heartbeat.h"

#include <utility>

#include "controlplane/protocol/recent_texts.h"
#include "runtime/base/clock.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kLookInterval = absl::Milliseconds(250);

}  // namespace

void Repeater::OnReport(const v1::ActualState& report, absl::Duration interval,
                        absl::Duration now) {
  report_ = report;
  report_.clear_gpus();                  // each sample is sent once
  protocol::ClearRecentTexts(&report_);  // the driver keeps them
  interval_ = interval;
  reported_ = sent_ = now;
}

std::optional<v1::ActualState> Repeater::Due(absl::Duration now) {
  // The loop may be late by a part of its interval.
  if (now - sent_ <= 1.5 * interval_ || now - reported_ > kBusyMax) return std::nullopt;
  sent_ = now;
  return report_;
}

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
void Heartbeat::Report(v1::ActualState report, absl::Duration interval) {
  std::lock_guard<std::mutex> lock(mutex_);
  repeater_.OnReport(report, interval, base::RealClock().Monotonic());
  send_(std::move(report));
}

void Heartbeat::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (
      !wake_.wait_for(lock, absl::ToChronoMilliseconds(kLookInterval), [&] { return stopping_; })) {
    if (std::optional<v1::ActualState> report = repeater_.Due(base::RealClock().Monotonic()))
      send_(*std::move(report));
  }
}

}  // namespace megascale::agent
