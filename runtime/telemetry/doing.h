// What a process does now: as ids for code, and in words for people. Threads: plain functions.
#pragma once

#include <cstdint>
#include <string>

#include "proto/job.pb.h"
#include "proto/telemetry.pb.h"
#include "runtime/plan/instruction.h"

namespace megascale::telemetry {

struct Doing {
  v1::Activity activity = v1::ACTIVITY_UNSPECIFIED;
  // The instruction that runs. An activity that is no instruction sets it only if the activity
  // waits for peers; then the failure detector looks for the cause at other ranks first.
  plan::InstructionId instruction = {};
  int peer = 0;  // rank; unused unless `activity` names a peer
  int done = 0;  // of `total`; unused unless `activity` counts
  int total = 0;
};

void SetDoing(const Doing& doing, v1::RankStatus* status);

// Returns whether the rank says that it makes a checkpoint, or waits until a checkpoint is stored.
// This alone must not excuse a rank that makes no progress: check SaveIsDue, too, or whether the
// other ranks do the same.
bool Saves(const v1::RankStatus& status);

// Returns whether the rank says that it evaluates held-out text. As with Saves, check whether an
// evaluation is due, too (runtime/job/evaluation.h).
bool Evaluates(const v1::RankStatus& status);

// Returns whether the ranks of a job make a checkpoint after step `step`, by their interval or
// because it is the last step. Does not know checkpoints that are made because the job leaves a
// machine.
bool SaveIsDue(const job::v1::JobSpec& spec, int64_t step);

// Returns in words what the rank does, with the instruction's id at the end: "all-gather of
// parameters G.c1". Empty if the process has not reported anything yet. For people only; code reads
// `activity` and `instruction`.
std::string DescribeDoing(const v1::RankStatus& status);

}  // namespace megascale::telemetry
