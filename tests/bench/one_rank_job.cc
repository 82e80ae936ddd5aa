#include "tests/bench/one_rank_job.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/data/batches/loader.h"
#include "runtime/job/job_spec.h"

namespace megascale::bench {
namespace {

constexpr char kJobId[] = "bench";
constexpr char kNode[] = "n0";
constexpr size_t kTextBytes = size_t{4} << 20;

std::vector<agent::v1::Placement> OnePlacement() {
  agent::v1::Placement placement;
  placement.set_node_id(kNode);
  return {placement};
}

}  // namespace

absl::StatusOr<std::unique_ptr<OneRankJob>> OneRankJob::Create(
    const job::v1::JobSpec& spec, engine::EngineOptions::MakeOps make_ops) {
  std::unique_ptr<OneRankJob> job(new OneRankJob);
  RETURN_IF_ERROR(job->Prepare(spec, std::move(make_ops)));
  return job;
}

OneRankJob::~OneRankJob() {
  engine_.reset();
  stop_ = true;
  if (loader_.joinable()) loader_.join();
  std::error_code ignored;
  if (!directory_.empty()) std::filesystem::remove_all(directory_, ignored);
}

absl::Status OneRankJob::WriteText() {
  char directory[] = "/tmp/megascale-bench-XXXXXX";
  if (::mkdtemp(directory) == nullptr) return base::ErrnoStatus(errno, directory);
  directory_ = directory;
  std::mt19937 random(1);
  std::string text(kTextBytes, '\0');
  for (char& byte : text) byte = static_cast<char>(random() % 256);
  const std::string path = absl::StrCat(directory_, "/text");
  spec_.mutable_data()->add_files(path);
  return base::WriteFileDurably(path, text);
}

absl::Status OneRankJob::Prepare(const job::v1::JobSpec& spec,
                                 engine::EngineOptions::MakeOps make_ops) {
  spec_ = spec;
  RETURN_IF_ERROR(WriteText());
  ASSIGN_OR_RETURN(spec_, job::ResolveJobSpec(spec_));
  if (job::WorldSize(spec_) != 1) return absl::InvalidArgumentError("a job of one rank is needed");
  ASSIGN_OR_RETURN(dataset_, data::Dataset::Open(spec_, {}));
  layout::NodeRequest request;
  request.job_id = kJobId;
  request.spec = &spec_;
  request.placements = OnePlacement();
  request.node_id = kNode;
  request.attempt = 1;
  ASSIGN_OR_RETURN(memory_, layout::MakeAttemptMemory(request));
  ASSIGN_OR_RETURN(snapshots_, layout::MakeSnapshotMemory(spec_, 0));
  ASSIGN_OR_RETURN(auto loader,
                   data::BatchLoader::Create(spec_, &dataset_->samples(), memory_.ring.get(),
                                             {.end_token = dataset_->end_token()}));
  loader_ = std::thread([this, loader = std::move(loader)] {
    const absl::Status status = loader->RunUntil(stop_, spec_.train().steps());
    MEGASCALE_CHECK_MSG(status.ok(), status.ToString());
  });
  link_ = std::make_unique<comm::LinkStore>(
      comm::LinkStoreOptions{.job_id = kJobId, .attempt = 1, .client = "rank-0"},
      [this](const agent::v1::StoreRequest& request) {
        store_.Handle(request,
                      [this](const agent::v1::StoreReply& reply) { link_->OnReply(reply); });
        return absl::OkStatus();
      });
  const layout::LocalRank& local = memory_.ranks.front();
  heartbeat_.emplace(memory_.heartbeats.get(), local.heartbeat_slot);
  heartbeat_->Start(::getpid());
  spans_.emplace(memory_.spans.get(), local.heartbeat_slot);
  engine::EngineOptions options;
  options.spec = spec_;
  options.job_id = kJobId;
  options.placements = OnePlacement();
  options.node_id = kNode;
  options.secret = "0123456789abcdef";
  options.socket_directory = directory_;
  options.comm_region = memory_.comm.get();
  options.batch_ring = memory_.ring.get();
  options.batch_reader = local.batch_reader;
  options.snapshots = snapshots_.get();
  options.store = link_.get();
  options.heartbeat = &*heartbeat_;
  options.spans = &*spans_;
  options.device = device_.get();
  options.make_ops = std::move(make_ops);
  ASSIGN_OR_RETURN(engine_, engine::RankEngine::Create(std::move(options)));
  engine_->TellStepEnds([this](int64_t step, absl::StatusOr<engine::StepResult> result) {
    const std::lock_guard<std::mutex> lock(mutex_);
    result_.emplace(std::move(result));
    ended_.notify_one();
  });
  RETURN_IF_ERROR(engine_->Join());
  agent::v1::RestorePoint initial;
  initial.set_source(agent::v1::RestorePoint::SOURCE_INITIAL);
  return engine_->Load(initial).status();
}

absl::StatusOr<OneRankJob::Step> OneRankJob::TakeStep() {
  const absl::Duration begin = base::RealClock().Monotonic();
  ++step_;
  RETURN_IF_ERROR(engine_->Launch(plan::Owner::kStage, step_));
  RETURN_IF_ERROR(engine_->Launch(plan::Owner::kShard, step_));
  std::unique_lock<std::mutex> lock(mutex_);
  ended_.wait(lock, [this] { return result_.has_value(); });
  const absl::StatusOr<engine::StepResult> result = *std::exchange(result_, std::nullopt);
  RETURN_IF_ERROR(result.status());
  return Step{.seconds = absl::ToDoubleSeconds(base::RealClock().Monotonic() - begin),
              .record = result->record};
}

}  // namespace megascale::bench
