#include "controlplane/driver/relay/log_stream.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controlplane/driver/core/driver_core.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

namespace control = megascale::control::v1;

constexpr int64_t kPieceBytesMax = 256 << 10;
// A line longer than this is passed on in parts.
constexpr size_t kLineBytesMax = 64 << 10;
// Logs that are asked for at a time; their pieces are in memory together.
constexpr size_t kAskedAtOnce = 16;
// Threads of all readers together that wait for an answer, beside the readers' own.
constexpr int kThreadsMax = 64;

// One log that is being read.
struct Source {
  int rank = 0;                    // -1: a host process
  std::vector<std::string> nodes;  // where it may be; one, once it was found
  bool found = false;
  bool is_away = false;  // the node did not answer the last time
  int64_t offset = 0;
  std::string partial;  // of a line
};

bool IsTerminal(const control::Job& job) {
  return job.state() == control::JOB_STATE_SUCCEEDED || job.state() == control::JOB_STATE_FAILED ||
         job.state() == control::JOB_STATE_CANCELLED;
}

// Returns the attempt to read next. After the last known attempt of an earlier epoch, that is the
// first attempt of the newest epoch: numbers between them were never used.
int64_t AttemptAfter(int64_t attempt, int64_t newest) {
  return std::max(attempt, newest / kAttemptsOfAnEpoch * kAttemptsOfAnEpoch) + 1;
}

using Answer = absl::StatusOr<megascale::agent::v1::LogChunk>;

class LogStream {
 public:
  LogStream(const control::StreamLogsRequest& request, const LogStreamPorts& ports)
      : request_(request), ports_(ports) {}

  absl::Status Run() {
    for (;;) {
      ASSIGN_OR_RETURN(const control::Job job, ports_.job());
      if (attempt_ == 0) RETURN_IF_ERROR(MakeSources(job, FirstAttempt(job)));
      const bool more = ReadAll();
      if (stopped_) return Stopped();
      if (more) continue;
      const bool later_attempt = request_.attempt() == 0 && attempt_ < job.attempt();
      const bool ended = !request_.follow() || IsTerminal(job) || later_attempt;
      if (!ended || ShouldWaitForNodes()) {
        if (!ports_.wait(kFollowInterval)) return Stopped();
        continue;
      }
      Flush();
      if (!later_attempt) break;
      RETURN_IF_ERROR(MakeSources(job, AttemptAfter(attempt_, job.attempt())));
    }
    for (const Source& source : sources_) any_found_ |= source.found;
    if (any_found_) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat(
        "job ", request_.job_id(), ": no connected node has a log of ",
        attempt_ == 0 ? "it; it has not started yet" : absl::StrCat("its attempt ", attempt_)));
  }

 private:
  static absl::Status Stopped() {
    return absl::UnavailableError("the driver is stopping, or the reader of the logs is gone");
  }

  int64_t FirstAttempt(const control::Job& job) const {
    if (request_.attempt() != 0) return request_.attempt();
    int64_t first = 0;
    for (const control::LogPosition& at : request_.resume_at()) {
      first = std::max<int64_t>(first, at.attempt());
    }
    return first == 0 ? job.attempt() : first;
  }

  absl::Status MakeSources(const control::Job& job, int64_t attempt) {
    for (const Source& source : sources_) any_found_ |= source.found;
    sources_.clear();
    attempt_ = attempt;
    if (attempt_ == 0) return absl::OkStatus();
    if (request_.rank() < -1 || request_.rank() >= job.ranks_size()) {
      return absl::NotFoundError(absl::StrCat("job ", request_.job_id(), ": has no rank ",
                                              request_.rank(), "; its ranks are 0 to ",
                                              job.ranks_size() - 1));
    }
    ASSIGN_OR_RETURN(const control::GetClusterResponse cluster, ports_.cluster());
    std::set<std::string> nodes;  // that have or had ranks of it, perhaps
    for (const auto& node : cluster.nodes()) {
      if (node.alive()) nodes.insert(node.node_id());
    }
    for (int rank = 0; rank < job.ranks_size(); ++rank) {
      if (request_.rank() >= 0 && request_.rank() != rank) continue;
      Source source;
      source.rank = rank;
      source.nodes.push_back(job.ranks(rank).node_id());
      for (const std::string& node : nodes) {
        if (node != source.nodes.front()) source.nodes.push_back(node);
      }
      sources_.push_back(std::move(source));
    }
    if (request_.rank() < 0) AddHosts(job, nodes);
    Resume();
    return absl::OkStatus();
  }

  void AddHosts(const control::Job& job, std::set<std::string> nodes) {
    // A restarted driver knows where the ranks are before their agents have reconnected.
    for (const control::RankView& rank : job.ranks()) {
      if (!rank.node_id().empty()) nodes.insert(rank.node_id());
    }
    for (const std::string& node : nodes) {
      Source host;
      host.rank = -1;
      host.nodes.push_back(node);
      sources_.push_back(std::move(host));
    }
  }

  // Continues logs that were read before at the same offset, on the same nodes.
  void Resume() {
    for (const control::LogPosition& at : request_.resume_at()) {
      if (at.attempt() != attempt_) continue;
      const auto is_at = [&](const Source& source) {
        return source.rank == at.rank() && (at.rank() >= 0 || source.nodes.front() == at.node_id());
      };
      auto source = std::find_if(sources_.begin(), sources_.end(), is_at);
      if (source == sources_.end()) {
        if (request_.rank() >= 0) continue;
        source = sources_.emplace(sources_.end());
        source->rank = at.rank();
      }
      source->nodes = {at.node_id()};
      source->offset = at.offset();
      source->found = true;
    }
  }

  // After a restart of the driver, agents whose logs were being read will soon reconnect.
  bool ShouldWaitForNodes() {
    if (request_.resume_at().empty()) return false;
    const bool any_away = std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
      return source.found && source.is_away;
    });
    return any_away && ++num_waits_ * kFollowInterval <= kNodeAbsenceMax;
  }

  // Reads one piece of each log; returns false if there is no new one. The agents of several logs
  // are asked at the same time: one that is slow or away holds up the others once, not in turn.
  bool ReadAll() {
    bool more = false;
    for (size_t begin = 0; begin < sources_.size() && !stopped_; begin += kAskedAtOnce) {
      const size_t end = std::min(sources_.size(), begin + kAskedAtOnce);
      std::vector<std::future<Answer>> answers;
      for (size_t i = begin; i < end; ++i) {
        answers.push_back(Ask(&sources_[i], /*at_once=*/end - begin > 1));
      }
      for (size_t i = begin; i < end; ++i) more |= Read(&sources_[i], &answers[i - begin]);
    }
    return more;
  }

  // Asks the first node of a log: in a thread of its own if `at_once` and if all readers together
  // have few such threads, else when the answer is taken.
  std::future<Answer> Ask(const Source* source, bool at_once) {
    static std::atomic<int> num_threads = 0;
    const auto fetch = [this, source] {
      return ports_.fetch(source->nodes.front(), FetchOf(*source));
    };
    if (at_once && ++num_threads <= kThreadsMax) {
      try {
        return std::async(std::launch::async, [fetch] {
          Answer answer = fetch();
          --num_threads;
          return answer;
        });
      } catch (const std::system_error& /*error*/) {
        // The system refused a thread.
      }
    }
    if (at_once) --num_threads;
    return std::async(std::launch::deferred, fetch);
  }

  megascale::agent::v1::FetchLog FetchOf(const Source& source) const {
    megascale::agent::v1::FetchLog fetch;
    fetch.set_job_id(request_.job_id());
    fetch.set_attempt(attempt_);
    fetch.set_rank(source.rank);
    fetch.set_offset(source.offset);
    fetch.set_max_bytes(kPieceBytesMax);
    return fetch;
  }

  // Takes one piece; returns false if there is no new one. `first`: the answer of the first node.
  bool Read(Source* source, std::future<Answer>* first) {
    const megascale::agent::v1::FetchLog fetch = FetchOf(*source);
    for (const std::string& node : source->nodes) {
      const bool is_first = &node == &source->nodes.front();
      const Answer chunk = is_first ? first->get() : ports_.fetch(node, fetch);
      source->is_away = !chunk.ok() && !absl::IsNotFound(chunk.status());
      if (!chunk.ok()) continue;
      if (!source->found) {
        source->found = true;
        source->nodes = {std::string(node)};
      }
      const bool moved = chunk->next_offset() > source->offset;
      source->offset = chunk->next_offset();
      source->partial += chunk->data();
      EmitLines(source);
      return moved;
    }
    return false;
  }

  void EmitLines(Source* source) {
    size_t whole = source->partial.rfind('\n') + 1;  // npos + 1 is 0
    if (whole == 0 && source->partial.size() > kLineBytesMax) whole = source->partial.size();
    Emit(source, whole);
  }

  void Emit(Source* source, size_t size_bytes) {
    if (size_bytes == 0 || stopped_) return;
    control::StreamLogsResponse response;
    response.set_rank(source->rank);
    response.set_attempt(attempt_);
    response.set_node_id(source->nodes.front());
    response.set_data(source->partial.substr(0, size_bytes));
    source->partial.erase(0, size_bytes);
    response.set_end_offset(source->offset - static_cast<int64_t>(source->partial.size()));
    stopped_ = !ports_.emit(response);
  }

  void Flush() {
    for (Source& source : sources_) Emit(&source, source.partial.size());
  }

  const control::StreamLogsRequest& request_;
  const LogStreamPorts& ports_;
  int64_t attempt_ = 0;
  std::vector<Source> sources_;
  bool any_found_ = false;
  bool stopped_ = false;
  int num_waits_ = 0;  // for nodes that are away
};

}  // namespace

absl::Status StreamLogs(const control::StreamLogsRequest& request, const LogStreamPorts& ports) {
  return LogStream(request, ports).Run();
}

}  // namespace megascale::driver
