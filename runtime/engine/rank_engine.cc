#include "runtime/engine/rank_engine.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/comm/host/fabric.h"
#include "runtime/device/device.h"
#include "runtime/device/device_arenas.h"
#include "runtime/device/host_window.h"
#include "runtime/engine/chunk_state.h"
#include "runtime/engine/divergence.h"
#include "runtime/engine/instruction_reporter.h"
#include "runtime/engine/products/product_agreement.h"
#include "runtime/engine/products/product_calls.h"
#include "runtime/engine/restore_with_peers.h"
#include "runtime/engine/shard_compute.h"
#include "runtime/engine/snapshot_shard.h"
#include "runtime/engine/snapshot_taker.h"
#include "runtime/engine/stage_compute.h"
#include "runtime/engine/tensor_peers.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/execute/executor.h"
#include "runtime/plan/plan_options.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/arena.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::RestorePoint;

// The failure detector finds a stalled peer first, after the progress timeout: the waits of its
// peers last longer by this factor.
constexpr double kPeerPatience = 1.5;
// While ranks read a checkpoint for others, a rank waits this many start timeouts for the rest. The
// failure detector sees a reader that stalls much earlier: after one start timeout.
constexpr double kRestorePatience = 10;
// How many progress timeouts storage may take before a worker gives up.
constexpr double kStoragePatience = 10;

class Engine : public RankEngine {
 public:
  explicit Engine(EngineOptions options)
      : options_(std::move(options)),
        reporter_(options_.heartbeat, options_.spans),
        memory_(options_.device) {}

  // What streams still run uses operators and communicators, and these use their streams: first all
  // work ends, then they, then the streams.
  ~Engine() override {
    executor_.reset();
    for (const auto& [kind, stream] : streams_) (void)stream->Synchronize();
    if (exchanges_ != nullptr) (void)exchanges_->Synchronize();
    communicators_.clear();
    compute_ops_.reset();
    shard_ops_.reset();
  }

  absl::Status Prepare();
  absl::Status Join() override;
  absl::Status ChooseProducts(const RestorePoint& restore) override;
  absl::StatusOr<std::string> Load(const RestorePoint& restore) override;
  void TellStepEnds(StepEnded step_ended) override { step_ended_ = std::move(step_ended); }
  absl::Status Launch(plan::Owner owner, int64_t step) override {
    return executor_->Launch(owner, {.attempt = options_.attempt, .step = step});
  }
  absl::Status BeginSnapshot(int64_t step) override;
  absl::StatusOr<int> FinishSnapshot() override { return snapshots_->Finish(); }
  void Leave() override {
    if (fabric_ != nullptr) fabric_->Close();
  }
  void RequestStop(StopFlag flag) override { shard_->RaiseStop(flag); }
  void Abort(const absl::Status& why) override;

 private:
  absl::Status MakeStreams();
  absl::Status PrepareMemory();
  absl::Status PrepareChunk(size_t index);
  absl::Status PrepareSnapshots();
  absl::Status PreparePeers();
  absl::Status AllocateParameters();
  std::unique_ptr<ops::Ops> MakeOps(plan::StreamKind kind, int num_threads) const;
  absl::Status PrepareFabric();
  absl::Status MakeExecutor();
  // As Load, from the snapshot region or from storage.
  absl::StatusOr<std::string> Restore(const RestorePoint& restore);
  absl::Status AbortReason() const;
  void EndStep(const plan::StepContext& context, const absl::Status& status);
  absl::Status Explain(const plan::StepContext& context, const absl::Status& diverged);
  // Runs `work` on the compute stream's thread, and so on all of the rank's threads: between what
  // the stream `from` has issued and what it will issue. Requires: called on `from`'s thread.
  void RunOnComputeThreads(plan::StreamKind from, absl::FunctionRef<void()> work);
  // Returns null if the instruction does not communicate.
  comm::Communicator* CommunicatorOf(const plan::Instruction& instruction) const;
  // Returns the stream on which the communicator of an instruction is ordered.
  stream::Stream* ExchangeStreamOf(const plan::Instruction& instruction) const;
  stream::Stream& compute() const { return *streams_.at(plan::StreamKind::kCompute); }
  absl::Duration start_timeout() const {
    return job::ToDuration(options_.spec.fault().start_timeout());
  }
  absl::Duration progress_timeout() const {
    return job::ToDuration(options_.spec.fault().progress_timeout());
  }
  absl::Duration timeout() const { return progress_timeout() * kPeerPatience; }

  EngineOptions options_;
  InstructionReporter reporter_;
  layout::RankLayout part_;
  plan::RankPlan plan_;
  std::vector<int> launch_order_;  // empty: the device needs none

  device::DeviceArenas memory_;
  // From one stream to the compute stream and back; see RunOnComputeThreads.
  struct Handover {
    std::unique_ptr<stream::Event> there, back;
    uint64_t generation = 0;
  };
  std::map<plan::StreamKind, Handover> handovers_;
  std::unique_ptr<ops::Ops> compute_ops_;  // all threads; used on the compute stream's thread, and
                                           // to explain a divergence, when nothing else runs
  std::unique_ptr<ops::Ops> shard_ops_;    // one thread: works beside passes
  ChunkStates chunks_;
  std::vector<ChunkWork> chunk_work_;  // of each chunk, to find its products
  GradientBuffers gradient_buffers_;
  tensor::Vector carried_;              // see StageOptions
  TiedEnds tied_ends_;                  // see StageOptions
  tensor::Vector replicated_;           // tensor parallelism only: see ShardOptions
  std::unique_ptr<TensorPeers> peers_;  // tensor parallelism only
  std::unique_ptr<StageCompute> stage_;
  std::unique_ptr<ShardCompute> shard_;

  // Outlives the streams that wait for its copies.
  std::unique_ptr<SnapshotTaker> snapshots_;

  std::unique_ptr<comm::Fabric> fabric_;
  // By name.
  std::map<std::string, std::unique_ptr<comm::HostCommunicator>> host_communicators_;
  comm::HostCommunicator* world_ = nullptr;  // of all ranks
  std::map<std::string, std::unique_ptr<comm::Communicator>> communicators_;
  std::map<plan::InstructionId, comm::Communicator*> communicator_of_;
  mutable std::mutex abort_mutex_;
  absl::Status abort_reason_;  // the first reason; OK: not aborted
  StepEnded step_ended_;
  // The end of the executor may still end a step, and that of the streams may explain its error:
  // both before the members that they use.
  std::unique_ptr<stream::Stream> exchanges_;  // for peers_, if exchanges overlap
  std::map<plan::StreamKind, std::unique_ptr<stream::Stream>> streams_;
  std::unique_ptr<plan::Executor> executor_;
};

absl::Status Engine::Prepare() {
  ASSIGN_OR_RETURN(part_, layout::RankLayoutOf(options_.spec, options_.rank));
  plan::PlanOptions plan_options = part_.plan_options;
  ASSIGN_OR_RETURN(plan_options.chunks, layout::ChunkCostsOf(options_.spec));
  ASSIGN_OR_RETURN(plan_, plan::BuildTrainPlan(plan_options, options_.rank));
  RETURN_IF_ERROR(MakeStreams());
  if (options_.device->needs_launch_order()) {
    ASSIGN_OR_RETURN(launch_order_, plan::LaunchOrderOf(plan_options, options_.rank));
  }
  RETURN_IF_ERROR(PrepareMemory());
  reporter_.ShowDevice(*options_.device);
  return PrepareFabric();
}

absl::Status Engine::MakeStreams() {
  MEGASCALE_CHECK(options_.device != nullptr);
  for (const plan::StreamKind kind : plan::StreamsOf(plan_)) {
    const absl::string_view name = plan::Name(kind);
    ASSIGN_OR_RETURN(streams_[kind], options_.device->MakeStream(std::string(name)));
    handovers_[kind] = {.there = streams_[kind]->MakeEvent(), .back = streams_[kind]->MakeEvent()};
  }
  return absl::OkStatus();
}

std::unique_ptr<ops::Ops> Engine::MakeOps(plan::StreamKind kind, int num_threads) const {
  if (options_.make_ops != nullptr) return options_.make_ops(part_.compute, num_threads);
  return options_.device->MakeOps(streams_.at(kind).get(), part_.compute, num_threads);
}

absl::Status Engine::PrepareMemory() {
  RETURN_IF_ERROR(AllocateParameters());
  compute_ops_ = MakeOps(plan::StreamKind::kCompute, options_.spec.parallel().threads_per_rank());
  shard_ops_ = MakeOps(plan::StreamKind::kDataParallel, 1);
  if (part_.tensor.size > 1) RETURN_IF_ERROR(PreparePeers());
  for (size_t i = 0; i < chunks_.size(); ++i) RETURN_IF_ERROR(PrepareChunk(i));
  RETURN_IF_ERROR(PrepareSnapshots());
  ShardNumbers numbers(static_cast<int>(options_.placements.size()), chunks_);
  tensor::Vector loss_sum = {nullptr, tensor::DType::kF64, 1};
  std::vector<tensor::Vector*> spaces = numbers.spaces();
  spaces.push_back(&loss_sum);
  RETURN_IF_ERROR(memory_.Fill("the numbers of a step", spaces));
  const auto load = streams_.find(plan::StreamKind::kLoadBatch);
  ASSIGN_OR_RETURN(
      stage_,
      StageCompute::Create({.spec = &options_.spec,
                            .plan = &plan_,
                            .chunks = &chunks_,
                            .gradient_buffers = &gradient_buffers_,
                            .carried = carried_,
                            .tied_ends = tied_ends_,
                            .loss_sum = loss_sum,
                            .ops = compute_ops_.get(),
                            .device = options_.device,
                            .stream = &compute(),
                            .load_stream = load == streams_.end() ? nullptr : load->second.get(),
                            .peers = peers_.get(),
                            .batch_ring = options_.batch_ring,
                            .batch_reader = options_.batch_reader,
                            .timeout = timeout()}));
  ASSIGN_OR_RETURN(
      shard_, ShardCompute::Create(
                  {.spec = &options_.spec,
                   .plan = &plan_,
                   .chunks = &chunks_,
                   .gradient_buffers = &gradient_buffers_,
                   .ops = shard_ops_.get(),
                   .compute_ops = compute_ops_.get(),
                   .run_on_compute_threads =
                       [this](plan::StreamKind from, absl::FunctionRef<void()> work) {
                         RunOnComputeThreads(from, work);
                       },
                   .await_snapshot = [this] { snapshots_->AwaitCopied(compute()); },
                   .stream_of = [this](plan::StreamKind kind) { return streams_.at(kind).get(); },
                   .stage = stage_.get(),
                   .replicated = replicated_,
                   .head_gradient = tied_ends_.head_gradient,
                   .numbers = std::move(numbers),
                   .device = options_.device,
                   .timeout = timeout()}));
  return absl::OkStatus();
}

absl::Status Engine::PrepareChunk(size_t index) {
  ChunkState& chunk = chunks_[index];
  ChunkWork& work = chunk_work_.emplace_back();
  work.options = part_.ModelOptions(chunk.range, plan_.slots[index]);
  work.parameters = chunk.Parameters();
  const auto allocate = [&](size_t bytes) -> absl::StatusOr<tensor::Arena> {
    ASSIGN_OR_RETURN(tensor::Arena arena, memory_.Allocate("activations", bytes));
    work.activations = arena.data();
    work.activation_bytes = bytes;
    return arena;
  };
  ASSIGN_OR_RETURN(chunk.transformer,
                   model::TransformerChunk::Create(work.options, compute_ops_.get(),
                                                   work.parameters, peers_.get(), allocate));
  const optim::OptimizerShard& shard = part_.shards[index];
  ASSIGN_OR_RETURN(chunk.optimizer,
                   optim::ShardedOptimizer::Create(
                       options_.spec.optimizer(), shard, Slices(chunk.weights, shard.ranges()),
                       compute_ops_.get(), [this](size_t bytes) {
                         return memory_.Allocate("optimizer state", bytes);
                       }));
  if (chunk.gradient_shard.empty()) {
    chunk.gradient_shard = Slices(chunk.gradients, chunk.optimizer->ranges());
  }
  return absl::OkStatus();
}

absl::Status Engine::PrepareSnapshots() {
  ASSIGN_OR_RETURN(snapshots_,
                   SnapshotTaker::Create({.device = options_.device,
                                          .state = StateOf(chunks_),
                                          .rank = options_.rank,
                                          .heartbeat = options_.heartbeat,
                                          .storage_timeout = progress_timeout() * kStoragePatience,
                                          .abort_reason = [this] { return AbortReason(); }}));
  return absl::OkStatus();
}

absl::Status Engine::PreparePeers() {
  TensorPeersOptions peers = {
      .place = part_.tensor, .reporter = &reporter_, .timeout = timeout(), .compute = &compute()};
  if (options_.spec.parallel().tp_comm_overlap()) {
    const absl::string_view name = plan::Name(plan::StreamKind::kTensorParallel);
    ASSIGN_OR_RETURN(exchanges_, options_.device->MakeStream(std::string(name)));
    peers.exchanges = exchanges_.get();
  }
  peers_ = std::make_unique<TensorPeers>(peers);
  return absl::OkStatus();
}

absl::Status Engine::AllocateParameters() {
  const tensor::DType dtype = part_.compute;
  const tensor::DType accumulation = AccumulationType(dtype);
  const layout::GradientSizes sizes = layout::GradientSizesOf(part_, plan_);
  for (const optim::OptimizerShard& shard : part_.shards) {
    const model::ChunkLayout layout = shard.layout();
    chunks_.push_back({.range = shard.range,
                       .weights = {nullptr, dtype, layout.padded_elements(shard.num_shards)},
                       .buckets = part_.BucketsOf(layout),
                       .in_buffer = part_.InGradientBuffers(layout)});
    ChunkState& chunk = chunks_.back();
    for (const model::Bucket& bucket : chunk.buckets) {
      chunk.replicated.push_back(layout::ReplicatedRanges(layout, bucket.range));
      if (!plan_.shards_gradients) continue;
      chunk.gradient_shard.push_back(
          {nullptr, accumulation, bucket.range.count / shard.num_shards});
    }
    if (!sizes.early.empty()) {
      chunk.early_gradients = {nullptr, accumulation, sizes.early[chunks_.size() - 1]};
    }
  }
  for (const int64_t elements : sizes.buffers) {
    gradient_buffers_.push_back({nullptr, accumulation, elements});
  }
  carried_ = {nullptr, accumulation, sizes.carried};
  replicated_ = {nullptr, accumulation, sizes.replicated};
  std::vector<tensor::Vector*> spaces;
  for (ChunkState& chunk : chunks_) spaces.push_back(&chunk.weights);
  for (tensor::Vector& buffer : gradient_buffers_) spaces.push_back(&buffer);
  for (ChunkState& chunk : chunks_) {
    for (tensor::Vector& part : chunk.gradient_shard) spaces.push_back(&part);
    spaces.push_back(&chunk.early_gradients);
  }
  spaces.insert(spaces.end(), {&carried_, &replicated_});
  tied_ends_.embedding = {nullptr, dtype, part_.borrows_embedding() ? sizes.head : 0};
  tied_ends_.head_gradient = {nullptr, accumulation, sizes.head};
  spaces.insert(spaces.end(), {&tied_ends_.embedding, &tied_ends_.head_gradient});
  RETURN_IF_ERROR(options_.placements.size() > 1 ? memory_.FillForPeers("parameters", spaces)
                                                 : memory_.Fill("parameters", spaces));
  for (const plan::Instruction& instruction : plan_.instructions) {
    if (instruction.gradient_buffer == plan::kNoBuffer) continue;
    ChunkState& chunk = chunks_[static_cast<size_t>(plan_.IndexOfChunk(instruction.id.chunk()))];
    if (chunk.gradients) continue;
    chunk.gradients = GradientsOf(chunk, instruction, gradient_buffers_).elements;
  }
  if (part_.borrows_embedding()) {
    chunks_.back().head_weight = tied_ends_.embedding;
    chunks_.back().head_gradient = tied_ends_.head_gradient;
  } else if (part_.exchanged_embedding > 0) {
    // The embedding comes first in the flat space.
    tied_ends_.embedding = Slice(chunks_.front().weights, {0, part_.exchanged_embedding});
  }
  return absl::OkStatus();
}

absl::Status Engine::PrepareFabric() {
  comm::FabricOptions fabric;
  fabric.rank = options_.rank;
  fabric.placements = layout::NodesByRank(options_.placements);
  fabric.job_id = options_.job_id;
  fabric.attempt = options_.attempt;
  fabric.secret = options_.secret;
  fabric.region = options_.comm_region;
  fabric.readable = memory_.readable();
  fabric.store = options_.store;
  fabric.progress = options_.exchanges;
  if (options_.interface.empty()) {
    fabric.socket_directory = options_.socket_directory;
  } else {
    fabric.tcp_address = options_.interface;
  }
  fabric.connect_timeout = start_timeout();
  fabric.default_timeout = timeout();
  const std::vector<int> here =
      layout::RanksOn(fabric.placements, fabric.placements.at(static_cast<size_t>(options_.rank)));
  ASSIGN_OR_RETURN(fabric_,
                   comm::Fabric::Create(std::move(fabric),
                                        layout::CommunicatorsOf(options_.spec, part_.mesh, here)));
  return absl::OkStatus();
}

absl::Status Engine::Join() {
  MEGASCALE_CHECK(step_ended_ != nullptr);
  RETURN_IF_ERROR(fabric_->Connect());
  const auto name_of = [&](plan::GroupKind group, const std::string& channel) {
    return layout::CommunicatorName(part_.mesh.GroupName(group, options_.rank), channel);
  };
  for (const plan::Channel& channel : layout::ChannelsOf(options_.spec, part_.mesh)) {
    const std::string name = name_of(channel.group, channel.name);
    ASSIGN_OR_RETURN(host_communicators_[name], fabric_->Make(name));
    if (channel.group == plan::GroupKind::kWorld) world_ = host_communicators_[name].get();
  }
  std::map<std::string, stream::Stream*> stream_of;
  for (const plan::Instruction& instruction : plan_.instructions) {
    if (instruction.group == plan::GroupKind::kNone) continue;
    stream::Stream*& stream = stream_of[name_of(instruction.group, instruction.channel)];
    MEGASCALE_CHECK(stream == nullptr || stream == ExchangeStreamOf(instruction));
    stream = ExchangeStreamOf(instruction);
  }
  // In the order of names, which all ranks share: a device may wait for all members of a group,
  // also for those that make no call there and so may name any stream.
  for (const auto& [name, host] : host_communicators_) {
    const auto [stream, is_unused] = stream_of.emplace(name, &compute());
    if (is_unused && !options_.device->starts_groups_together()) continue;
    ASSIGN_OR_RETURN(communicators_[name],
                     options_.device->MakeCommunicator(host.get(), stream->second));
  }
  // Look up the communicators once: building a name takes heap memory, which steps must not do.
  for (const plan::Instruction& i : plan_.instructions) {
    if (i.group == plan::GroupKind::kNone) continue;
    communicator_of_[i.id] = communicators_.at(name_of(i.group, i.channel)).get();
  }
  reporter_.ShowDevice(*options_.device);
  return MakeExecutor();
}

// OpenMP keeps a pool of threads for each thread that calls operators. A second caller would get a
// second pool, and the rank more threads than cores.
void Engine::RunOnComputeThreads(plan::StreamKind from, absl::FunctionRef<void()> work) {
  Handover& handover = handovers_.at(from);
  const uint64_t generation = ++handover.generation;
  handover.there->RecordNow(*streams_.at(from), generation);
  compute().RunAndWait([&] {
    handover.there->WaitNow(compute(), generation);
    work();
    handover.back->RecordNow(compute(), generation);
  });
  handover.back->WaitNow(*streams_.at(from), generation);
  streams_.at(from)->TakeErrorOf(compute());
}

stream::Stream* Engine::ExchangeStreamOf(const plan::Instruction& instruction) const {
  // A pass begins its exchanges itself, on a stream beside its own if they overlap.
  if (instruction.stream == plan::StreamKind::kCompute && exchanges_ != nullptr) {
    return exchanges_.get();
  }
  return streams_.at(instruction.stream).get();
}

comm::Communicator* Engine::CommunicatorOf(const plan::Instruction& instruction) const {
  if (instruction.group == plan::GroupKind::kNone) return nullptr;
  const auto found = communicator_of_.find(instruction.id);
  MEGASCALE_CHECK(found != communicator_of_.end());
  return found->second;
}

absl::Status Engine::MakeExecutor() {
  plan::ExecutorOptions executor;
  executor.plan = plan_;
  const auto communicator_of = [this](const auto& i) { return CommunicatorOf(i); };
  executor.handlers = stage_->Handlers(communicator_of);
  executor.handlers.merge(shard_->Handlers(communicator_of));
  executor.launch_order = launch_order_;
  for (const plan::StreamKind kind : plan::StreamsOf(plan_)) {
    executor.streams[kind] = streams_.at(kind).get();
  }
  executor.step_ended = [this](const auto& step, const auto& status) { EndStep(step, status); };
  executor.observer.begin = [this](const auto& i, const auto& step, absl::Duration at) {
    reporter_.Begin(i, step, at);
  };
  executor.observer.end = [this](const auto& i, const auto& /*step*/, absl::Duration at,
                                 const auto& status) { reporter_.End(i, at, status); };
  ASSIGN_OR_RETURN(executor_, plan::Executor::Create(std::move(executor)));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Engine::Restore(const RestorePoint& restore) {
  device::HostWindow window(options_.device, &compute());
  const std::vector<std::string> nodes = layout::NodesByRank(options_.placements);
  const bool one_machine = std::equal(nodes.begin() + 1, nodes.end(), nodes.begin());
  if (restore.source() == RestorePoint::SOURCE_MEMORY || one_machine) {
    RETURN_IF_ERROR(RestoreState(restore, options_.snapshots, StateOf(chunks_), &window));
    return "";
  }
  return RestoreWithPeers(
      {.restore = restore,
       .rank = options_.rank,
       .nodes = nodes,
       .world = world_,
       .window = &window,
       .layout_of = [this](int rank) { return layout::StateLayoutOf(options_.spec, rank); },
       .timeout = start_timeout() * kRestorePatience,
       .heartbeat = options_.heartbeat},
      StateOf(chunks_));
}

absl::Status Engine::ChooseProducts(const RestorePoint& restore) {
  device::ProductTuner* const tuner = options_.device->product_tuner();
  if (tuner == nullptr || options_.job_directory.empty()) return absl::OkStatus();
  device::ProductCalls calls = {.stream = &compute(), .compute = part_.compute, .calls = {}};
  ASSIGN_OR_RETURN(
      calls.calls,
      ProductCallsOf({.plan = &plan_,
                      .chunks = chunk_work_,
                      .add_gradients =
                          [this](const auto& instruction, model::TransformerChunk* chunk) {
                            const auto index =
                                static_cast<size_t>(plan_.IndexOfChunk(instruction.id.chunk()));
                            const auto gradients =
                                GradientsOf(chunks_[index], instruction, gradient_buffers_);
                            chunk->AddGradientsTo(gradients.elements, gradients.range.begin);
                          },
                      .first_layer_of = [this](const auto& i) { return stage_->FirstLayer(i); }}));
  return AgreeOnProducts({.job_id = options_.job_id,
                          .directory = options_.job_directory,
                          .restore = restore,
                          .may_differ = options_.products_may_differ,
                          .world = world_,
                          .store = options_.store,
                          .snapshots = options_.snapshots,
                          .timeout = start_timeout() * kRestorePatience,
                          .store_timeout = start_timeout(),
                          .heartbeat = options_.heartbeat},
                         calls, tuner);
}

absl::StatusOr<std::string> Engine::Load(const RestorePoint& restore) {
  std::string warning;
  if (restore.source() == RestorePoint::SOURCE_INITIAL) {
    const model::InitializeOptions initialize = {
        .seed = options_.spec.train().seed(),
        .num_threads = options_.spec.parallel().threads_per_rank(),
        .on_progress = [this] {
          if (options_.heartbeat == nullptr) return;
          options_.heartbeat->Progress(base::RealClock().Monotonic());
        }};
    device::HostWindow window(options_.device, &compute());
    if (!options_.spec.model().from().empty()) {
      RETURN_IF_ERROR(LoadInitialWeights(options_.spec.model(), StateOf(chunks_), &window,
                                         initialize.on_progress));
    } else {
      for (ChunkState& chunk : chunks_) {
        RETURN_IF_ERROR(chunk.optimizer->Initialize(initialize, &window));
      }
    }
  } else {
    ASSIGN_OR_RETURN(warning, Restore(restore));
  }
  RETURN_IF_ERROR(snapshots_->Open(options_.snapshots, options_.attempt, restore.step()));
  compute().RunAndWait([this] { shard_->PublishParameters(); });
  RETURN_IF_ERROR(compute().Synchronize());
  return warning;
}

// No instruction of the step is running, so this may read its result, and compute again what was
// not finite: on the compute stream's thread, since this one may be the device's.
void Engine::EndStep(const plan::StepContext& context, const absl::Status& status) {
  if (!status.ok()) return step_ended_(context.step, status);
  absl::StatusOr<StepResult> result = shard_->ResultOf(context);
  if (!absl::IsOutOfRange(result.status())) return step_ended_(context.step, std::move(result));
  compute().Enqueue([this, context, diverged = result.status()](stream::Stream&) {
    step_ended_(context.step, Explain(context, diverged));
  });
}

absl::Status Engine::Explain(const plan::StepContext& context, const absl::Status& diverged) {
  return ExplainDivergence({.plan = &plan_,
                            .part = &part_,
                            .chunks = &chunks_,
                            .gradient_buffers = &gradient_buffers_,
                            .stage = stage_.get(),
                            .peers = peers_.get(),
                            .ops = compute_ops_.get(),
                            .device = options_.device,
                            .stream = &compute(),
                            .world = world_,
                            .stream_of = [this](const auto& i) { return ExchangeStreamOf(i); },
                            .communicator_of = [this](const auto& i) { return CommunicatorOf(i); },
                            .reporter = &reporter_,
                            .context = context,
                            .timeout = timeout()},
                           diverged);
}

absl::Status Engine::BeginSnapshot(int64_t step) {
  return snapshots_->Begin({.attempt = options_.attempt,
                            .step = step,
                            .next_sample = step * options_.spec.train().global_batch_size()});
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
