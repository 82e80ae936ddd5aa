// Epochs: the order of desired states across copies of the driver's log. A desired state carries
// (epoch, version), and versions grow within an epoch. A log that is restored from a copy begins a
// new epoch, so that agents take its desired states although their versions are lower. If two
// drivers run on copies of one log, and no restore declared either copy, a driver stops when an
// agent has served a newer desired state than this driver has sent. Pure; threads: plain functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
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

}  // namespace megascale::driver
