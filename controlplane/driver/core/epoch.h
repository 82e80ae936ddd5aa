// Epochs: the order of desired states across copies of the driver's log. A desired state carries
// (epoch, version), and versions grow within an epoch. A log that is restored from a copy begins a
// new epoch, so that agents take its desired states although their versions are lower. The first
// epoch of a log comes from the wall clock. If that clock was behind, agents that served another
// driver ignore this one; then a driver that has not begun any job yet goes above their epoch, and
// another one tells them that it is the wrong one. If two
// drivers run on copies of one log, and no restore declared either copy, a driver stops when an
// agent has served a newer desired state than this driver has sent. Pure; threads: plain functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controlplane/driver/core/driver_state.h"

namespace megascale::driver {

struct DriverStart {
  absl::Time now;         // wall time
  std::string secret;     // random; used if the log has no secret yet
  bool restored = false;  // the log is a copy; agents may have served a later state
  megascale::agent::v1::TestKind machine_tests = {};  // how machines are tested from now on
  double exchange_rate = 0;  // bytes per second that two machines should reach; 0: as measured
};

// Returns the start of a driver with this state, by the present rules. A new log begins its first
// epoch, and a restored log its next epoch. Epochs grow with the wall clock, so that two copies of
// one log begin different ones.
Event StartedEvent(const DriverState& state, const DriverStart& start);

// Returns the proof that a driver with this log, or with a copy of it, sent a desired state of this
// epoch and version.
std::string ProofOf(const DriverState& state, int64_t epoch, int64_t version);

// Returns true if the agent's report counts: it is of this epoch, or of an agent that knows no
// epoch. A report of another epoch tells only that the agent lives, because attempts of two epochs
// have no order.
bool IsOfThisEpoch(const DriverState& state, const megascale::agent::v1::ActualState& report);

// Returns why this driver must stop: the agent has served a later desired state than this driver
// has sent (`newest_version`), and can prove it. OK: it need not stop.
absl::Status CheckIsNewest(const DriverState& state,
                           const megascale::agent::v1::ActualState& report, int64_t newest_version);

// Epochs come from wall clocks, in nanoseconds: an agent that claims a later one than this (in the
// year 2200) is not believed.
inline constexpr int64_t kEpochMax = 7'258'118'400'000'000'000;

// Returns whether the driver must begin a newer epoch, because the agent has served a newer epoch
// of another log, and this driver has begun no job yet. Errors: FailedPrecondition - the same, but
// this driver has begun jobs, which a newer epoch would end: for this agent it is the wrong driver.
absl::StatusOr<bool> IsBehind(const DriverState& state,
                              const megascale::agent::v1::ActualState& report);

// Returns the begin of an epoch that is newer than `above`.
Event NewerEpochEvent(const DriverState& state, int64_t above, absl::Time now);

}  // namespace megascale::driver
