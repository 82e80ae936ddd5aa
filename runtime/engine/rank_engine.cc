#include "runtime/engine/rank_engine.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "absl/functional/function_ref.h"
#include "runtime/base/check.h"
#include "runtime/base/status.h"
#include "runtime/comm/host/fabric.h"
#include "runtime/data/batches/loader.h"
#include "runtime/device/device.h"
#include "runtime/device/device_arenas.h"
#include "runtime/device/hang.h"
#include "runtime/device/host_window.h"
#include "runtime/engine/chunk_state.h"
#include "runtime/engine/divergence.h"
#include "runtime/engine/instruction_reporter.h"
#include "runtime/engine/parameter_memory.h"
#include "runtime/engine/peers/rank_pair.h"
#include "runtime/engine/products/product_agreement.h"
#include "runtime/engine/products/product_calls.h"
#include "runtime/engine/rank_communicators.h"
#include "runtime/engine/rank_streams.h"
#include "runtime/engine/shard_compute.h"
#include "runtime/engine/stage_compute.h"
#include "runtime/engine/state/restore_with_peers.h"
#include "runtime/engine/state/snapshot_shard.h"
#include "runtime/engine/state/snapshot_taker.h"
#include "runtime/engine/tensor_peers.h"
#include "runtime/job/deadlines.h"
#include "runtime/job/evaluation.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/rank_layout.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/optim/sharded_optimizer.h"
#include "runtime/plan/build/evaluation_plan.h"
#include "runtime/plan/build/roles.h"
#include "runtime/plan/build/step_plan.h"
#include "runtime/plan/execute/executor.h"
#include "runtime/plan/plan_options.h"
#include "runtime/stream/stream.h"
#include "runtime/tensor/arena.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::RestorePoint;

// While ranks read a checkpoint for others, a rank waits this many start timeouts for the rest. The
// failure detector sees a reader that stalls much earlier: after one start timeout.
constexpr double kRestorePatience = 10;
// How many progress timeouts storage may take before a worker gives up.
constexpr double kStoragePatience = 10;

class Engine : public RankEngine {
 public:
  explicit Engine(EngineOptions options)
      : options_(std::move(options)),
        deadlines_(job::DeadlinesOf(options_.spec.fault())),
        reporter_(options_.heartbeat, options_.spans),
        memory_(options_.device) {}

  // What streams still run uses operators and communicators, and these use their streams: first all
  // work ends, then they, then the streams.
  ~Engine() override {
    evaluation_executor_.reset();
    executor_.reset();
    if (streams_ != nullptr) streams_->Synchronize();
    if (communicators_ != nullptr) communicators_->LeaveStreams();
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
  void TellEvaluationEnds(EvaluationEnded evaluation_ended) override {
    evaluation_ended_ = std::move(evaluation_ended);
  }
  absl::Status Evaluate(int64_t step) override;
  absl::Status BeginSnapshot(int64_t step) override;
  absl::StatusOr<int> FinishSnapshot() override { return snapshots_->Finish(); }
  void Leave() override {
    if (communicators_ != nullptr) communicators_->Close();
  }
  void RequestStop(StopFlag flag) override { shard_->RaiseStop(flag); }
  void Abort(const absl::Status& why) override;

 private:
  absl::Status PrepareMemory();
  void PreparePeers();
  absl::Status PrepareChunk(size_t index);
  absl::Status PrepareSnapshots();
  std::unique_ptr<ops::Ops> MakeOps(plan::StreamKind kind, int num_threads) const;
  comm::FabricOptions Fabric() const;
  absl::Status PrepareCommunicators();
  absl::StatusOr<std::unique_ptr<RankPair>> ConnectTo(int peer, const std::string& name) const;
  absl::Status PreparePlans();
  absl::Status MakeExecutors();
  plan::ExecutorOptions ExecutorOptionsOf(const plan::RankPlan& plan,
                                          const std::vector<int>& launch_order);
  // As Load, with initial weights.
  absl::Status Initialize();
  // As Load, from the snapshot region or from storage.
  absl::StatusOr<std::string> Restore(const RestorePoint& restore);
  absl::Status AbortReason() const;
  void EndStep(const plan::StepContext& context, const absl::Status& status);
  absl::Status LaunchBatch(const plan::StepContext& context);
  void EndBatch(const plan::StepContext& context, const absl::Status& status);
  // Ends the step for the caller if `error` is that of a device that hangs.
  void TellHang(const plan::StepContext& context, const absl::Status& error);
  absl::Status Explain(const plan::StepContext& context, const absl::Status& diverged);
  stream::Stream& compute() const { return streams_->compute(); }

  EngineOptions options_;
  const job::Deadlines deadlines_;
  InstructionReporter reporter_;
  layout::RankLayout part_;
  plan::RankPlan plan_;
  plan::RankPlan evaluation_plan_;
  std::vector<int> launch_order_;  // empty: the device needs none
  int64_t sample_offset_ = 0;      // of the restore point
  std::vector<int> evaluation_launch_order_;

  device::DeviceArenas memory_;
  std::unique_ptr<ops::Ops> compute_ops_;  // all threads; used on the compute stream's thread, and
                                           // to explain a divergence, when nothing else runs
  std::unique_ptr<ops::Ops> shard_ops_;    // one thread: works beside passes
  ChunkStates chunks_;
  std::vector<ChunkWork> chunk_work_;  // of each chunk, to find its products
  GradientBuffers gradient_buffers_;
  std::unique_ptr<TensorPeers> peers_;  // tensor parallelism only
  std::unique_ptr<StageCompute> stage_;
  std::unique_ptr<ShardCompute> shard_;

  // Outlives the streams that wait for its copies.
  std::unique_ptr<SnapshotTaker> snapshots_;

  std::unique_ptr<RankCommunicators> communicators_;
  mutable std::mutex abort_mutex_;
  absl::Status abort_reason_;  // the first reason; OK: not aborted
  StepEnded step_ended_;
  EvaluationEnded evaluation_ended_;
  ShardCompute::BatchLoss held_out_;     // sums over the batches of the running evaluation
  std::atomic<bool> evaluates_ = false;  // an evaluation is running
  std::atomic<bool> hang_told_ = false;  // then no step ends any more
  // The end of the executor may still end a step, and that of the streams may explain its error:
  // both before the members that they use.
  std::unique_ptr<RankStreams> streams_;
  std::unique_ptr<plan::Executor> executor_;
  std::unique_ptr<plan::Executor> evaluation_executor_;  // on the same streams, between two steps
};

absl::Status Engine::PreparePlans() {
  plan::PlanOptions plan_options = part_.plan_options;
  ASSIGN_OR_RETURN(plan_options.chunks, layout::ChunkCostsOf(options_.spec));
  ASSIGN_OR_RETURN(plan_, plan::BuildTrainPlan(plan_options, options_.rank));
  ASSIGN_OR_RETURN(evaluation_plan_, plan::BuildEvaluationPlan(plan_options, options_.rank));
  if (!options_.device->needs_launch_order()) return absl::OkStatus();
  ASSIGN_OR_RETURN(launch_order_, plan::LaunchOrderOf(plan_options, options_.rank));
  plan_options.evaluates = true;
  ASSIGN_OR_RETURN(evaluation_launch_order_, plan::LaunchOrderOf(plan_options, options_.rank));
  return absl::OkStatus();
}

absl::Status Engine::Prepare() {
  ASSIGN_OR_RETURN(part_, layout::RankLayoutOf(options_.spec, options_.rank));
  RETURN_IF_ERROR(PreparePlans());
  const bool overlaps = part_.tensor.size > 1 && options_.spec.parallel().tp_comm_overlap();
  // An evaluation uses streams of the step.
  ASSIGN_OR_RETURN(streams_, RankStreams::Create(options_.device, plan_, overlaps));
  RETURN_IF_ERROR(PrepareMemory());
  reporter_.ShowDevice(*options_.device);
  return PrepareCommunicators();
}

std::unique_ptr<ops::Ops> Engine::MakeOps(plan::StreamKind kind, int num_threads) const {
  if (options_.make_ops != nullptr) return options_.make_ops(part_.compute, num_threads);
  return options_.device->MakeOps(&streams_->Of(kind), part_.compute, num_threads);
}

absl::Status Engine::PrepareMemory() {
  ASSIGN_OR_RETURN(
      ParameterMemory parameters,
      AllocateParameters(part_, plan_, /*for_peers=*/options_.placements.size() > 1, &memory_));
  chunks_ = std::move(parameters.chunks);
  gradient_buffers_ = std::move(parameters.gradient_buffers);
  compute_ops_ = MakeOps(plan::StreamKind::kCompute, options_.spec.parallel().threads_per_rank());
  shard_ops_ = MakeOps(plan::StreamKind::kDataParallel, 1);
  if (part_.tensor.size > 1) PreparePeers();
  for (size_t i = 0; i < chunks_.size(); ++i) RETURN_IF_ERROR(PrepareChunk(i));
  RETURN_IF_ERROR(PrepareSnapshots());
  ShardNumbers numbers(part_.mesh, chunks_);
  tensor::Vector loss_sum = {nullptr, tensor::DType::kF64, 1};
  tensor::Vector held_out_sum = loss_sum;
  std::vector<tensor::Vector*> spaces = numbers.spaces();
  spaces.push_back(&loss_sum);
  spaces.push_back(&held_out_sum);
  RETURN_IF_ERROR(memory_.Fill("the numbers of a step", spaces));
  ASSIGN_OR_RETURN(stage_, StageCompute::Create(
                               {.spec = &options_.spec,
                                .plan = &plan_,
                                .chunks = &chunks_,
                                .gradient_buffers = &gradient_buffers_,
                                .carried = parameters.carried,
                                .tied_ends = parameters.tied_ends,
                                .loss_sum = loss_sum,
                                .held_out_sum = held_out_sum,
                                .ops = compute_ops_.get(),
                                .device = options_.device,
                                .stream = &compute(),
                                .load_stream = streams_->FindOrNull(plan::StreamKind::kLoadBatch),
                                .peers = peers_.get(),
                                .batch_ring = options_.batch_ring,
                                .batch_reader = options_.batch_reader,
                                .timeout = deadlines_.wait}));
  ASSIGN_OR_RETURN(shard_,
                   ShardCompute::Create(
                       {.spec = &options_.spec,
                        .plan = &plan_,
                        .chunks = &chunks_,
                        .gradient_buffers = &gradient_buffers_,
                        .ops = shard_ops_.get(),
                        .compute_ops = compute_ops_.get(),
                        .run_on_compute_threads =
                            [this](plan::StreamKind from, absl::FunctionRef<void()> work) {
                              streams_->RunOnComputeThreads(from, work);
                            },
                        .await_snapshot = [this] { snapshots_->AwaitCopied(compute()); },
                        .stream_of = [this](plan::StreamKind kind) { return &streams_->Of(kind); },
                        .stage = stage_.get(),
                        .replicated = parameters.replicated,
                        .head_gradient = parameters.tied_ends.head_gradient,
                        .numbers = std::move(numbers),
                        .device = options_.device,
                        .timeout = deadlines_.wait}));
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
                                          .storage_timeout = deadlines_.progress * kStoragePatience,
                                          .abort_reason = [this] { return AbortReason(); }}));
  return absl::OkStatus();
}

void Engine::PreparePeers() {
  peers_ = std::make_unique<TensorPeers>(TensorPeersOptions{.place = part_.tensor,
                                                            .reporter = &reporter_,
                                                            .timeout = deadlines_.wait,
                                                            .compute = &compute(),
                                                            .exchanges = streams_->exchanges()});
}

comm::FabricOptions Engine::Fabric() const {
  comm::FabricOptions fabric;
  fabric.rank = options_.rank;
  fabric.placements = layout::NodesByRank(options_.placements);
  fabric.job_id = options_.job_id;
  fabric.attempt = options_.attempt;
  fabric.secret = options_.secret;
  fabric.binds_address = options_.binds_address;
  fabric.region = options_.comm_region;
  fabric.readable = memory_.readable();
  fabric.store = options_.store;
  fabric.progress = options_.exchanges;
  if (options_.interface.empty()) {
    fabric.socket_directory = options_.socket_directory;
  } else {
    fabric.tcp_address = options_.interface;
  }
  fabric.connect_timeout = fabric.default_timeout = deadlines_.wait;
  fabric.reach_timeout = deadlines_.connect;
  fabric.join_timeout = deadlines_.join;
  return fabric;
}

absl::Status Engine::PrepareCommunicators() {
  ASSIGN_OR_RETURN(communicators_, RankCommunicators::Create(Fabric(), options_.spec, part_.mesh));
  return absl::OkStatus();
}

// While ranks read for others, the peer may come late.
absl::StatusOr<std::unique_ptr<RankPair>> Engine::ConnectTo(int peer,
                                                            const std::string& name) const {
  comm::FabricOptions fabric = Fabric();
  fabric.connect_timeout = deadlines_.start * kRestorePatience;
  return RankPair::Connect(std::move(fabric), peer, name);
}

absl::Status Engine::Join() {
  MEGASCALE_CHECK(step_ended_ != nullptr);
  RETURN_IF_ERROR(communicators_->Join({&plan_, &evaluation_plan_}, options_.device, *streams_));
  reporter_.ShowDevice(*options_.device);
  return MakeExecutors();
}

plan::ExecutorOptions Engine::ExecutorOptionsOf(const plan::RankPlan& plan,
                                                const std::vector<int>& launch_order) {
  plan::ExecutorOptions executor;
  executor.plan = plan;
  const auto communicator_of = [this](const auto& i) { return communicators_->Of(i); };
  executor.handlers = stage_->Handlers(communicator_of);
  executor.handlers.merge(shard_->Handlers(communicator_of));
  executor.launch_order = launch_order;
  for (const plan::StreamKind kind : plan::StreamsOf(plan)) {
    executor.streams[kind] = &streams_->Of(kind);
  }
  executor.instruction_failed = [this](const auto& step, const auto& error) {
    TellHang(step, error);
  };
  executor.observer.begin = [this](const auto& i, const auto& step, absl::Duration at) {
    reporter_.Begin(i, step, at);
  };
  executor.observer.end = [this](const auto& i, const auto& /*step*/, absl::Duration at,
                                 const auto& status) { reporter_.End(i, at, status); };
  return executor;
}

absl::Status Engine::MakeExecutors() {
  plan::ExecutorOptions step = ExecutorOptionsOf(plan_, launch_order_);
  step.step_ended = [this](const auto& context, const auto& status) { EndStep(context, status); };
  ASSIGN_OR_RETURN(executor_, plan::Executor::Create(std::move(step)));
  plan::ExecutorOptions batch = ExecutorOptionsOf(evaluation_plan_, evaluation_launch_order_);
  batch.step_ended = [this](const auto& context, const auto& status) { EndBatch(context, status); };
  ASSIGN_OR_RETURN(evaluation_executor_, plan::Executor::Create(std::move(batch)));
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
       .all = communicators_->all(),
       .connect = [this](int peer, const std::string& name) { return ConnectTo(peer, name); },
       .window = &window,
       .layout_of = [this](int rank) { return layout::StateLayoutOf(options_.spec, rank); },
       .timeout = deadlines_.start * kRestorePatience,
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
                          .all = communicators_->all(),
                          .store = options_.store,
                          .snapshots = options_.snapshots,
                          .timeout = deadlines_.start * kRestorePatience,
                          .store_timeout = deadlines_.wait,
                          .heartbeat = options_.heartbeat},
                         calls, tuner);
}

absl::Status Engine::Initialize() {
  device::HostWindow window(options_.device, &compute());
  if (!options_.spec.model().from().empty()) {
    const std::vector<optim::StateSlice> state = StateOf(chunks_);
    telemetry::ShownShare share(options_.heartbeat, telemetry::v1::ACTIVITY_READ_CHECKPOINT,
                                NumInitialWeights(state));
    return LoadInitialWeights(options_.spec.model(), state, &window,
                              [&share](int64_t count) { share.Add(count); });
  }
  int64_t num_elements = 0;
  for (const ChunkState& chunk : chunks_) {
    for (const model::FlatRange& range : chunk.optimizer->ranges()) num_elements += range.count;
  }
  telemetry::ShownShare share(options_.heartbeat, telemetry::v1::ACTIVITY_MAKE_WEIGHTS,
                              num_elements);
  const model::InitializeOptions initialize = {
      .seed = options_.spec.train().seed(),
      .num_threads = options_.spec.parallel().threads_per_rank(),
      .on_progress = [&share](int64_t count) { share.Add(count); }};
  for (ChunkState& chunk : chunks_) {
    RETURN_IF_ERROR(chunk.optimizer->Initialize(initialize, &window));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Engine::Load(const RestorePoint& restore) {
  std::string warning;
  sample_offset_ = restore.sample_offset();
  if (restore.source() == RestorePoint::SOURCE_INITIAL) {
    RETURN_IF_ERROR(Initialize());
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
  if (hang_told_) return;
  if (!status.ok()) return step_ended_(context.step, status);
  absl::StatusOr<StepResult> result = shard_->ResultOf(context);
  if (!absl::IsOutOfRange(result.status())) return step_ended_(context.step, std::move(result));
  compute().Enqueue([this, context, diverged = result.status()](stream::Stream&) {
    step_ended_(context.step, Explain(context, diverged));
  });
}

// Other errors wait for the end of the step, which comes.
void Engine::TellHang(const plan::StepContext& context, const absl::Status& error) {
  if (!device::IsHang(error) || hang_told_.exchange(true)) return;
  if (evaluates_) return evaluation_ended_(context.step, error);
  step_ended_(context.step, error);
}

absl::Status Engine::Evaluate(int64_t step) {
  MEGASCALE_CHECK(evaluation_ended_ != nullptr);
  held_out_ = {};
  evaluates_ = true;
  return LaunchBatch({.attempt = options_.attempt, .step = step, .batch = 0});
}

absl::Status Engine::LaunchBatch(const plan::StepContext& context) {
  for (const plan::Owner owner : {plan::Owner::kStage, plan::Owner::kShard}) {
    RETURN_IF_ERROR(evaluation_executor_->Launch(owner, context));
  }
  return absl::OkStatus();
}

// A batch that is not full is the last one: every rank learns so from the exchange of losses.
void Engine::EndBatch(const plan::StepContext& context, const absl::Status& status) {
  if (hang_told_) return;
  const auto end = [&](absl::StatusOr<std::optional<double>> loss) {
    evaluates_ = false;
    evaluation_ended_(context.step, std::move(loss));
  };
  if (!status.ok()) return end(status);
  const ShardCompute::BatchLoss loss = shard_->LossOfWindows();
  held_out_.nats += loss.nats;
  held_out_.num_windows += loss.num_windows;
  const auto& train = options_.spec.train();
  const int64_t next = context.batch + 1;
  if (loss.num_windows == train.global_batch_size() &&
      next < job::EvaluationBatches(options_.spec)) {
    const absl::Status launched =
        LaunchBatch({.attempt = context.attempt, .step = context.step, .batch = next});
    return launched.ok() ? void() : end(launched);
  }
  if (held_out_.num_windows == 0) return end(std::nullopt);
  const int64_t tokens = held_out_.num_windows * train.seq_length();
  end(held_out_.nats / static_cast<double>(tokens));
}

absl::Status Engine::Explain(const plan::StepContext& context, const absl::Status& diverged) {
  return ExplainDivergence(
      {.plan = &plan_,
       .part = &part_,
       .chunks = &chunks_,
       .gradient_buffers = &gradient_buffers_,
       .stage = stage_.get(),
       .peers = peers_.get(),
       .ops = compute_ops_.get(),
       .device = options_.device,
       .stream = &compute(),
       .all = communicators_->all(),
       .stream_of = [this](const auto& i) { return streams_->ExchangeStreamOf(i); },
       .communicator_of = [this](const auto& i) { return communicators_->Of(i); },
       .reporter = &reporter_,
       .context = context,
       .timeout = deadlines_.wait},
      diverged);
}

absl::Status Engine::BeginSnapshot(int64_t step) {
  return snapshots_->Begin({.attempt = options_.attempt,
                            .step = step,
                            .next_sample = data::NextSample(options_.spec, step, sample_offset_)});
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
  if (communicators_ != nullptr) communicators_->Abort(why);
  for (const auto& executor : {executor_.get(), evaluation_executor_.get()}) {
    if (executor != nullptr) executor->Abort(why);
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<RankEngine>> RankEngine::Create(EngineOptions options) {
  auto engine = std::make_shared<Engine>(std::move(options));
  RETURN_IF_ERROR(engine->Prepare());
  return engine;
}

}  // namespace megascale::engine
