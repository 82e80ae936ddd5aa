#include "runtime/engine/rank_engine.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/duration.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/shared_memory.h"
#include "runtime/base/status.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/comm/fabric.h"
#include "runtime/engine/chunk_of_rank.h"
#include "runtime/engine/doing.h"
#include "runtime/engine/groups.h"
#include "runtime/engine/shard_compute.h"
#include "runtime/engine/snapshot_shard.h"
#include "runtime/engine/stage_compute.h"
#include "runtime/job/job_spec.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/optim/sharded_adamw.h"
#include "runtime/plan/executor.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/arena.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::RestorePoint;

// A peer that stands still is the failure detector's to find, within the progress timeout; the
// waits of the others last a little longer, so that they are consequences.
constexpr double kPeerPatience = 1.5;
// How many progress timeouts storage may take before a worker gives up.
constexpr double kStoragePatience = 10;

std::unique_ptr<ops::Ops> MakeOps(tensor::DType compute, int num_threads) {
  return compute == tensor::DType::kF64 ? ops::MakeReferenceOps()
                                        : ops::MakeCpuOps(compute, num_threads);
}

class Engine : public RankEngine {
 public:
  explicit Engine(EngineOptions options)
      : options_(std::move(options)), doing_(options_.heartbeat, options_.spans) {}

  absl::Status Prepare();
  absl::Status Join() override;
  absl::Status Load(const RestorePoint& restore) override;
  void Launch(plan::Owner owner, int64_t step, std::function<void(absl::Status)> done) override;
  StepResult result() const override { return shard_->result(); }
  absl::StatusOr<int> TakeSnapshot(int64_t step) override;
  void RequestStop(StopFlag flag) override { shard_->RaiseStop(flag); }
  void Abort(const absl::Status& why) override;

 private:
  absl::Status PrepareMemory();
  absl::Status AllocateParameters(int64_t num_elements);
  absl::Status PrepareFabric();
  absl::Status MakeExecutor();
  absl::StatusOr<absl::Span<std::byte>> AcquireBuffer();
  absl::Status AbortReason() const;
  std::map<plan::OpKind, plan::Handler> Handlers();
  comm::Communicator* CommunicatorOf(const plan::Instruction& instruction) const;
  absl::Duration timeout() const {
    return job::ToDuration(options_.spec.fault().progress_timeout()) * kPeerPatience;
  }

  EngineOptions options_;
  Doing doing_;
  ChunkOfRank chunk_of_rank_;
  plan::RankPlan plan_;

  tensor::Arena arena_;                             // of the only rank of a job, or else
  std::unique_ptr<base::SharedMemory> parameters_;  // memory that peers on this machine may read
  tensor::Vector weights_;                          // compute, padded
  tensor::Vector gradients_;                        // F, padded
  std::unique_ptr<ops::Ops> compute_ops_;
  std::unique_ptr<ops::Ops> shard_ops_;
  std::unique_ptr<model::TransformerChunk> chunk_;
  std::unique_ptr<optim::ShardedAdamW> optimizer_;
  std::unique_ptr<StageCompute> stage_;
  std::unique_ptr<ShardCompute> shard_;

  std::unique_ptr<comm::Fabric> fabric_;
  std::map<std::string, std::unique_ptr<comm::Communicator>> communicators_;  // by name
  std::map<plan::InstructionId, comm::Communicator*> communicator_of_;
  std::map<plan::StreamKind, std::unique_ptr<stream::Stream>> streams_;
  std::unique_ptr<plan::Executor> executor_;

  std::optional<checkpoint::ShardLayout> shard_layout_;
  std::optional<checkpoint::SnapshotWriter> snapshot_writer_;
  mutable std::mutex abort_mutex_;
  absl::Status abort_reason_;  // the first, if any
};

absl::Status Engine::Prepare() {
  ASSIGN_OR_RETURN(chunk_of_rank_, ChunkOf(options_.spec, options_.rank));
  ASSIGN_OR_RETURN(plan_, plan::BuildTrainPlan(chunk_of_rank_.plan_options, options_.rank));
  RETURN_IF_ERROR(PrepareMemory());
  return PrepareFabric();
}

absl::Status Engine::PrepareMemory() {
  const ChunkOfRank& mine = chunk_of_rank_;
  const auto dtype = mine.compute;
  const model::ChunkLayout layout(mine.config, mine.range);
  const int64_t padded = layout.padded_elements(mine.shard.num_shards);
  RETURN_IF_ERROR(AllocateParameters(padded));

  compute_ops_ = MakeOps(dtype, options_.spec.parallel().threads_per_rank());
  shard_ops_ = MakeOps(dtype, 1);
  model::ChunkOptions chunk_options = mine.ModelOptions(plan_.num_activation_slots);
  ASSIGN_OR_RETURN(chunk_,
                   model::TransformerChunk::Create(chunk_options, compute_ops_.get(),
                                                   {.weights = weights_, .gradients = gradients_}));
  ASSIGN_OR_RETURN(optimizer_, optim::ShardedAdamW::Create(options_.spec.optimizer(), mine.shard,
                                                           shard_ops_.get()));
  ASSIGN_OR_RETURN(shard_layout_, LayoutOf(options_.rank, optimizer_->State()));
  ASSIGN_OR_RETURN(stage_, StageCompute::Create({.spec = &options_.spec,
                                                 .coordinate = mine.coordinate,
                                                 .chunk = chunk_.get(),
                                                 .range = mine.range,
                                                 .ops = compute_ops_.get(),
                                                 .gradients = gradients_,
                                                 .batch_ring = options_.batch_ring,
                                                 .batch_reader = options_.batch_reader,
                                                 .timeout = timeout()}));
  shard_ = std::make_unique<ShardCompute>(ShardOptions{.spec = &options_.spec,
                                                       .optimizer = optimizer_.get(),
                                                       .stage = stage_.get(),
                                                       .weights = weights_,
                                                       .gradients = gradients_,
                                                       .timeout = timeout()});
  return absl::OkStatus();
}

absl::Status Engine::AllocateParameters(int64_t num_elements) {
  const tensor::DType dtype = chunk_of_rank_.compute;
  const tensor::DType accumulation = AccumulationType(dtype);
  const size_t weight_bytes = tensor::Arena::BytesFor(dtype, num_elements);
  const size_t bytes = weight_bytes + tensor::Arena::BytesFor(accumulation, num_elements);
  if (options_.placements.size() == 1) {
    ASSIGN_OR_RETURN(arena_, tensor::Arena::Create(bytes));
    weights_ = arena_.Allocate(dtype, num_elements);
    gradients_ = arena_.Allocate(accumulation, num_elements);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(parameters_, base::SharedMemory::Create("megascale-parameters", bytes));
  weights_ = {parameters_->data(), dtype, num_elements};
  gradients_ = {parameters_->data() + weight_bytes, accumulation, num_elements};
  return absl::OkStatus();
}

absl::Status Engine::PrepareFabric() {
  comm::FabricOptions fabric;
  fabric.rank = options_.rank;
  fabric.placements = NodesByRank(options_.placements);
  fabric.job_id = options_.job_id;
  fabric.attempt = options_.attempt;
  fabric.secret = options_.secret;
  fabric.region = options_.comm_region;
  if (parameters_ != nullptr) fabric.readable = {parameters_.get()};
  fabric.store = options_.store;
  if (options_.interface.empty()) {
    fabric.socket_directory = options_.socket_directory;
  } else {
    fabric.tcp_address = options_.interface;
  }
  fabric.connect_timeout = job::ToDuration(options_.spec.fault().start_timeout());
  fabric.default_timeout = timeout();
  ASSIGN_OR_RETURN(fabric_,
                   comm::Fabric::Create(std::move(fabric), CommunicatorsOf(chunk_of_rank_.mesh)));
  return absl::OkStatus();
}

absl::Status Engine::Join() {
  RETURN_IF_ERROR(fabric_->Connect());
  const plan::Mesh& mesh = chunk_of_rank_.mesh;
  for (const plan::Channel& channel : plan::ChannelsOf(mesh)) {
    const std::string name =
        CommunicatorName(mesh.GroupName(channel.group, options_.rank), channel.name);
    ASSIGN_OR_RETURN(communicators_[name], fabric_->Make(name));
  }
  // Found once: names are long, and steps take nothing from the heap.
  for (const plan::Instruction& instruction : plan_.instructions) {
    if (instruction.group == plan::GroupKind::kNone) continue;
    const std::string name =
        CommunicatorName(mesh.GroupName(instruction.group, options_.rank), instruction.channel);
    const auto found = communicators_.find(name);
    MEGASCALE_CHECK_MSG(found != communicators_.end(), name);
    communicator_of_[instruction.id] = found->second.get();
  }
  return MakeExecutor();
}

comm::Communicator* Engine::CommunicatorOf(const plan::Instruction& instruction) const {
  const auto found = communicator_of_.find(instruction.id);
  MEGASCALE_CHECK(found != communicator_of_.end());
  return found->second;
}

std::map<plan::OpKind, plan::Handler> Engine::Handlers() {
  using plan::Instruction;
  using plan::OpKind;
  using plan::StepContext;
  std::map<OpKind, plan::Handler> handlers;
  const plan::Handler transfer = [this](const Instruction& i, const StepContext&) {
    return stage_->Transfer(i, CommunicatorOf(i));
  };
  for (const OpKind kind : {OpKind::kSendActivation, OpKind::kReceiveActivation,
                            OpKind::kSendGradient, OpKind::kReceiveGradient}) {
    handlers[kind] = transfer;
  }
  handlers[OpKind::kLoadBatch] = [this](const Instruction&, const StepContext& context) {
    return stage_->LoadBatch(context);
  };
  handlers[OpKind::kForward] = [this](const Instruction& i, const StepContext& context) {
    return stage_->Forward(i, context);
  };
  handlers[OpKind::kBackward] = [this](const Instruction& i, const StepContext&) {
    return stage_->Backward(i);
  };
  handlers[OpKind::kReduceGradients] = [this](const Instruction& i, const StepContext&) {
    return shard_->ReduceGradients(i, CommunicatorOf(i));
  };
  handlers[OpKind::kReduceNorm] = [this](const Instruction& i, const StepContext& context) {
    return shard_->ReduceNorm(i, context, CommunicatorOf(i));
  };
  handlers[OpKind::kOptimizerStep] = [this](const Instruction&, const StepContext& context) {
    return shard_->OptimizerStep(context);
  };
  handlers[OpKind::kGatherParameters] = [this](const Instruction& i, const StepContext&) {
    return shard_->GatherParameters(i, CommunicatorOf(i));
  };
  return handlers;
}

absl::Status Engine::MakeExecutor() {
  plan::ExecutorOptions executor;
  executor.plan = plan_;
  executor.handlers = Handlers();
  for (const plan::StreamKind kind : plan::StreamsOf(plan_)) {
    const absl::string_view name = plan::Name(kind);
    ASSIGN_OR_RETURN(streams_[kind], stream::Stream::Create(std::string(name.data(), name.size())));
    executor.streams[kind] = streams_[kind].get();
  }
  executor.observer.begin = [this](const plan::Instruction& i, const plan::StepContext& context) {
    doing_.Begin(i, context);
  };
  executor.observer.end = [this](const plan::Instruction& i, const plan::StepContext&,
                                 const absl::Status& status) { doing_.End(i, status); };
  ASSIGN_OR_RETURN(executor_, plan::Executor::Create(std::move(executor)));
  return absl::OkStatus();
}

absl::Status Engine::Load(const RestorePoint& restore) {
  if (restore.source() == RestorePoint::SOURCE_INITIAL) {
    optimizer_->Initialize(options_.spec.train().seed());
  } else {
    RETURN_IF_ERROR(RestoreState(restore, options_.snapshots, optimizer_.get()));
  }
  ASSIGN_OR_RETURN(snapshot_writer_, checkpoint::SnapshotWriter::Open(
                                         options_.snapshots, options_.attempt, restore.step()));
  for (const plan::Instruction& instruction : plan_.instructions) {
    if (instruction.kind() == plan::OpKind::kGatherParameters) {
      return shard_->PublishParameters(CommunicatorOf(instruction));
    }
  }
  return absl::InternalError("engine: the plan gathers no parameters");
}

void Engine::Launch(plan::Owner owner, int64_t step, std::function<void(absl::Status)> done) {
  const plan::StepContext context = {.attempt = options_.attempt, .step = step};
  const absl::Status launched = executor_->Launch(owner, context, done);
  if (!launched.ok()) done(launched);
}

// Storage that is behind is no failure of this rank, nor of a peer: it waits, and says that it
// lives.
absl::StatusOr<absl::Span<std::byte>> Engine::AcquireBuffer() {
  const absl::Duration limit =
      job::ToDuration(options_.spec.fault().progress_timeout()) * kStoragePatience;
  const absl::Duration end = base::RealClock().Monotonic() + limit;
  for (;;) {
    RETURN_IF_ERROR(AbortReason());
    auto payload = snapshot_writer_->Acquire(absl::Seconds(1));
    if (!absl::IsDeadlineExceeded(payload.status())) return payload;
    const absl::Duration now = base::RealClock().Monotonic();
    if (now > end) {
      return absl::UnknownError(absl::StrCat(
          "checkpoint storage is behind: no snapshot buffer for ", absl::FormatDuration(limit),
          "; see the host's log and checkpoint.directory"));
    }
    if (options_.heartbeat != nullptr) {
      options_.heartbeat->Progress(now);
      options_.heartbeat->SetDoing("waiting for checkpoint storage");
    }
  }
}

absl::StatusOr<int> Engine::TakeSnapshot(int64_t step) {
  MEGASCALE_CHECK(snapshot_writer_.has_value());
  ASSIGN_OR_RETURN(const absl::Span<std::byte> payload, AcquireBuffer());
  const checkpoint::ShardMoment moment = {
      .attempt = options_.attempt,
      .step = step,
      .next_sample = step * options_.spec.train().global_batch_size()};
  const auto size = static_cast<size_t>(shard_layout_->size_bytes());
  CopyStateOut(*shard_layout_, *optimizer_, moment, payload.subspan(0, size));
  return snapshot_writer_->Seal(step, shard_layout_->size_bytes());
}

absl::Status Engine::AbortReason() const {
  std::lock_guard<std::mutex> lock(abort_mutex_);
  return abort_reason_;
}

void Engine::Abort(const absl::Status& why) {
  {
    std::lock_guard<std::mutex> lock(abort_mutex_);
    if (abort_reason_.ok()) abort_reason_ = absl::AbortedError(why.message());
  }
  if (fabric_ != nullptr) fabric_->Abort(why);
  if (executor_ != nullptr) executor_->Abort(why);
}

}  // namespace

absl::StatusOr<std::shared_ptr<RankEngine>> RankEngine::Create(EngineOptions options) {
  auto engine = std::make_shared<Engine>(std::move(options));
  RETURN_IF_ERROR(engine->Prepare());
  return engine;
}

}  // namespace megascale::engine
