// The checks that a host process makes before any worker starts: this version knows all that the
// job asks for, the step's plan is legal, there is enough memory, the data can be read here, the
// checkpoint to start from fits the job, and the checkpoint directory can be written and is the
// same on every machine. It also measures how fast the machine is.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "actors/ceiling.h"
#include "proto/agent.pb.h"
#include "proto/link.pb.h"
#include "runtime/device/device.h"

namespace megascale::actors {

struct PreflightOptions {
  // Called about once a second while text is encoded; may be empty.
  std::function<void(const megascale::agent::v1::Preflight& running)> on_progress = {};
  // Called while the preflight waits for storage, once it has waited for so long that the job may
  // be better off on other machines, if there are some; may be empty.
  std::function<void(const std::string& why)> on_away = {};
  absl::Duration away_short = absl::Seconds(20);  // how long it waits before on_away
  // Asks again how much memory of the devices is free. Processes of an earlier attempt may still be
  // freeing their memory, so the preflight refuses a job for lack of free memory only after
  // free_bytes_patience. Empty: it does not ask again.
  std::function<std::optional<int64_t>()> free_bytes = {};
  absl::Duration free_bytes_patience = absl::Seconds(15);
  // Fetches the list of the files on which the job has trained, to name one that differs; empty:
  // the list cannot be had. May be empty itself.
  std::function<std::vector<std::string>()> fetch_files = {};
  // For tests: another folder for ceilings and another way to measure. If this is unset, or a
  // function in it is empty, the real one is used.
  std::optional<CeilingSources> ceilings = std::nullopt;
};

// Runs the checks. A failed check is a refusal in the result, which ends the job: a person has to
// fix the cause. But if the job has run before (HostAssignment.ran_here), the cause may pass by
// itself: while a system call fails there, the checks are repeated for fault.checkpoint_timeout,
// and on_progress tells why. Errors: network storage is unreachable (IsAway); try again. With
// ran_here: any error with an errno - it has waited in vain; PermissionDenied without an errno -
// the checkpoint directory belongs to another job now. Blocking: encodes the
// text, or reads the data once; measures for half a second, or less on a busy machine, if the rate
// is neither the device's peak nor known yet. `device` describes the device of every rank of the
// machine; its free memory is the least of these devices.
absl::StatusOr<megascale::agent::v1::Preflight> RunPreflight(
    const megascale::link::v1::HostAssignment& assignment, const device::Description& device,
    PreflightOptions options = {});

// Returns the fingerprint with its list of files, which `fetch` gets if it has only the digest;
// unchanged if that fails.
megascale::checkpoint::v1::DataFingerprint WithFiles(
    megascale::checkpoint::v1::DataFingerprint data,
    const std::function<std::vector<std::string>()>& fetch);
// Returns `differs`, which says that the data is not that of the job; with ENOENT if files are
// missing, since these may come back.
absl::Status MayBeMissing(const megascale::checkpoint::v1::DataFingerprint& before,
                          const megascale::checkpoint::v1::DataFingerprint& now,
                          const absl::Status& differs);

// True if the error of a system call means that storage is unreachable, and not that a path is
// wrong.
bool IsAway(const absl::Status& status);

}  // namespace megascale::actors
