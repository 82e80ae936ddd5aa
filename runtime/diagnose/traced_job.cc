#include "runtime/diagnose/traced_job.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status.h"
#include "runtime/base/text/printable.h"

namespace megascale::diagnose {
namespace {

// The number of streams by which the trace multiplies ranks.
constexpr int64_t kStreamsPerRank = 5;
constexpr int64_t kRanksMax = int64_t{1} << 20;
// The analysis replays every event once for each data-parallel rank, stage and kind of operation:
// about a minute.
constexpr double kReplaysMax = 2e9;

// The operations that the analysis knows; also their numbers as OperationKind.
enum Known : int {
  kForward,
  kBackward,
  kForwardSend,
  kForwardReceive,
  kBackwardSend,
  kBackwardReceive,
  kGatherParameters,
  kReduceGradients,
  kReduceSeparate,
  kReduceLayerNorm,
  kReduceEmbedding,
  kClip,
  kOptimizer,
  kGarbageCollection,
};
constexpr int kNumKnown = kGarbageCollection + 1;

struct Row {
  const char* name;
  const char* label;
  Ideal ideal;
  Role role;
};
constexpr std::array<Row, kNumKnown> kRows = {{
    {"forward-compute", "forward-compute", Ideal::kMean, Role::kCompute},
    {"backward-compute", "backward-compute", Ideal::kMean, Role::kCompute},
    {"forward-send", "forward-pp-comm", Ideal::kMedian, Role::kTransfer},
    {"forward-recv", "forward-pp-comm", Ideal::kMedian, Role::kTransfer},
    {"backward-send", "backward-pp-comm", Ideal::kMedian, Role::kTransfer},
    {"backward-recv", "backward-pp-comm", Ideal::kMedian, Role::kTransfer},
    {"params-all-gather", "params-all-gather", Ideal::kMedian, Role::kCollective},
    {"grads-reduce-scatter", "grads-reduce-scatter", Ideal::kMedian, Role::kCollective},
    {"separate-grads-all-reduce", "separate-grads-all-reduce", Ideal::kMedian, Role::kCollective},
    {"layernorm-grads-all-reduce", "layernorm-grads-all-reduce", Ideal::kMedian, Role::kCollective},
    {"embedding-grads-all-reduce", "embedding-grads-all-reduce", Ideal::kMedian, Role::kCollective},
    {"optimizer-clip-main-grad", "optimizer-clip-main-grad", Ideal::kMedian, Role::kCollective},
    {"optimizer", "optimizer", Ideal::kMean, Role::kCompute},
    {"gc", "gc", Ideal::kMean, Role::kOther},
}};

// An operation of a worker's step: kind, and its number among those of its kind.
using Key = std::tuple<int, int, int64_t>;  // worker, kind, sequence

class TracedJobBuilder {
 public:
  explicit TracedJobBuilder(const ChromeTrace& trace) : trace_(trace) {}

  absl::StatusOr<TracedJob> Build() && {
    RETURN_IF_ERROR(FindWorkers());
    RETURN_IF_ERROR(SortEvents());
    ChooseOperations();
    for (int worker = 0; worker < static_cast<int>(workers_.size()); ++worker) {
      RETURN_IF_ERROR(LinkPasses(worker));
      RETURN_IF_ERROR(LinkTransfers(worker));
      LinkCollectives(worker);
      LinkEndOfStep(worker);
    }
    std::vector<OperationKind> kinds;
    for (const Row& row : kRows) kinds.push_back({row.name, row.label, row.ideal, row.role});
    ASSIGN_OR_RETURN(job_.graph, OperationGraph::Create(std::move(kinds), std::move(workers_),
                                                        std::move(operations_)));
    AddSteps();
    return std::move(job_);
  }

 private:
  // Finds which ranks were recorded. A worker's stage is the place of its rank among those of its
  // replica, since ranks are numbered with the stage slowest.
  absl::Status FindWorkers() {
    std::map<int64_t, std::set<int64_t>> ranks_of_replica;
    for (const TraceEvent& event : trace_.events) {
      if (event.pid < 0 || event.tid < 0 || event.pid >= kRanksMax ||
          event.tid >= kRanksMax * kStreamsPerRank) {
        return absl::InvalidArgumentError(absl::StrCat(
            "an event of step ", event.step, " has pid ", event.pid, " and tid ", event.tid,
            "; expected a data-parallel rank and rank * ", kStreamsPerRank, " + stream"));
      }
      ranks_of_replica[event.pid].insert(event.tid / kStreamsPerRank);
    }
    if (ranks_of_replica.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no operation of a training step among the events (", trace_.num_without_step,
          " without args.step); expected events as StragglerAnalysis writes them"));
    }
    const size_t num_stages = ranks_of_replica.begin()->second.size();
    int replica = 0;
    for (const auto& [pid, ranks] : ranks_of_replica) {
      if (ranks.size() != num_stages) {
        return absl::InvalidArgumentError(absl::StrCat(
            "pid ", pid, " has ", ranks.size(), " ranks and pid ", ranks_of_replica.begin()->first,
            " has ", num_stages, "; expected as many stages in each data-parallel rank"));
      }
      int stage = 0;
      for (const int64_t rank : ranks) {
        worker_of_rank_.emplace(std::pair(pid, rank), static_cast<int>(workers_.size()));
        workers_.push_back({static_cast<int>(rank), replica, stage++});
      }
      ++replica;
    }
    const double replays =
        static_cast<double>(replica) + static_cast<double>(num_stages) + kNumKnown;
    if (replays * static_cast<double>(trace_.events.size()) > kReplaysMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(trace_.events.size(), " events of ", replica, " data-parallel ranks and ",
                       num_stages, " stages take too long to analyse; record fewer steps"));
    }
    job_.num_replicas = replica;
    job_.num_stages = static_cast<int>(num_stages);
    return absl::OkStatus();
  }

  absl::Status SortEvents() {
    std::vector<int> known_of_name;
    for (const std::string& name : trace_.names) {
      int known = -1;
      for (int kind = 0; kind < kNumKnown; ++kind) {
        if (name == kRows[static_cast<size_t>(kind)].name) known = kind;
      }
      known_of_name.push_back(known);
      if (known < 0) job_.ignored_names.push_back(base::Printable(name));
    }
    for (const TraceEvent& event : trace_.events) {
      const int kind = known_of_name[static_cast<size_t>(event.name)];
      if (kind < 0) continue;
      const int worker = worker_of_rank_.at({event.pid, event.tid / kStreamsPerRank});
      if (event.model_chunk > 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "step ", event.step, ", rank ", workers_[static_cast<size_t>(worker)].rank, ": ",
            kRows[static_cast<size_t>(kind)].name, " of model chunk ", event.model_chunk,
            "; expected one chunk for each stage: interleaved schedules are not analysed"));
      }
      const Key key(worker, kind, event.sequence);
      if (events_of_step_[event.step].emplace(key, &event).second) continue;
      if (static_cast<double>(++job_.num_twice) >
          kBadEventsMax * static_cast<double>(trace_.events.size())) {
        return absl::InvalidArgumentError(absl::StrCat("step ", event.step, ": ", Describe(key),
                                                       " occurs twice; expected different seq_id"));
      }
    }
    if (events_of_step_.empty()) {
      return absl::InvalidArgumentError(
          "no event has the name of an operation, such as 'forward-compute'; expected events as "
          "StragglerAnalysis writes them");
    }
    return absl::OkStatus();
  }

  // Takes the operations of the first step that has the most common number of them.
  void ChooseOperations() {
    std::map<size_t, int> num_steps;
    for (const auto& [step, events] : events_of_step_) ++num_steps[events.size()];
    size_t size = 0;
    for (const auto& [candidate, count] : num_steps) {
      if (size == 0 || count >= num_steps[size]) size = candidate;
    }
    for (const auto& [step, events] : events_of_step_) {
      if (events.size() != size) continue;
      for (const auto& [key, event] : events) {
        const auto& [worker, kind, sequence] = key;
        index_.emplace(key, static_cast<int>(operations_.size()));
        operations_.push_back({.kind = kind, .worker = worker});
        operations_.back().ends_step = kind == kOptimizer;
        first_.push_back(event);
        const bool has_optimizer = kind == kOptimizer;
        has_optimizer_ = has_optimizer_ || has_optimizer;
        uses_separate_ = uses_separate_ || kind == kReduceSeparate;
      }
      break;
    }
    if (has_optimizer_) return;
    for (Operation& operation : operations_) operation.ends_step = true;
  }

  std::string Describe(const Key& key) const {
    const auto& [worker, kind, sequence] = key;
    return absl::StrCat("rank ", workers_[static_cast<size_t>(worker)].rank, ", ",
                        kRows[static_cast<size_t>(kind)].name, " ", sequence);
  }

  // Returns the worker's operations of one kind, in order.
  std::vector<int> OfKind(int worker, int kind) const {
    std::vector<int> found;
    constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();
    for (auto it = index_.lower_bound(Key(worker, kind, kFirst));
         it != index_.end() && std::get<0>(it->first) == worker && std::get<1>(it->first) == kind;
         ++it) {
      found.push_back(it->second);
    }
    return found;
  }

  void Follow(int later, int earlier) {
    operations_[static_cast<size_t>(later)].depends_on.push_back(earlier);
  }
  void Chain(const std::vector<int>& operations) {
    for (size_t i = 1; i < operations.size(); ++i) Follow(operations[i], operations[i - 1]);
  }
  const TraceEvent& EventOf(int operation) const { return *first_[static_cast<size_t>(operation)]; }

  // Returns the worker's operations of these kinds in the order in which they began.
  std::vector<int> InOrder(int worker, std::initializer_list<int> kinds) const {
    std::vector<int> found;
    for (const int kind : kinds) {
      const std::vector<int> of_kind = OfKind(worker, kind);
      found.insert(found.end(), of_kind.begin(), of_kind.end());
    }
    std::sort(found.begin(), found.end(), [&](int a, int b) {
      return std::pair(EventOf(a).begin_seconds, a) < std::pair(EventOf(b).begin_seconds, b);
    });
    return found;
  }

  absl::Status LinkPasses(int worker) {
    const std::vector<int> passes = InOrder(worker, {kForward, kBackward});
    if (passes.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank ", workers_[static_cast<size_t>(worker)].rank,
                       " has no forward-compute or backward-compute; expected a pass for each "
                       "micro-batch"));
    }
    Chain(passes);
    // The first backward transfers are issued two passes before the first backward.
    for (size_t i = 2; i < passes.size(); ++i) {
      if (operations_[static_cast<size_t>(passes[i])].kind != kBackward) continue;
      for (const int kind : {kBackwardReceive, kBackwardSend}) {
        const std::vector<int> transfers = OfKind(worker, kind);
        if (!transfers.empty()) Follow(transfers.front(), passes[i - 2]);
      }
      break;
    }
    return absl::OkStatus();
  }

  absl::Status LinkTransfers(int worker) {
    const Worker& here = workers_[static_cast<size_t>(worker)];
    struct Direction {
      int pass, send, receive, to;
    };
    for (const auto& [pass, send, receive, to] :
         {Direction{kForward, kForwardSend, kForwardReceive, 1},
          Direction{kBackward, kBackwardSend, kBackwardReceive, -1}}) {
      const std::vector<int> passes = OfKind(worker, pass);
      const std::vector<int> sends = OfKind(worker, send);
      const std::vector<int> receives = OfKind(worker, receive);
      for (const std::vector<int>& transfers : {sends, receives}) {
        if (transfers.empty() || transfers.size() == passes.size()) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", here.rank, " has ", transfers.size(), " transfers of ",
                         kRows[static_cast<size_t>(pass)].name, " and ", passes.size(),
                         " passes; expected one for each pass or none"));
      }
      Chain(sends);
      Chain(receives);
      const int peer = PeerOf(here, to);
      const std::vector<int> there = peer < 0 ? std::vector<int>() : OfKind(peer, receive);
      if (there.size() != sends.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", here.rank, " has ", sends.size(), " times ",
                         kRows[static_cast<size_t>(send)].name, " and the stage that receives has ",
                         there.size(), " times ", kRows[static_cast<size_t>(receive)].name));
      }
      for (size_t i = 0; i < sends.size(); ++i) {
        Follow(sends[i], passes[i]);
        operations_[static_cast<size_t>(sends[i])].meeting = num_meetings_;
        operations_[static_cast<size_t>(there[i])].meeting = num_meetings_++;
      }
      for (size_t i = 0; i < receives.size(); ++i) {
        Follow(passes[i], receives[i]);
        if (i > 0) Follow(receives[i], passes[i - 1]);
      }
    }
    return absl::OkStatus();
  }

  // Returns the worker of the same replica `to` stages further; -1: there is none.
  int PeerOf(const Worker& here, int to) const {
    const int stage = here.stage + to;
    return stage >= 0 && stage < job_.num_stages ? here.replica * job_.num_stages + stage : -1;
  }

  // Returns the number of the meeting of this name.
  int MeetingOf(int kind, int64_t sequence, int place) {
    const auto [found, is_new] = meetings_.try_emplace(Key(place, kind, sequence), num_meetings_);
    if (is_new) ++num_meetings_;
    return found->second;
  }

  void LinkCollectives(int worker) {
    const Worker& here = workers_[static_cast<size_t>(worker)];
    if (job_.num_replicas > 1) {
      Chain(InOrder(worker, {kGatherParameters, kReduceGradients}));
      for (const int kind : {kGatherParameters, kReduceGradients, kReduceSeparate}) {
        int64_t sequence = 0;
        for (const int operation : OfKind(worker, kind)) {
          operations_[static_cast<size_t>(operation)].meeting =
              MeetingOf(kind, sequence++, here.stage);
        }
      }
      const std::vector<int> gathers = OfKind(worker, kGatherParameters);
      const std::vector<int> forwards = OfKind(worker, kForward);
      if (!gathers.empty() && !forwards.empty()) Follow(forwards.front(), gathers.back());
      const std::vector<int> reductions = OfKind(worker, kReduceGradients);
      const std::vector<int> backwards = OfKind(worker, kBackward);
      if (uses_separate_ && !reductions.empty() && !backwards.empty()) {
        Follow(reductions.front(), backwards.back());
      }
    }
    for (const int operation : OfKind(worker, kReduceEmbedding)) {
      operations_[static_cast<size_t>(operation)].meeting =
          MeetingOf(kReduceEmbedding, 0, here.replica);
    }
    for (const int operation : OfKind(worker, kClip)) {
      operations_[static_cast<size_t>(operation)].meeting = MeetingOf(kClip, 0, 0);
    }
  }

  void LinkEndOfStep(int worker) {
    const std::vector<int> passes = InOrder(worker, {kForward, kBackward});
    std::vector<int> chain = {passes.back()};
    const auto append = [&](int kind) {
      const std::vector<int> operations = OfKind(worker, kind);
      chain.insert(chain.end(), operations.begin(), operations.end());
    };
    const bool reduces_in_passes = job_.num_replicas > 1 && uses_separate_;
    append(kGarbageCollection);
    append(kReduceLayerNorm);
    append(kReduceEmbedding);
    if (reduces_in_passes) {
      append(kReduceSeparate);
    } else if (job_.num_replicas > 1) {
      append(kReduceGradients);
    }
    append(kClip);
    append(kOptimizer);
    const std::vector<int> reductions = OfKind(worker, kReduceGradients);
    if (reduces_in_passes && !reductions.empty() && chain.size() > 1) {
      for (const int kind : {kReduceLayerNorm, kReduceEmbedding, kReduceSeparate}) {
        const std::vector<int> operations = OfKind(worker, kind);
        if (operations.empty()) continue;
        Follow(operations.front(), reductions.back());
        break;
      }
    }
    Chain(chain);
  }

  void AddSteps() {
    for (const auto& [step, events] : events_of_step_) {
      MeasuredStep measured = {.step = step};
      measured.times.delay.assign(index_.size(), 0);
      measured.times.duration.resize(index_.size());
      double begin = std::numeric_limits<double>::max();
      double end = std::numeric_limits<double>::lowest();
      bool fits = events.size() == index_.size();
      for (const auto& [key, event] : events) {
        const auto found = index_.find(key);
        fits = fits && found != index_.end();
        if (!fits) break;
        measured.times.duration[static_cast<size_t>(found->second)] = event->seconds;
        begin = std::min(begin, event->begin_seconds);
        end = std::max(end, event->begin_seconds + event->seconds);
      }
      measured.seconds = end - begin;
      if (fits) {
        job_.steps.push_back(std::move(measured));
      } else {
        ++job_.num_steps_left_out;
      }
    }
  }

  const ChromeTrace& trace_;
  TracedJob job_;
  std::vector<Worker> workers_;
  std::map<std::pair<int64_t, int64_t>, int> worker_of_rank_;  // by pid and rank
  std::map<int64_t, std::map<Key, const TraceEvent*>> events_of_step_;
  std::map<Key, int> index_;  // of operations
  std::vector<Operation> operations_;
  std::vector<const TraceEvent*> first_;  // by operation: its event in the chosen step
  bool has_optimizer_ = false;
  bool uses_separate_ = false;  // gradients are reduced while passes run
  std::map<Key, int> meetings_;
  int num_meetings_ = 0;
};

}  // namespace

absl::StatusOr<TracedJob> JobOfTrace(const ChromeTrace& trace) {
  return TracedJobBuilder(trace).Build();
}

}  // namespace megascale::diagnose
