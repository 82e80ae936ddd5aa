#include "runtime/engine/testing/test_job.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/checkpoint/directory.h"
#include "runtime/checkpoint/numerics.h"
#include "runtime/checkpoint/product_table.h"
#include "runtime/checkpoint/reader.h"
#include "runtime/checkpoint/snapshot.h"
#include "runtime/checkpoint/writer.h"
#include "runtime/comm/store/embedded_store.h"
#include "runtime/comm/store/link_store.h"
#include "runtime/data/batches/loader.h"
#include "runtime/data/dataset/dataset.h"
#include "runtime/device/cpu_device.h"
#include "runtime/job/evaluation.h"
#include "runtime/job/job_spec.h"
#include "runtime/layout/groups.h"
#include "runtime/layout/node_memory.h"
#include "runtime/telemetry/heartbeat.h"
#include "runtime/telemetry/span_ring.h"

namespace megascale::engine {
namespace {

using megascale::agent::v1::Placement;
using megascale::agent::v1::RestorePoint;
using megascale::job::v1::JobSpec;

// Precedes a parameter's name in a checkpoint.
constexpr absl::string_view kFirstMoment = "optimizer.exp_avg.";

// Bytes have no token that ends a document: here the space is one.
int32_t EndTokenOf(const data::Dataset& dataset) {
  return dataset.tokenizer() == nullptr ? ' ' : dataset.end_token();
}

// Waits for the ends of an engine's steps, one after the other.
class StepEnds {
 public:
  // Captures one pointer, which std::function stores without heap memory.
  RankEngine::StepEnded Tell() {
    return [this](int64_t step, absl::StatusOr<StepResult> result) {
      const std::lock_guard<std::mutex> lock(mutex_);
      EXPECT_FALSE(ended_.has_value()) << "step " << step << " ended twice";
      ended_.emplace(step, std::move(result));
      changed_.notify_one();
    };
  }
  absl::StatusOr<StepResult> Await(int64_t step) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return ended_.has_value(); });
    EXPECT_EQ(ended_->first, step);
    absl::StatusOr<StepResult> result = std::move(ended_->second);
    ended_.reset();
    return result;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::pair<int64_t, absl::StatusOr<StepResult>>> ended_;  // not yet awaited
};

// Waits for the end of an engine's evaluation.
class EvaluationEnd {
 public:
  RankEngine::EvaluationEnded Tell() {
    return [this](int64_t /*step*/, absl::StatusOr<std::optional<double>> loss) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ended_ = std::move(loss);
      changed_.notify_one();
    };
  }
  std::optional<double> Run(RankEngine* engine, int64_t step) {
    EXPECT_EQ(engine->Evaluate(step), absl::OkStatus());
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return ended_.has_value(); });
    const absl::StatusOr<std::optional<double>> loss = *std::exchange(ended_, std::nullopt);
    EXPECT_TRUE(loss.ok()) << loss.status();
    return loss.ok() ? *loss : std::nullopt;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<absl::StatusOr<std::optional<double>>> ended_;
};

// Tests that do not ask for evaluations have none.
bool Evaluates(const JobSpec& spec) { return spec.train().has_eval_interval(); }

absl::StatusOr<StepResult> RunStep(RankEngine* engine, StepEnds* ends, int64_t step) {
  for (const plan::Owner owner : {plan::Owner::kStage, plan::Owner::kShard}) {
    EXPECT_EQ(engine->Launch(owner, step), absl::OkStatus());
  }
  return ends->Await(step);
}

// The memory, loader and placement of one job in this process.
class TestJob {
 public:
  explicit TestJob(RunOptions options) : options_(std::move(options)) {
    if (options_.restore.source() == RestorePoint::SOURCE_UNSPECIFIED) {
      options_.restore.set_source(RestorePoint::SOURCE_INITIAL);
    }
    char directory[] = "/tmp/ms-XXXXXX";
    EXPECT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
  }
  ~TestJob() {
    stop_ = true;
    for (std::thread& loader : loaders_) loader.join();
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  RunResult Run();

 private:
  void Prepare();
  void StartLoader(base::SharedMemory* ring);
  void RunRank(int rank, RunResult* result);
  void RunSteps(RankEngine* engine, StepEnds* ends, int rank, RunResult* result);
  void Store(RunResult* result);
  SnapshotMemory& snapshots() {
    return options_.snapshots == nullptr ? own_snapshots_ : *options_.snapshots;
  }

  RunOptions options_;
  std::string directory_;
  std::vector<Placement> placements_;
  std::map<std::string, layout::AttemptMemory> memory_;  // by node
  SnapshotMemory own_snapshots_;
  std::unique_ptr<data::Dataset> dataset_;
  std::vector<std::thread> loaders_;
  std::atomic<bool> stop_ = false;
  comm::EmbeddedStore store_;
  std::unique_ptr<std::barrier<>> between_steps_;  // all ranks
};

void TestJob::Prepare() {
  const JobSpec& spec = options_.spec;
  std::set<std::string> nodes;
  for (int rank = 0; rank < job::WorldSize(spec); ++rank) {
    const std::string node =
        options_.nodes.empty() ? "n0" : options_.nodes[static_cast<size_t>(rank)];
    nodes.insert(node);
    placements_.emplace_back();
    placements_.back().set_rank(rank);
    placements_.back().set_node_id(node);
    std::unique_ptr<base::SharedMemory>& region = snapshots()[rank];
    if (region == nullptr) region = layout::MakeSnapshotMemory(spec, rank).value();
  }
  dataset_ = data::Dataset::Open(spec, {}).value();
  for (const std::string& node : nodes) {
    layout::NodeRequest request;
    request.job_id = "test";
    request.spec = &spec;
    request.placements = placements_;
    request.node_id = node;
    request.attempt = options_.attempt;
    request.first_step = options_.restore.step();
    memory_[node] = layout::MakeAttemptMemory(request).value();
    if (memory_[node].ring != nullptr) StartLoader(memory_[node].ring.get());
  }
}

void TestJob::StartLoader(base::SharedMemory* ring) {
  loaders_.emplace_back([this, ring] {
    if (options_.on_loader_thread != nullptr) options_.on_loader_thread();
    auto loader = data::BatchLoader::Create(options_.spec, &dataset_->samples(), ring,
                                            {.end_token = EndTokenOf(*dataset_),
                                             .sample_offset = options_.restore.sample_offset()})
                      .value();
    if (Evaluates(options_.spec)) {
      loader->PublishEvaluations(&dataset_->held_out(), job::EvaluationInterval(options_.spec),
                                 job::EvaluationBatches(options_.spec));
    }
    EXPECT_TRUE(loader->RunUntil(stop_, options_.spec.train().steps()).ok());
  });
}

void TestJob::RunRank(int rank, RunResult* result) {
  const std::string& node = placements_[static_cast<size_t>(rank)].node_id();
  const layout::AttemptMemory& memory = memory_[node];
  const auto local = std::find_if(memory.ranks.begin(), memory.ranks.end(),
                                  [&](const layout::LocalRank& r) { return r.rank == rank; });
  std::unique_ptr<comm::LinkStore> link;
  comm::LinkStore* raw = nullptr;
  link = std::make_unique<comm::LinkStore>(
      comm::LinkStoreOptions{
          .job_id = "test", .attempt = options_.attempt, .client = absl::StrCat("rank-", rank)},
      [&](const agent::v1::StoreRequest& request) {
        store_.Handle(request, [raw](const agent::v1::StoreReply& reply) { raw->OnReply(reply); });
        return absl::OkStatus();
      });
  raw = link.get();

  EngineOptions engine_options;
  engine_options.spec = options_.spec;
  engine_options.job_id = "test";
  engine_options.attempt = options_.attempt;
  engine_options.rank = rank;
  engine_options.placements = placements_;
  engine_options.node_id = node;
  engine_options.secret = "0123456789abcdef";
  engine_options.socket_directory = directory_;
  engine_options.comm_region = memory.comm.get();
  engine_options.batch_ring = local->has_batch_ring ? memory.ring.get() : nullptr;
  engine_options.batch_reader = local->batch_reader;
  engine_options.snapshots = snapshots()[rank].get();
  engine_options.store = link.get();
  telemetry::HeartbeatWriter heartbeat(memory.heartbeats.get(), local->heartbeat_slot);
  heartbeat.Start(::getpid());
  telemetry::SpanWriter spans(memory.spans.get(), local->heartbeat_slot);
  engine_options.heartbeat = &heartbeat;
  engine_options.spans = &spans;
  const std::unique_ptr<device::Device> device =
      options_.make_device != nullptr ? options_.make_device(rank) : device::MakeCpuDevice();
  engine_options.device = device.get();
  engine_options.job_directory = options_.job_directory;
  engine_options.products_may_differ = options_.products_may_differ;
  StepEnds ends;
  auto engine = RankEngine::Create(std::move(engine_options));
  ASSERT_TRUE(engine.ok()) << engine.status();
  (*engine)->TellStepEnds(ends.Tell());
  ASSERT_EQ((*engine)->Join(), absl::OkStatus());
  const auto restore = options_.restore_of.find(rank);
  const RestorePoint& from =
      restore == options_.restore_of.end() ? options_.restore : restore->second;
  if (options_.before_load != nullptr) {
    options_.before_load(rank, [&memory, local] {
      return telemetry::ReadHeartbeat(*memory.heartbeats, local->heartbeat_slot,
                                      base::RealClock().Monotonic());
    });
  }
  const absl::Status chosen = (*engine)->ChooseProducts(from);
  const absl::StatusOr<std::string> loaded =
      chosen.ok() ? (*engine)->Load(from) : absl::StatusOr<std::string>(chosen);
  if (options_.on_load != nullptr) options_.on_load(rank, loaded);
  if (loaded.ok()) {
    RunSteps(engine->get(), &ends, rank, result);
  } else {
    EXPECT_NE(options_.on_load, nullptr) << loaded.status();
  }
  // A failed rank must not block the others.
  between_steps_->arrive_and_drop();
}

void TestJob::RunSteps(RankEngine* engine, StepEnds* ends, int rank, RunResult* result) {
  EvaluationEnd evaluation;
  engine->TellEvaluationEnds(evaluation.Tell());
  auto& records = result->records[static_cast<size_t>(rank)];
  const int64_t last_step = options_.spec.train().steps();
  records.reserve(static_cast<size_t>(last_step));
  int64_t step = options_.restore.step();
  int64_t snapshot_step = 0;  // 0: none was begun
  while (step < last_step) {
    if (step > 0 && step == options_.snapshot_beside_step_after) {
      ASSERT_EQ(engine->BeginSnapshot(step), absl::OkStatus());
      snapshot_step = step;
    }
    ++step;
    if (rank == 0 && step == options_.stop_after) engine->RequestStop(StopFlag::kStop);
    const absl::StatusOr<StepResult> ended = RunStep(engine, ends, step);
    if (!ended.ok() && options_.on_failure != nullptr) {
      return options_.on_failure(rank, ended.status());
    }
    ASSERT_TRUE(ended.ok()) << ended.status();
    records.push_back(ended->record);
    if (Evaluates(options_.spec) && job::IsEvaluated(options_.spec, step)) {
      const std::optional<double> loss = evaluation.Run(engine, step);
      if (loss.has_value()) records.back().set_held_out_loss(*loss);
    }
    if (ended->stop != StopFlag::kNone || snapshot_step > 0) break;
    if (options_.after_step == nullptr) continue;
    between_steps_->arrive_and_wait();
    if (rank == 0) options_.after_step();
    between_steps_->arrive_and_wait();
  }
  if (snapshot_step == 0) {
    ASSERT_EQ(engine->BeginSnapshot(step), absl::OkStatus());
  }
  ASSERT_EQ(engine->FinishSnapshot().status(), absl::OkStatus());
  if (options_.at_end != nullptr) options_.at_end(*engine);
}

void TestJob::Store(RunResult* result) {
  const int64_t step = options_.snapshot_beside_step_after > 0 ? options_.snapshot_beside_step_after
                                                               : result->records[0].back().step();
  result->checkpoint = absl::StrCat(::testing::TempDir(), "/",
                                    ::testing::UnitTest::GetInstance()->current_test_info()->name(),
                                    "-", directory_.substr(5));
  for (const auto& [rank, region] : snapshots()) {
    const auto reader = checkpoint::SnapshotReader::Open(region.get()).value();
    const auto snapshot = reader.Find(options_.attempt, step);
    ASSERT_TRUE(snapshot.has_value());
    ASSERT_EQ(checkpoint::PersistShard(reader, *snapshot, result->checkpoint), absl::OkStatus());
  }
  result->checkpoint += "/" + checkpoint::StepDirectoryName(step, options_.attempt);
  checkpoint::v1::Manifest manifest;
  manifest.set_job_id("test");
  manifest.set_attempt(options_.attempt);
  manifest.set_step(step);
  manifest.set_next_sample(data::NextSample(options_.spec, step, options_.restore.sample_offset()));
  *manifest.mutable_spec() = options_.spec;
  if (!options_.job_directory.empty()) {
    ASSERT_EQ(checkpoint::CopyProductTable(options_.job_directory, result->checkpoint,
                                           manifest.mutable_numerics()),
              absl::OkStatus());
  }
  ASSERT_EQ(checkpoint::WriteManifest(result->checkpoint, manifest), absl::OkStatus());
  result->digest = checkpoint::CheckpointReader::Open(result->checkpoint).value()->Digest().value();
}

RunResult TestJob::Run() {
  Prepare();
  RunResult result;
  result.records.resize(placements_.size());
  between_steps_ =
      std::make_unique<std::barrier<>>(static_cast<std::ptrdiff_t>(placements_.size()));
  std::vector<std::thread> ranks;
  for (size_t rank = 0; rank < placements_.size(); ++rank) {
    ranks.emplace_back([&, rank] { RunRank(static_cast<int>(rank), &result); });
  }
  for (std::thread& rank : ranks) rank.join();
  if (!::testing::Test::HasFailure() && !result.records[0].empty() &&
      options_.on_failure == nullptr) {
    Store(&result);
  }
  return result;
}

}  // namespace

std::string WriteTestText(const std::string& name) {
  std::string text;
  uint32_t state = 12345;
  while (text.size() < 8000) {
    state = state * 1664525u + 1013904223u;
    text += absl::StrCat("line ", (state >> 16) % 97, " of ", (state >> 8) % 13, "\n");
  }
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  EXPECT_TRUE(base::WriteFileDurably(path, text).ok());
  return path;
}

JobSpec ToyJob(const std::string& text_path, int data, int pipeline) {
  JobSpec spec;
  spec.set_name("toy");
  spec.mutable_model()->set_hidden_size(16);
  spec.mutable_model()->set_num_hidden_layers(4);
  spec.mutable_model()->set_num_attention_heads(2);
  spec.mutable_data()->add_files(text_path);
  spec.mutable_train()->set_steps(5);
  spec.mutable_train()->set_seq_length(12);
  spec.mutable_train()->set_global_batch_size(8);
  spec.mutable_train()->set_micro_batch_size(2);
  spec.mutable_train()->set_seed(7);
  spec.mutable_optimizer()->set_lr(1e-2);
  spec.mutable_optimizer()->set_clip_grad(1.0);
  spec.mutable_parallel()->set_data_parallel_size(data);
  spec.mutable_parallel()->set_pipeline_model_parallel_size(pipeline);
  return job::ResolveJobSpec(spec).value();
}

void MakeLikeLlama(job::v1::ModelSpec* model) {
  model->set_norm(job::v1::NORM_RMSNORM);
  model->set_position_embedding(job::v1::POSITION_EMBEDDING_ROTARY);
  model->set_hidden_act(job::v1::ACTIVATION_SWIGLU);
  model->set_attention_bias(false);
  model->set_mlp_bias(false);
}

RunResult RunJob(const RunOptions& options) { return TestJob(options).Run(); }

Tensors ReadTensors(const RunResult& result) {
  const auto reader = checkpoint::CheckpointReader::Open(result.checkpoint).value();
  Tensors tensors;
  for (const checkpoint::LogicalTensor& tensor : reader->tensors()) {
    std::vector<double>& values = tensors[tensor.name];
    values.resize(static_cast<size_t>(tensor.num_elements));
    EXPECT_EQ(reader->ReadSlice(tensor.name, 0, absl::MakeSpan(values)), absl::OkStatus());
  }
  return tensors;
}

Tensors FirstGradients(JobSpec spec) {
  spec.mutable_optimizer()->set_clip_grad(0);
  const double beta1 = spec.optimizer().beta1();
  Tensors gradients;
  for (auto& [name, values] : ReadTensors(RunJob(RunOptions(std::move(spec)).StopAfter(1)))) {
    if (!absl::StartsWith(name, kFirstMoment)) continue;
    for (double& value : values) value /= 1 - beta1;
    gradients[name.substr(kFirstMoment.size())] = std::move(values);
  }
  return gradients;
}

}  // namespace megascale::engine
