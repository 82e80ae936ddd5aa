// What a process does now: as ids, by which code decides, and in words, for people.
// Threads: plain functions.
#pragma once

#include <string>

#include "proto/telemetry.pb.h"
#include "runtime/plan/instruction.h"

namespace megascale::telemetry {

struct Doing {
  v1::Activity activity = v1::ACTIVITY_UNSPECIFIED;
  // The instruction that runs. An activity that is no instruction sets it only if it waits for
  // peers: the failure detector then looks for the cause at other ranks first.
  plan::InstructionId instruction = {};
  int peer = 0;  // rank; unused unless `activity` names a peer
  int done = 0;  // of `total`; unused unless `activity` counts
  int total = 0;
};

void SetDoing(const Doing& doing, v1::RankStatus* status);

// Returns whether the rank makes a checkpoint, or waits until one is stored.
bool Saves(const v1::RankStatus& status);

// Returns in words what the status says that the rank does, with the id of the instruction last:
// "all-gather of parameters G.c1". Empty if the process has not said anything yet. For people only:
// code reads `activity` and `instruction`.
std::string DescribeDoing(const v1::RankStatus& status);

}  // namespace megascale::telemetry
