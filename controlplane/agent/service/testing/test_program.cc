// Replaces `megascale` in agent_server_test: the real agent, with a worker and a host that speak on
// their links as the real ones do but do not train.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "controlplane/agent/service/agent_server.h"
#include "proto/link.pb.h"
#include "runtime/base/clock.h"
#include "runtime/base/frame.h"
#include "runtime/base/log.h"
#include "runtime/base/process/shared_memory.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/plan/instruction.h"
#include "runtime/telemetry/exchange_board.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"
#include "runtime/telemetry/stack/process_stacks.h"

namespace megascale::agent {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(60);
constexpr absl::Duration kStepTime = absl::Milliseconds(20);

template <typename Message>
void Send(int link, const Message& message) {
  if (!base::SendFrame(link, message.SerializeAsString(), {}, kTimeout).ok()) std::_Exit(3);
}

std::vector<std::unique_ptr<base::SharedMemory>> MapAll(std::vector<base::UniqueFd> fds) {
  std::vector<std::unique_ptr<base::SharedMemory>> regions;
  for (base::UniqueFd& fd : fds) regions.push_back(*base::SharedMemory::Map(std::move(fd)));
  return regions;
}

void SendStep(int link, int64_t step) {
  link::v1::FromWorker message;
  message.mutable_step()->set_step(step);
  Send(link, message);
}

// Seals a snapshot of step 3.
void Seal(int link, base::SharedMemory* region, int64_t attempt) {
  auto writer = checkpoint::SnapshotWriter::Open(region, attempt, 0);
  if (!writer.ok() || !writer->Acquire(kTimeout).ok()) std::_Exit(4);
  link::v1::FromWorker message;
  message.mutable_sealed()->set_step(3);
  message.mutable_sealed()->set_buffer(*writer->Seal(3, 8));
  Send(link, message);
}

// One call that has ended, and one that runs. Returns their channel.
int WriteExchanges(telemetry::ExchangeWriter* exchanges) {
  const int channel = exchanges->Register("data/0");
  comm::CallEvent call;
  exchanges->Begin(channel, call);
  exchanges->End(channel, call);
  call.sequence = 1;
  exchanges->Begin(channel, call);
  return channel;
}

void WriteSpan(telemetry::SpanWriter* spans, int64_t step) {
  const plan::InstructionId norm(plan::OpKind::kReduceNorm);
  spans->Begin({.instruction = norm.packed(), .step = step});
  spans->End(0, absl::ToInt64Nanoseconds(base::RealClock().Monotonic()), 0);
}

int RunWorker(int link) {
  telemetry::AllowStacks();
  auto first = base::ReceiveFrame(link, kTimeout);
  link::v1::ToWorker to;
  if (!first.ok() || !to.ParseFromString(first->payload)) return 5;
  const link::v1::Assignment assignment = to.assignment();
  const auto regions = MapAll(std::move(first->fds));
  if (regions.size() != (assignment.has_batch_ring() ? 5u : 4u)) return 6;
  telemetry::HeartbeatWriter heartbeat(regions[0].get(), assignment.heartbeat_slot());
  heartbeat.Start(::getpid());
  heartbeat.SetPhase(telemetry::v1::PHASE_TRAINING);
  telemetry::SpanWriter spans(regions[1].get(), assignment.heartbeat_slot());
  telemetry::ExchangeWriter exchanges(regions[1].get(), assignment.heartbeat_slot(), [] {
    return absl::ToInt64Nanoseconds(base::RealClock().Monotonic());
  });
  const int channel = WriteExchanges(&exchanges);
  std::printf("rank %d is ready, GOMP_SPINCOUNT=%s\n", assignment.rank(),
              std::getenv("GOMP_SPINCOUNT"));
  std::fflush(stdout);

  link::v1::FromWorker store;
  store.mutable_store()->set_request_id("mine");
  store.mutable_store()->set_operation(agent::v1::StoreRequest::OPERATION_SET);
  store.mutable_store()->set_key("key");
  Send(link, store);
  auto reply = base::ReceiveFrame(link, kTimeout);
  if (!reply.ok() || !to.ParseFromString(reply->payload)) return 7;
  if (to.store().request_id() != "mine" || to.store().value() != "value of key") return 8;

  int64_t step = 0;
  while (step < 3) {
    WriteSpan(&spans, ++step);
    SendStep(link, step);
  }
  Seal(link, regions.back().get(), assignment.attempt());
  for (;;) {
    const auto frame = base::ReceiveFrame(link, kStepTime);
    if (!frame.ok() && !absl::IsDeadlineExceeded(frame.status())) return 9;
    if (!frame.ok()) {
      WriteSpan(&spans, ++step);
      heartbeat.SetStep(step);
      exchanges.Update(channel, {{0, 1 << 20, step, step, 1 << 20, step}});
      SendStep(link, step);
      continue;
    }
    if (!to.ParseFromString(frame->payload)) return 10;
    if (!to.has_stop()) continue;
    link::v1::FromWorker finished;
    finished.mutable_finished()->set_stopped(true);
    finished.mutable_finished()->set_step(step);
    Send(link, finished);
    return 0;
  }
}

int RunHost(int link) {
  auto first = base::ReceiveFrame(link, kTimeout);
  link::v1::ToHost to;
  if (!first.ok() || !to.ParseFromString(first->payload)) return 5;
  const link::v1::HostAssignment assignment = to.assignment();
  link::v1::FromHost from;
  if (assignment.preflight_only()) {
    from.mutable_preflight()->set_state(v1::Preflight::STATE_PASSED);
    from.mutable_preflight()->set_flops_ceiling(1e9);
    Send(link, from);
    return first->fds.empty() ? 0 : 6;
  }
  const auto regions = MapAll(std::move(first->fds));
  if (regions.size() != 1u + assignment.has_batch_ring() + assignment.local_ranks_size()) return 6;
  telemetry::HeartbeatWriter(regions[0].get(), assignment.heartbeat_slot()).Start(::getpid());
  for (;;) {
    const auto frame = base::ReceiveFrame(link, absl::InfiniteDuration());
    if (!frame.ok() || !to.ParseFromString(frame->payload)) return 7;
    if (to.has_persist()) {
      from.mutable_shard()->set_rank(to.persist().rank());
      from.mutable_shard()->set_attempt(assignment.attempt());
      from.mutable_shard()->set_step(to.persist().step());
      from.mutable_shard()->set_buffer(to.persist().buffer());
    } else if (to.has_finalize()) {
      from.mutable_manifest()->set_attempt(to.finalize().attempt());
      from.mutable_manifest()->set_step(to.finalize().step());
      from.mutable_manifest()->set_directory(assignment.checkpoint_directory());
    } else {
      continue;
    }
    Send(link, from);
  }
}

int RunAgentFromArguments(char** argv) {
  base::InitLog("agent", base::LogLevel::kInfo);
  AgentOptions options;
  options.driver_address = argv[2];
  options.run_directory = argv[3];
  if (!absl::ParseDuration(argv[4], &options.drain_timeout)) return 2;
  options.node_id = "n0";
  options.num_slots = 2;
  options.read_gpus = [] {
    std::vector<telemetry::v1::GpuSample> gpus(16);
    for (size_t i = 0; i < gpus.size(); ++i) {
      gpus[i].set_index(static_cast<int>(i));
      gpus[i].set_busy_share(0.9);
      gpus[i].set_memory_busy_share(0.9);
      gpus[i].set_memory_used_bytes(int64_t{70} << 30);
      gpus[i].set_temperature_celsius(64);
      gpus[i].set_power_watts(700);
      gpus[i].add_throttled_by("power cap");
    }
    return gpus;
  };
  const absl::Status status = RunAgent(options);
  if (!status.ok()) base::LogError(status.ToString());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace megascale::agent

int main(int argc, char** argv) {
  const absl::string_view role = argv[1];
  if (role == "agent") return megascale::agent::RunAgentFromArguments(argv);
  const int link = std::atoi(argv[3]);
  if (role == "read-stacks") return megascale::telemetry::RunStackProcess(link);
  return role == "host" ? megascale::agent::RunHost(link) : megascale::agent::RunWorker(link);
}
