#include "controlplane/driver/core/epoch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "runtime/base/checksum.h"

namespace megascale::driver {

namespace agent = megascale::agent::v1;

Event StartedEvent(const DriverState& state, const DriverStart& start) {
  Event event;
  auto* started = event.mutable_driver_started();
  started->set_rules(kRules);
  if (state.epoch() == 0 || start.restored) {
    started->set_epoch(std::max(state.epoch() + 1, absl::ToUnixNanos(start.now)));
  }
  started->set_restored(start.restored);
  started->set_machine_tests(start.machine_tests);
  started->set_exchange_rate(start.exchange_rate);
  if (state.secret().empty()) started->set_secret(start.secret);
  return event;
}

std::string ProofOf(const DriverState& state, int64_t epoch, int64_t version) {
  // The secret at both ends: a known hash of a longer text does not give that of another version.
  return base::Sha256Hex(
      absl::StrCat(state.secret(), "/", epoch, "/", version, "/", state.secret()));
}

bool IsOfThisEpoch(const DriverState& state, const agent::ActualState& report) {
  return report.epoch() == 0 || report.epoch() == state.epoch();
}

namespace {

// Returns whether a driver with this log, or with a copy, made what the agent accepted last.
bool IsOfThisLog(const DriverState& state, const agent::ActualState& report) {
  return report.known_proof() == ProofOf(state, report.epoch(), report.known_version());
}

}  // namespace

absl::Status CheckIsNewest(const DriverState& state, const agent::ActualState& report,
                           int64_t newest_version) {
  const bool same_epoch = report.epoch() == state.epoch();
  const bool knows_more =
      report.epoch() > state.epoch() || (same_epoch && report.known_version() > newest_version);
  if (report.epoch() == 0 || !knows_more || !IsOfThisLog(state, report)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the agents have served a later state than this log holds (epoch ", report.epoch(),
      ", version ", report.known_version(), "; this driver: epoch ", state.epoch(), ", version ",
      newest_version,
      "): this log is an old copy, or another driver runs on a copy of it; run the driver on the "
      "newest log, or make this copy valid with `megascale driver restore`"));
}

absl::StatusOr<bool> IsBehind(const DriverState& state, const agent::ActualState& report) {
  if (report.epoch() <= state.epoch() || IsOfThisLog(state, report)) return false;
  const bool is_fresh = std::all_of(state.jobs().begin(), state.jobs().end(),
                                    [](const JobRecord& job) { return job.attempt() == 0; });
  if (is_fresh && report.epoch() <= kEpochMax) return true;
  return absl::FailedPreconditionError(absl::StrCat(
      "this agent serves another driver, whose epoch (", report.epoch(),
      ") is later than that of this one (", state.epoch(),
      "): this is the wrong driver for it; give the agent the address of its own driver, or end it "
      "and start it again, so that its machine belongs to this one"));
}

Event NewerEpochEvent(const DriverState& state, int64_t above, absl::Time now) {
  Event event = StartedEvent(state, {.now = now,
                                     .secret = "",
                                     .machine_tests = state.machine_tests(),
                                     .exchange_rate = state.exchange_rate()});
  event.mutable_driver_started()->set_epoch(std::max(above + 1, absl::ToUnixNanos(now)));
  return event;
}

}  // namespace megascale::driver
