// What a launch was asked for. Kept in the launch's folder, which all its machines see and only its
// user may read:
//
//   launch.json       this plan
//   job.pb            a job to submit (control.v1.SubmitJobRequest); missing: none
//   batch.sh          the script of the first job; machine.sh: of a job for one machine
//   certs/            an authority for this launch alone, with certificates of user and machines
//   address           the driver's address, while one runs
//   driver/           the driver's state; nodes/NAME/: the agents' keys
//   logs/             launch-JOB.log, driver.log, agent-NAME.log, NAME/ (output of ranks)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/connection/connection.h"
#include "controlplane/security/tls_files.h"
#include "runtime/base/fd.h"

namespace megascale::cli {

// How long a launch's certificates live: less than its authority, which is made before them.
inline constexpr absl::Duration kLaunchCertificateLife = absl::Hours(24 * 3649);

struct LaunchPlan {
  std::string folder;     // absolute
  std::string program;    // absolute path of `megascale`, the same on all machines
  std::string name;       // of the jobs in the manager
  int64_t nodes = 1;      // machines that jobs use
  int64_t spares = 0;     // machines beside them
  int64_t max_nodes = 0;  // jobs may get up to this many; 0: nodes
  int64_t slots = 1;      // of each machine
  std::string time;       // as Slurm takes it; empty: the partition's limit
  std::string partition;
  std::vector<std::string> options;  // of sbatch
  std::string machine_tests;         // of the driver; empty: its default
  ConnectionFlags driver;            // an existing driver; no address: the launch has its own
  security::TlsFiles agent_tls;      // what agents show to that driver; empty: plaintext
  int64_t end_before_seconds = 120;  // jobs leave their machines this long before Slurm ends them
  int64_t idle_seconds = 600;        // without a job for this long the launch ends; 0: never
  bool has_job = false;              // job.pb

  std::string Path(const std::string& name) const { return folder + "/" + name; }
  // Returns the options of every submit of this launch.
  std::vector<std::string> CommonOptions() const;
  // Returns those of the first job and its successors.
  std::vector<std::string> FirstJobOptions() const;
  // Returns the files of a certificate in certs/.
  security::TlsFiles Certificate(const std::string& name) const;
  // Opens a file in logs/ to append to it.
  absl::StatusOr<base::UniqueFd> OpenLog(const std::string& name) const;
  // Returns how a client reaches the driver; NotFound: it does not run.
  absl::StatusOr<ConnectionFlags> Connection() const;
};

// Returns --tls-ca, --tls-cert and --tls-key; nothing for plaintext.
std::vector<std::string> TlsWords(const security::TlsFiles& tls);

absl::Status SavePlan(const LaunchPlan& plan);
// Errors: NotFound; DataLoss - the file is damaged.
absl::StatusOr<LaunchPlan> LoadPlan(const std::string& folder);

}  // namespace megascale::cli
