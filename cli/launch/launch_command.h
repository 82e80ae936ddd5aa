// `megascale launch`: a driver and agents on machines that a site's manager grants.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/command_line/command_line.h"
#include "proto/control.pb.h"

namespace megascale::cli {

// A job that the launch submits.
struct LaunchJob {
  std::string file;
  std::vector<std::string> overrides;
  std::string job_id;
};
// Reads and checks such a job. Errors: as MakeSubmitRequest, which knows job files.
using MakeLaunchJob =
    std::function<absl::StatusOr<control::v1::SubmitJobRequest>(const LaunchJob& job)>;

// Adds `launch` with `slurm`, and the hidden commands that the scripts of a launch run.
void AddLaunchCommand(CommandLine* line, const MakeLaunchJob& make_job);

// Runs in the first job of a launch: driver, agents, machines, until the end. Returns the exit
// code.
int RunSlurmLaunch(const std::string& folder);

// Runs on one machine: its agent, until the launch or this machine's part of it ends.
// `launch_ends`: watch whether the launch's first job still runs, because this machine has a job of
// its own.
int RunSlurmAgent(const std::string& folder, bool launch_ends);

}  // namespace megascale::cli
