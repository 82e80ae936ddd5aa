#include "controlplane/agent/core/repeater.h"

#include "controlplane/protocol/recent_texts.h"

namespace megascale::agent {

void Repeater::OnReport(const v1::ActualState& report, absl::Duration interval,
                        absl::Duration now) {
  report_ = report;
  report_.clear_gpus();                  // each sample is sent once
  protocol::ClearRecentTexts(&report_);  // the driver keeps them
  interval_ = interval;
  reported_ = sent_ = now;
}

std::optional<v1::ActualState> Repeater::Due(absl::Duration now, const ReadRank& read) {
  // The loop may be late by a part of its interval.
  if (now - sent_ <= 1.5 * interval_ || now - reported_ > kBusyMax) return std::nullopt;
  sent_ = now;
  v1::ActualState repeated = report_;
  repeated.set_age_seconds(absl::ToDoubleSeconds(now - reported_));
  for (v1::ActualJob& job : *repeated.mutable_jobs()) {
    for (v1::ActualRank& rank : *job.mutable_ranks()) {
      if (rank.state() != v1::ActualRank::STATE_RUNNING) continue;
      std::optional<telemetry::v1::RankStatus> status = read(job.job_id(), rank.status());
      if (!status.has_value()) continue;
      status->set_rank(rank.status().rank());
      status->set_alive_age_seconds(rank.status().alive_age_seconds());
      *rank.mutable_status() = *std::move(status);
    }
  }
  return repeated;
}

}  // namespace megascale::agent
