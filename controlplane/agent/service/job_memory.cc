#include "controlplane/agent/service/job_memory.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controlplane/agent/core/agent_core.h"
#include "runtime/base/check.h"
#include "runtime/base/checksum.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"
#include "runtime/data/batches/batch_ring.h"
#include "runtime/telemetry/heartbeat.h"

namespace megascale::agent {
namespace {

// A rank without progress for longer than this reports its instructions. It is well below any
// timeout and usually well above the longest instruction.
constexpr double kStandsStillSeconds = 2;

}  // namespace

JobMemory::~JobMemory() { RemoveSocketDirectory(); }

void JobMemory::RemoveSocketDirectory() {
  std::error_code ignored;
  if (!socket_directory_.empty()) std::filesystem::remove_all(socket_directory_, ignored);
  socket_directory_.clear();
}

absl::Status JobMemory::Prepare(const v1::DesiredJob& job) {
  spans_.clear();
  exchanges_.clear();
  attempt_.reset();
  RemoveSocketDirectory();
  socket_directory_ = absl::StrCat(socket_prefix_, "-", job.attempt());
  RETURN_IF_ERROR(base::MakeDirectories(socket_directory_));
  layout::NodeRequest request;
  request.job_id = job.job_id();
  request.spec = &job.spec();
  request.placements = {job.placements().begin(), job.placements().end()};
  request.node_id = node_id_;
  request.attempt = job.attempt();
  request.first_step = job.restore().step();
  ASSIGN_OR_RETURN(layout::AttemptMemory memory, layout::MakeAttemptMemory(request));
  std::set<int> ranks;
  for (const layout::LocalRank& local : memory.ranks) ranks.insert(local.rank);
  std::erase_if(snapshots_, [&](const auto& item) { return ranks.count(item.first) == 0; });
  for (const int rank : ranks) {
    if (snapshots_.count(rank) > 0) continue;
    ASSIGN_OR_RETURN(snapshots_[rank], layout::MakeSnapshotMemory(job.spec(), rank));
  }
  attempt_ = std::move(memory);
  attempt_number_ = job.attempt();
  const auto& train = job.spec().train();
  const int chunks = std::max(1, job.spec().parallel().virtual_pipeline_model_parallel_size());
  tokens_of_forward_ = static_cast<double>(train.micro_batch_size()) *
                       static_cast<double>(train.seq_length()) / chunks;
  for (const layout::LocalRank& local : attempt_->ranks) {
    spans_.emplace(local.rank, RecentSpans(attempt_->spans.get(), local.heartbeat_slot));
    exchanges_.emplace(local.rank, RecentExchanges(attempt_->spans.get(), local.heartbeat_slot));
  }
  return absl::OkStatus();
}

const layout::LocalRank* JobMemory::FindRank(int rank) const {
  if (!attempt_.has_value()) return nullptr;
  for (const layout::LocalRank& local : attempt_->ranks) {
    if (local.rank == rank) return &local;
  }
  return nullptr;
}

Introduction<link::v1::ToWorker> JobMemory::IntroduceWorker(const v1::DesiredJob& job,
                                                            int rank) const {
  const layout::LocalRank* const local = FindRank(rank);
  MEGASCALE_CHECK(local != nullptr);
  Introduction<link::v1::ToWorker> introduction;
  link::v1::Assignment* assignment = introduction.message.mutable_assignment();
  assignment->set_job_id(job.job_id());
  assignment->set_attempt(job.attempt());
  assignment->set_rank(rank);
  *assignment->mutable_spec() = job.spec();
  *assignment->mutable_placements() = job.placements();
  assignment->set_node_id(node_id_);
  assignment->set_secret(job.secret());
  assignment->set_binds_address(job.binds_address());
  assignment->set_evaluates(job.evaluates());
  *assignment->mutable_restore() = job.restore();
  assignment->set_socket_directory(socket_directory_);
  assignment->set_heartbeat_slot(local->heartbeat_slot);
  assignment->set_has_batch_ring(local->has_batch_ring);
  assignment->set_batch_reader(local->batch_reader);
  assignment->set_checkpoint_directory(job.checkpoint_directory());
  *assignment->mutable_allow_changed() = job.allow_changed();
  introduction.fds = {attempt_->heartbeats->fd(), attempt_->spans->fd(), attempt_->comm->fd()};
  if (local->has_batch_ring) introduction.fds.push_back(attempt_->ring->fd());
  introduction.fds.push_back(snapshots_.at(rank)->fd());
  return introduction;
}

// A machine that finds the nonce in its checkpoint directory sees the same directory. The nonce is
// not the secret itself, because everybody who can read checkpoints can read it.
void JobMemory::FillNonce(const v1::DesiredJob& job, link::v1::HostAssignment* assignment) const {
  const auto& placements = job.placements();
  const bool alone = std::all_of(placements.begin(), placements.end(), [&](const auto& placement) {
    return placement.node_id() == node_id_;
  });
  if (alone) return;
  assignment->set_nonce(base::Sha256Hex(absl::StrCat("nonce/", job.secret())));
  for (const v1::Placement& placement : placements) {
    if (placement.rank() == 0) assignment->set_nonce_node_id(placement.node_id());
  }
}

Introduction<link::v1::ToHost> JobMemory::IntroduceHost(const v1::DesiredJob& job,
                                                        bool preflight_only) const {
  Introduction<link::v1::ToHost> introduction;
  link::v1::HostAssignment* assignment = introduction.message.mutable_assignment();
  assignment->set_job_id(job.job_id());
  assignment->set_attempt(job.attempt());
  *assignment->mutable_spec() = job.spec();
  assignment->set_node_id(node_id_);
  FillNonce(job, assignment);
  assignment->set_preflight_only(preflight_only);
  assignment->set_first_step(job.restore().step());
  assignment->set_sample_offset(job.restore().sample_offset());
  assignment->set_checkpoint_directory(job.checkpoint_directory());
  assignment->set_from_checkpoint(job.from_checkpoint());
  *assignment->mutable_allow_changed() = job.allow_changed();
  if (job.has_data()) *assignment->mutable_data() = job.data();
  if (job.has_owner()) *assignment->mutable_owner() = job.owner();
  assignment->set_take_over(job.take_over());
  assignment->set_owns_directory(job.owns_directory());
  assignment->set_ran_here(job.ran_here());
  assignment->set_evaluates(job.evaluates());
  if (job.phase() == v1::DesiredJob::PHASE_RETAIN) {
    assignment->set_retain_only(true);
    return introduction;
  }
  if (preflight_only) {
    assignment->set_has_memory(!snapshots_.empty());
    for (const v1::Placement& placement : job.placements()) {
      if (placement.node_id() == node_id_) assignment->add_local_ranks(placement.rank());
    }
    return introduction;
  }
  MEGASCALE_CHECK(attempt_.has_value());
  assignment->set_heartbeat_slot(attempt_->host_heartbeat_slot);
  assignment->set_has_batch_ring(attempt_->ring != nullptr);
  introduction.fds = {attempt_->heartbeats->fd()};
  if (attempt_->ring != nullptr) introduction.fds.push_back(attempt_->ring->fd());
  for (const layout::LocalRank& local : attempt_->ranks) {
    assignment->add_local_ranks(local.rank);
    introduction.fds.push_back(snapshots_.at(local.rank)->fd());
  }
  return introduction;
}

telemetry::v1::RankStatus JobMemory::ReadStatus(int rank, int pid, absl::Duration now) const {
  telemetry::v1::RankStatus silent;
  silent.set_alive_age_seconds(-1);
  silent.set_progress_age_seconds(-1);
  const layout::LocalRank* const local = FindRank(rank);
  if (!attempt_.has_value() || (rank != kHostRank && local == nullptr)) return silent;
  const int slot = rank == kHostRank ? attempt_->host_heartbeat_slot : local->heartbeat_slot;
  auto status = telemetry::ReadHeartbeat(*attempt_->heartbeats, slot, now);
  // Until then the slot still shows the process before it.
  if (status.pid() != pid) return silent;
  if (status.progress_age_seconds() > kStandsStillSeconds) {
    status.set_recent(DescribeSpans(rank, now));
  }
  return status;
}

JobMemory::ReadSlot JobMemory::SlotOf(int rank) const {
  const layout::LocalRank* const local = FindRank(rank);
  if (!attempt_.has_value() || local == nullptr) return nullptr;
  return [slots = attempt_->heartbeats, slot = local->heartbeat_slot](absl::Duration now) {
    return telemetry::ReadHeartbeat(*slots, slot, now);
  };
}

void JobMemory::DrainSpans() {
  for (auto& [rank, spans] : spans_) spans.Drain();
}

RecentSpans::Shares JobMemory::SharesOf(int rank, int64_t begin_nanos, int64_t end_nanos) const {
  const auto found = spans_.find(rank);
  return found == spans_.end() ? RecentSpans::Shares()
                               : found->second.SharesOf(begin_nanos, end_nanos);
}

std::optional<RecentExchanges::Shares> JobMemory::TakeExchangeShares(int rank) {
  const auto found = exchanges_.find(rank);
  if (found == exchanges_.end()) return std::nullopt;
  return found->second.TakeShares();
}

std::string JobMemory::DescribeSpans(int rank, absl::Duration now) const {
  const auto found = spans_.find(rank);
  return found == spans_.end() ? std::string() : found->second.Describe(now);
}

absl::StatusOr<v1::SpanChunk> JobMemory::ReadSpans(int64_t attempt, int rank, int64_t first_step) {
  const auto found = spans_.find(rank);
  if (!attempt_.has_value() || attempt_number_ != attempt || found == spans_.end()) {
    return absl::NotFoundError(
        absl::StrCat("rank ", rank, " of attempt ", attempt, " does not run here"));
  }
  RecentSpans& recent = found->second;
  recent.Drain();
  v1::SpanChunk chunk;
  chunk.set_num_lost(recent.num_lost());
  for (const telemetry::Span& span : recent.Since(first_step)) {
    telemetry::v1::Span* out = chunk.add_spans();
    out->set_begin_nanos(span.begin_nanos);
    out->set_end_nanos(span.end_nanos);
    out->set_instruction(span.instruction);
    out->set_step(span.step);
    out->set_bytes(span.bytes);
    out->set_lane(span.lane);
    out->set_code(span.code);
    out->set_exchange_nanos(span.exchange_nanos);
  }
  return chunk;
}

void JobMemory::DrainExchanges(absl::Duration now) {
  for (auto& [rank, exchanges] : exchanges_) exchanges.Drain(absl::ToInt64Nanoseconds(now));
}

absl::StatusOr<telemetry::v1::Evidence> JobMemory::ReadExchanges(int64_t attempt, int rank,
                                                                 absl::Duration now) {
  const auto found = exchanges_.find(rank);
  if (!attempt_.has_value() || attempt_number_ != attempt || found == exchanges_.end()) {
    return absl::NotFoundError(
        absl::StrCat("rank ", rank, " of attempt ", attempt, " does not run here"));
  }
  found->second.Drain(absl::ToInt64Nanoseconds(now));
  return found->second.Read();
}

LastAttempt JobMemory::ReadLast(absl::Duration now) {
  LastAttempt last;
  if (!attempt_.has_value()) return last;
  last.attempt = attempt_number_;
  for (const layout::LocalRank& local : attempt_->ranks) {
    if (auto spans = ReadSpans(attempt_number_, local.rank, 0); spans.ok()) {
      spans->set_monotonic_nanos(absl::ToInt64Nanoseconds(now));
      last.spans[local.rank] = *std::move(spans);
    }
    if (auto calls = ReadExchanges(attempt_number_, local.rank, now); calls.ok()) {
      calls->set_monotonic_nanos(absl::ToInt64Nanoseconds(now));
      last.exchanges[local.rank] = *std::move(calls);
    }
  }
  return last;
}

std::vector<checkpoint::SealedSnapshot> JobMemory::ListSnapshots() const {
  std::vector<checkpoint::SealedSnapshot> all;
  for (const auto& [rank, region] : snapshots_) {
    for (const checkpoint::SealedSnapshot& sealed : checkpoint::ListSealed(*region)) {
      all.push_back(sealed);
    }
  }
  return all;
}

void JobMemory::MarkPersisted(const checkpoint::SealedSnapshot& snapshot) {
  const auto region = snapshots_.find(snapshot.rank);
  if (region == snapshots_.end()) return;
  const auto reader = checkpoint::SnapshotReader::Open(region->second.get());
  if (reader.ok()) reader->MarkPersisted(snapshot);
}

int64_t JobMemory::PublishedStep() const {
  if (!attempt_.has_value() || attempt_->ring == nullptr) return 0;
  const auto ring = data::BatchRing::Open(attempt_->ring.get());
  return ring.ok() ? ring->published() : 0;
}

}  // namespace megascale::agent
