#include "controlplane/driver/relay/evidence_stream.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/relay/ended_job.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace agent = megascale::agent::v1;
namespace control = megascale::control::v1;
namespace telemetry = megascale::telemetry::v1;

absl::Status CheckKind(telemetry::EvidenceKind kind) {
  if (kind != telemetry::EVIDENCE_KIND_UNSPECIFIED && telemetry::EvidenceKind_IsValid(kind)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("kind: unknown value ", static_cast<int>(kind),
                                                 "; expected exchanges, metrics or stacks"));
}

// Threads that ask nodes, of all streams together, beside the callers' own. An answer has at most
// 1 MiB, so they hold at most 256 MiB.
constexpr int kHelpersMax = 256;
std::atomic<int> helpers_free = kHelpersMax;

// Takes up to `wanted` of the helpers that are free, and gives them back.
class Helpers {
 public:
  explicit Helpers(int wanted) {
    int free = helpers_free.load();
    while (!helpers_free.compare_exchange_weak(free, free - std::clamp(free, 0, wanted))) {
    }
    count_ = std::clamp(free, 0, wanted);
  }
  ~Helpers() { helpers_free += count_; }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;
  int count() const { return count_; }

 private:
  int count_ = 0;
};

// A node and the ranks that are asked for there.
struct AskedNode {
  std::string node;
  std::vector<int> ranks;
};

std::vector<AskedNode> NodesToAsk(const control::StreamEvidenceRequest& request,
                                  const control::Job& job) {
  const std::set<int> wanted(request.ranks().begin(), request.ranks().end());
  std::vector<AskedNode> nodes;
  std::map<std::string, size_t> places;  // in `nodes`
  for (const control::RankView& view : job.ranks()) {
    const int rank = view.status().rank();
    if (!wanted.empty() && wanted.count(rank) == 0) continue;
    const auto [place, is_new] = places.try_emplace(view.node_id(), nodes.size());
    if (is_new) nodes.push_back({view.node_id(), {}});
    if (request.kind() == telemetry::EVIDENCE_KIND_METRICS && !is_new) continue;
    nodes[place->second].ranks.push_back(rank);
  }
  return nodes;
}

// Reads from all nodes of one request. Several threads take one node after another.
class EvidenceStream {
 public:
  EvidenceStream(const control::StreamEvidenceRequest& request, const control::Job& job,
                 const EvidenceStreamPorts& ports)
      : request_(request), job_(job), ports_(ports), nodes_(NodesToAsk(request, job)) {}

  absl::Status Run() {
    const int most = std::min(kNodesAskedAtOnce, static_cast<int>(nodes_.size()));
    const Helpers helpers(std::max(0, most - 1));
    std::vector<std::thread> threads;
    try {
      for (int i = 0; i < helpers.count(); ++i) threads.emplace_back([this] { AskNodes(); });
    } catch (const std::system_error&) {
      // At the limit of threads those that have begun ask all nodes.
    }
    AskNodes();
    for (std::thread& thread : threads) thread.join();
    return is_gone_ ? absl::CancelledError("the reader is gone") : absl::OkStatus();
  }

 private:
  void AskNodes() {
    for (size_t i = next_++; i < nodes_.size() && !is_gone_; i = next_++) AskNode(nodes_[i]);
  }

  // A node that did not answer is not asked for its other ranks, which would cost a timeout each.
  void AskNode(const AskedNode& asked) {
    absl::Status away;
    for (const int rank : asked.ranks) {
      absl::StatusOr<agent::EvidenceChunk> chunk = away.ok() ? Ask(asked.node, rank) : away;
      if (absl::IsUnavailable(chunk.status()) || absl::IsDeadlineExceeded(chunk.status())) {
        away = chunk.status();
      }
      control::StreamEvidenceResponse response;
      response.set_rank(rank);
      response.set_attempt(job_.attempt());
      response.set_node_id(asked.node);
      if (chunk.ok()) {
        *response.mutable_evidence() = std::move(*chunk->mutable_evidence());
      } else {
        response.set_error(std::string(chunk.status().message()));
      }
      const std::lock_guard<std::mutex> lock(emitting_);
      if (is_gone_ || !ports_.emit(response)) is_gone_ = true;
      if (is_gone_) return;
    }
  }

  absl::StatusOr<agent::EvidenceChunk> Ask(const std::string& node, int rank) const {
    agent::FetchEvidence fetch;
    fetch.set_job_id(job_.job_id());
    fetch.set_attempt(job_.attempt());
    fetch.set_rank(rank);
    fetch.set_kind(request_.kind());
    fetch.set_only_ranks_of_job(request_.only_ranks_of_job());
    *fetch.mutable_work_of() = request_.work_of();
    fetch.set_as_series(request_.as_series());
    return ports_.fetch(node, fetch);
  }

  const control::StreamEvidenceRequest& request_;
  const control::Job& job_;
  const EvidenceStreamPorts& ports_;
  const std::vector<AskedNode> nodes_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> is_gone_ = false;
  std::mutex emitting_;
};

absl::Status EmitSaved(const trace::EvidenceFile& saved, telemetry::EvidenceKind kind,
                       const std::set<int>& wanted, const EvidenceStreamPorts& ports) {
  const auto found = saved.evidence.find(kind);
  if (found == saved.evidence.end()) return absl::OkStatus();
  for (const control::StreamEvidenceResponse& response : found->second) {
    if (!wanted.empty() && wanted.count(response.rank()) == 0) continue;
    if (!ports.emit(response)) return absl::CancelledError("the reader is gone");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StreamEvidence(const control::StreamEvidenceRequest& request,
                            const EvidenceStreamPorts& ports) {
  RETURN_IF_ERROR(CheckKind(request.kind()));
  ASSIGN_OR_RETURN(const control::Job job, ports.job());
  const std::set<int> wanted(request.ranks().begin(), request.ranks().end());
  if (const auto saved = SavedOf(job, ports); saved.has_value()) {
    return EmitSaved(*saved, request.kind(), wanted, ports);
  }
  RETURN_IF_ERROR(CheckRuns(job, ports.asks_ended, "what its agents knew of it"));
  return EvidenceStream(request, job, ports).Run();
}

}  // namespace megascale::driver
