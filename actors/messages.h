// The messages between the actors of a worker, and of a host. Small structs: commands in the
// imperative, events in the past. Each message except LinkLost carries its attempt. Tensors never
// travel in messages; they stay in the engine's memory. No message leaves its process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "caf/allowed_unsafe_message_type.hpp"
#include "caf/error.hpp"
#include "caf/meta/type_name.hpp"
#include "runtime/base/status.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/hang.h"
#include "runtime/engine/rank_engine.h"

namespace megascale::actors {

// An absl::Status that CAF can serialize.
struct Outcome {
  int code = 0;
  std::string message;
  int error = 0;               // base::ErrnoOf
  bool hangs = false;          // device::IsHang
  std::vector<int> unreached;  // comm::UnreachedRanks

  static Outcome Of(const absl::Status& status) {
    return {static_cast<int>(status.code()), std::string(status.message()), base::ErrnoOf(status),
            device::IsHang(status), comm::UnreachedRanks(status)};
  }
  absl::Status ToStatus() const {
    absl::Status status(static_cast<absl::StatusCode>(code), message);
    if (!unreached.empty()) status = comm::BlameLinks(status, unreached);
    return base::WithErrno(hangs ? device::AsHang(status) : status, error);
  }
};

// --- worker -> device -----------------------------------------------------------------------
struct JoinGroups {
  int64_t attempt = 0;
};
// --- worker -> shard ------------------------------------------------------------------------
struct LoadState {
  int64_t attempt = 0;
};
// --- worker -> stage and shard --------------------------------------------------------------
struct StartStep {
  int64_t attempt = 0;
  int64_t step = 0;  // the step to take, from 1
};
// --- worker -> stage ------------------------------------------------------------------------
struct StartEvaluation {
  int64_t attempt = 0;
  int64_t step = 0;  // completed steps
};
// --- worker -> checkpoint -------------------------------------------------------------------
struct TakeSnapshot {
  int64_t attempt = 0;
  int64_t step = 0;  // completed steps
};

// --- events to the worker -------------------------------------------------------------------
struct GroupsJoined {
  int64_t attempt = 0;
  Outcome outcome;
};
struct StateLoaded {
  int64_t attempt = 0;
  Outcome outcome;
  std::string warning;            // as RankEngine::Load returned it
  bool products_refused = false;  // the outcome is that of RankEngine::ChooseProducts
};
// A step has ended. The worker gets one event for the stage actor and the shard actor together.
struct StepFinished {
  int64_t attempt = 0;
  int64_t step = 0;
  Outcome outcome;
  engine::StepResult result;  // if the outcome is OK
};
struct EvaluationFinished {
  int64_t attempt = 0;
  int64_t step = 0;
  Outcome outcome;
  bool has_loss = false;  // false: there is no held-out window
  double loss = 0;
};
struct SnapshotTaken {
  int64_t attempt = 0;
  int64_t step = 0;
  int buffer = 0;
  Outcome outcome;
};

// --- from the agent, through the link -------------------------------------------------------

// Asks this rank to stop at the end of a step; the exchange of norms makes all ranks stop at the
// same step.
struct StopRequested {
  int64_t attempt = 0;
  bool checkpoint = false;
};
// The agent is gone, or sent a malformed message.
struct LinkLost {
  std::string why;
};

// --- host -----------------------------------------------------------------------------------

// Asks to fill the batch ring up to the job's last step.
struct LoadBatches {
  int64_t attempt = 0;
};
struct BatchesLoaded {
  int64_t attempt = 0;
  Outcome outcome;
};
struct PersistSnapshot {
  int64_t attempt = 0;
  int rank = 0;
  int64_t step = 0;
  int buffer = 0;
};
struct WriteCheckpointManifest {
  int64_t attempt = 0;
  int64_t step = 0;
};
// Asks to try again after storage has failed.
struct RetryStorage {
  int64_t attempt = 0;
};

template <class Inspector>
auto inspect(Inspector& f, Outcome& m) {
  return f(caf::meta::type_name("Outcome"), m.code, m.message, m.error, m.hangs, m.unreached);
}

#define MEGASCALE_ACTOR_MESSAGE(Type, ...)              \
  template <class Inspector>                            \
  auto inspect(Inspector& f, Type& m) {                 \
    return f(caf::meta::type_name(#Type), __VA_ARGS__); \
  }

MEGASCALE_ACTOR_MESSAGE(JoinGroups, m.attempt)
MEGASCALE_ACTOR_MESSAGE(LoadState, m.attempt)
MEGASCALE_ACTOR_MESSAGE(StartStep, m.attempt, m.step)
MEGASCALE_ACTOR_MESSAGE(StartEvaluation, m.attempt, m.step)
MEGASCALE_ACTOR_MESSAGE(EvaluationFinished, m.attempt, m.step, m.outcome, m.has_loss, m.loss)
MEGASCALE_ACTOR_MESSAGE(TakeSnapshot, m.attempt, m.step)
MEGASCALE_ACTOR_MESSAGE(GroupsJoined, m.attempt, m.outcome)
MEGASCALE_ACTOR_MESSAGE(StateLoaded, m.attempt, m.outcome, m.warning, m.products_refused)
MEGASCALE_ACTOR_MESSAGE(SnapshotTaken, m.attempt, m.step, m.buffer, m.outcome)
MEGASCALE_ACTOR_MESSAGE(StopRequested, m.attempt, m.checkpoint)
MEGASCALE_ACTOR_MESSAGE(LinkLost, m.why)
MEGASCALE_ACTOR_MESSAGE(LoadBatches, m.attempt)
MEGASCALE_ACTOR_MESSAGE(BatchesLoaded, m.attempt, m.outcome)
MEGASCALE_ACTOR_MESSAGE(PersistSnapshot, m.attempt, m.rank, m.step, m.buffer)
MEGASCALE_ACTOR_MESSAGE(WriteCheckpointManifest, m.attempt, m.step)
MEGASCALE_ACTOR_MESSAGE(RetryStorage, m.attempt)

#undef MEGASCALE_ACTOR_MESSAGE

}  // namespace megascale::actors

// Not serializable, because a StepResult is not.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(megascale::actors::StepFinished)
