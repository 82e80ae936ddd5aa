#include "runtime/diagnose/slow_verdict.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "runtime/base/median.h"

namespace megascale::diagnose {
namespace {

// A suspect must explain this share of the lost time to be the cause.
constexpr double kShareMin = 0.5;
// A worker is blamed rather than its stage if it explains nearly what the stage does.
constexpr double kShareOfStageMin = 0.7;
// A worker, stage or link is slow if it takes this many times what its like take.
constexpr double kTimesSlowerMin = 1.1;
// And so in this share of the steps.
constexpr double kPersistentMin = 2.0 / 3;
// A worker stands out if it costs this many times what the second does, and its computing alone
// costs at least this share of the lost time.
constexpr double kTimesTheSecond = 2;
constexpr double kComputeShareMin = 0.1;
// Among more ranks than this, a rank is compared with the median of all of them, itself included.
constexpr size_t kPeersMax = 16;
// Waiting for data is a cause from this share of the step on, though all workers wait alike.
constexpr double kDataWaitMin = 0.1;
// It is one worker's if the worker's loads alone cost nearly what all loads do. Looked for among
// this many workers, each of which costs a replay of every step.
constexpr double kShareOfLoadsMin = 0.7;
constexpr size_t kLoadersMax = 8;
// A stage is slower than its layers explain if it takes this many times what the plan says. The
// first and the last stage also have the embedding and the loss, whose operations take longer than
// their number says.
constexpr double kTimesPlannedMax = 1.1;
constexpr double kTimesPlannedOfEndMax = 2;
// Or if it has got this share of its excess over the other stages after this share of the older
// steps: where few of them are left, most of them may be slow already.
constexpr double kNewShareMin = 0.5;
constexpr double kShareOfOldSteps = 0.25;

class SlownessExplanation {
 public:
  SlownessExplanation(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                      const WhatIfOptions& options, const WhatIf& result)
      : graph_(graph), steps_(steps), options_(options), result_(result) {
    FindWork();
  }

  SlowVerdict Run(const History& history) && {
    SlowVerdict verdict;
    verdict.slowdown = result_.slowdown;
    verdict.lost_seconds = std::max(0.0, result_.mean_actual() - result_.mean_ideal());
    verdict.step_seconds =
        std::accumulate(result_.measured_seconds.begin(), result_.measured_seconds.end(), 0.0) /
        static_cast<double>(steps_.size());
    verdict.grows = Grows();
    std::vector<Suspect> suspects = {
        OneWorker(), OneStage(), Link(), Collective(), DataWait(history.machine_of), Jitter()};
    const auto is_cause = [&](const Suspect& suspect) { return IsCause(suspect, suspects); };
    const auto found = std::find_if(suspects.begin(), suspects.end(), is_cause);
    if (found != suspects.end()) {
      verdict.cause = *found;
      suspects.erase(found);
    } else {
      verdict.cause.cause =
          result_.slowdown < kSlowdownMin ? SlowCause::kNone : SlowCause::kUnknown;
    }
    std::stable_sort(suspects.begin(), suspects.end(),
                     [](const Suspect& a, const Suspect& b) { return a.share > b.share; });
    verdict.excluded = std::move(suspects);
    const SlowChange change = FindChange(graph_, steps_, history);
    verdict.step_times = change.step_times;
    Compare(change, &verdict.cause);
    if (verdict.cause.cause == SlowCause::kUnequalStages) JudgeStage(history, &verdict.cause);
    return verdict;
  }

 private:
  // What has changed since older steps is the cause, unless waiting for data costs more; or unless
  // a rank that computes longer explains more than a change of exchanges.
  void Compare(const SlowChange& change, Suspect* cause) const {
    if (change.what == Change::kNone) return;
    if (cause->cause == SlowCause::kDataWait &&
        change.seconds <= cause->share * result_.mean_actual()) {
      return;
    }
    const bool computes = change.what == Change::kWorker || change.what == Change::kMachine;
    if (!computes && cause->cause == SlowCause::kOneWorker &&
        cause->times_slower >= kTimesSlowerMin) {
      return;
    }
    *cause = {.cause = CauseOf(change.what),
              .worker = change.worker,
              .peer = change.peer,
              .stage = graph_.workers()[static_cast<size_t>(change.worker)].stage,
              .share = cause->share,
              .times_slower = change.times,
              .step_times = change.step_times,
              .has_witnesses = change.has_witnesses,
              .num_workers = change.num_workers};
  }

  // The layers of a stage do not change while a job runs. So they are not the cause if the stage
  // was like the others before, if the plan gives it no more work, or if steps were once nearly as
  // short as without it.
  void JudgeStage(const History& history, Suspect* cause) const {
    const auto stage = static_cast<size_t>(cause->stage);
    const double excess = cause->times_slower - 1;
    const double before = RatioBefore(history.before, stage);
    const double planned = PlannedRatio(stage);
    const bool is_end = stage == 0 || stage + 1 == workers_of_stage_.size();
    const double times_planned_max = is_end ? kTimesPlannedOfEndMax : kTimesPlannedMax;
    if (before > 0 && before - 1 <= (1 - kNewShareMin) * excess) {
      cause->times_before = before;
    } else if (planned > 0 && cause->times_slower >= times_planned_max * planned) {
      cause->times_planned = planned;
    } else if (history.times_usual - 1 >= kNewShareMin * (result_.slowdown - 1)) {
      cause->times_usual = history.times_usual;
    } else {
      return;
    }
    cause->cause = SlowCause::kSlowerStage;
  }

  // Returns how many times as long as the other stages a stage computed in those of the older steps
  // in which this was least; 0: there are too few steps.
  double RatioBefore(absl::Span<const MeasuredStep> before, size_t stage) const {
    if (before.size() < kOldStepsMin) return 0;
    std::vector<double> ratios;
    for (const MeasuredStep& step : before) ratios.push_back(RatioOfStage(WorkOf(step), stage));
    std::sort(ratios.begin(), ratios.end());
    return ratios[static_cast<size_t>(kShareOfOldSteps * static_cast<double>(ratios.size()))];
  }

  // Returns how many times as much work as the other stages the plan gives a stage; 0: not known.
  double PlannedRatio(size_t stage) const {
    std::vector<double> work;
    for (const Worker& worker : graph_.workers()) work.push_back(worker.planned_work);
    const bool is_known = std::all_of(work.begin(), work.end(), [](double w) { return w > 0; });
    return is_known ? RatioOfStage(work, stage) : 0;
  }

  static SlowCause CauseOf(Change change) {
    switch (change) {
      case Change::kNone:
        break;
      case Change::kWorker:
        return SlowCause::kOneWorker;
      case Change::kMachine:
        return SlowCause::kSlowMachine;
      case Change::kLink:
        return SlowCause::kSlowLink;
      case Change::kMachineLink:
        return SlowCause::kSlowMachineLink;
      case Change::kLateWorker:
        return SlowCause::kLateWorker;
    }
    return SlowCause::kUnknown;
  }

  bool IsCause(const Suspect& suspect, const std::vector<Suspect>& all) const {
    if (suspect.cause == SlowCause::kDataWait) return suspect.share >= kDataWaitMin;
    if (result_.slowdown < kSlowdownMin || suspect.share < kShareMin) return false;
    if (suspect.cause == SlowCause::kOneWorker) {
      const double of_stage = std::find_if(all.begin(), all.end(), [](const Suspect& other) {
                                return other.cause == SlowCause::kUnequalStages;
                              })->share;
      return (suspect.times_slower >= kTimesSlowerMin || suspect.stands_out) &&
             suspect.share >= kShareOfStageMin * of_stage;
    }
    return suspect.times_slower >= kTimesSlowerMin;
  }

  const OperationKind& KindOf(size_t operation) const {
    return graph_.kinds()[static_cast<size_t>(graph_.operations()[operation].kind)];
  }
  const Worker& WorkerOf(size_t operation) const {
    return graph_.workers()[static_cast<size_t>(graph_.operations()[operation].worker)];
  }
  double TimeOf(const MeasuredStep& step, size_t operation) const {
    return step.times.duration[operation] +
           (options_.delays_are_work ? step.times.delay[operation] : 0);
  }
  double TimeOf(size_t step, size_t operation) const { return TimeOf(steps_[step], operation); }
  // Returns by worker how long it computes.
  std::vector<double> WorkOf(const MeasuredStep& step) const {
    std::vector<double> work(graph_.workers().size());
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (KindOf(i).role != Role::kCompute) continue;
      work[static_cast<size_t>(graph_.operations()[i].worker)] += TimeOf(step, i);
    }
    return work;
  }
  double ShareOf(const Choice& chosen) const {
    return FixOperations(graph_, steps_, options_, result_, chosen).share;
  }

  // How long each worker computes in each step, and the median of each stage.
  void FindWork() {
    for (size_t w = 0; w < graph_.workers().size(); ++w) {
      workers_of_stage_.resize(std::max(workers_of_stage_.size(), StageOf(w) + 1));
      workers_of_stage_[StageOf(w)].push_back(w);
    }
    for (const MeasuredStep& step : steps_) {
      work_.push_back(WorkOf(step));
      std::vector<double>& medians = median_of_stage_.emplace_back();
      for (const std::vector<size_t>& workers : workers_of_stage_) {
        std::vector<double> of_stage;
        for (const size_t w : workers) of_stage.push_back(work_.back()[w]);
        medians.push_back(base::UpperMedian(std::move(of_stage)));
      }
    }
  }

  // Returns the median over steps of how many times the work of `w` is that of the others of its
  // stage. Too few steps in which it is slower, or no others: 1.
  double TimesSlower(size_t w) const {
    const std::vector<size_t>& peers = workers_of_stage_[StageOf(w)];
    if (peers.size() < 2) return 1;
    std::vector<double> ratios;
    for (size_t s = 0; s < work_.size(); ++s) {
      double typical = 0;
      if (peers.size() > kPeersMax) {
        typical = median_of_stage_[s][StageOf(w)];
      } else {
        std::vector<double> of_others;
        for (const size_t o : peers) {
          if (o != w) of_others.push_back(work_[s][o]);
        }
        typical = base::UpperMedian(std::move(of_others));
      }
      ratios.push_back(RatioOf(work_[s][w], typical));
    }
    return Persistent(std::move(ratios));
  }

  size_t StageOf(size_t worker) const {
    return static_cast<size_t>(graph_.workers()[worker].stage);
  }

  static double RatioOf(double time, double typical) { return typical > 0 ? time / typical : 1; }

  // Returns the median of the steps' ratios; 1 if too few steps are slower.
  static double Persistent(std::vector<double> ratios) {
    const auto num_slower = std::count_if(ratios.begin(), ratios.end(),
                                          [](double ratio) { return ratio >= kTimesSlowerMin; });
    const double share = static_cast<double>(num_slower) / static_cast<double>(ratios.size());
    return share >= kPersistentMin ? base::UpperMedian(std::move(ratios)) : 1;
  }

  // True if the worker's slowdown stands out, and some of it is computing.
  bool StandsOut(size_t w) const {
    if (!result_.has_exact_workers || workers_of_stage_[StageOf(w)].size() < 2) return false;
    const std::vector<double>& slowdowns = result_.by_worker.all;
    double second = 1;
    for (size_t o = 0; o < slowdowns.size(); ++o) {
      if (o != w) second = std::max(second, slowdowns[o]);
    }
    if (slowdowns[w] - 1 < kTimesTheSecond * (second - 1)) return false;
    int times_slowest = 0;
    for (const std::vector<double>& step : result_.by_worker.per_step) {
      times_slowest += step[w] == *std::max_element(step.begin(), step.end()) ? 1 : 0;
    }
    const double share = static_cast<double>(times_slowest) / static_cast<double>(steps_.size());
    if (share < kPersistentMin) return false;
    const Recovery all_but_its_computing =
        FixOperations(graph_, steps_, options_, result_, [&](size_t i) {
          return graph_.operations()[i].worker != static_cast<int>(w) ||
                 KindOf(i).role != Role::kCompute;
        });
    const double lost = result_.mean_actual() - result_.mean_ideal();
    return all_but_its_computing.seconds_without - result_.mean_ideal() >= kComputeShareMin * lost;
  }

  // A rank that computes slowly is also late within exchanges, which then take long for all of
  // their members: they count as its own.
  Suspect OneWorker() const {
    Suspect suspect = {.cause = SlowCause::kOneWorker};
    if (result_.slowest_workers.empty()) return suspect;
    suspect.worker = result_.slowest_workers.front();
    suspect.times_slower = TimesSlower(static_cast<size_t>(suspect.worker));
    suspect.stands_out = StandsOut(static_cast<size_t>(suspect.worker));
    for (size_t w = 0; w < graph_.workers().size() && !suspect.stands_out; ++w) {
      const double times = TimesSlower(w);
      if (times < kTimesSlowerMin || times <= suspect.times_slower) continue;
      suspect.worker = static_cast<int>(w);
      suspect.times_slower = times;
    }
    suspect.stage = graph_.workers()[static_cast<size_t>(suspect.worker)].stage;
    std::set<int> meetings;
    for (const Operation& operation : graph_.operations()) {
      if (operation.worker == suspect.worker) meetings.insert(operation.meeting);
    }
    meetings.erase(kNoMeeting);
    suspect.share = ShareOf([&](size_t i) {
      const Operation& operation = graph_.operations()[i];
      return operation.worker == suspect.worker || meetings.count(operation.meeting) > 0;
    });
    return suspect;
  }

  Suspect OneStage() const {
    Suspect suspect = {.cause = SlowCause::kUnequalStages};
    const std::vector<double>& slowdowns = result_.by_stage.all;
    if (slowdowns.size() < 2) return suspect;
    suspect.stage = static_cast<int>(
        std::distance(slowdowns.begin(), std::max_element(slowdowns.begin(), slowdowns.end())));
    suspect.share = ShareOf([&](size_t i) { return WorkerOf(i).stage == suspect.stage; });
    const std::vector<size_t>& members = workers_of_stage_[static_cast<size_t>(suspect.stage)];
    if (members.size() == 1) suspect.worker = static_cast<int>(members.front());
    std::vector<double> ratios;
    for (const std::vector<double>& work : work_) {
      ratios.push_back(RatioOfStage(work, static_cast<size_t>(suspect.stage)));
    }
    suspect.times_slower = Persistent(std::move(ratios));
    return suspect;
  }

  // Returns how many times the work of the other stages the work of this stage is. `work`: by
  // worker.
  double RatioOfStage(const std::vector<double>& work, size_t stage) const {
    std::vector<double> here;
    std::vector<double> elsewhere;
    for (size_t w = 0; w < work.size(); ++w) {
      (StageOf(w) == stage ? here : elsewhere).push_back(work[w]);
    }
    return RatioOf(base::UpperMedian(std::move(here)), base::UpperMedian(std::move(elsewhere)));
  }

  // By meeting: the two workers of a transfer.
  using Pair = std::pair<int, int>;
  std::vector<Pair> PairsOfOperations() const {
    absl::flat_hash_map<int, Pair> pairs;
    for (size_t i = 0; i < graph_.size(); ++i) {
      const Operation& operation = graph_.operations()[i];
      if (KindOf(i).role != Role::kTransfer || operation.meeting == kNoMeeting) continue;
      const auto [found, is_new] =
          pairs.try_emplace(operation.meeting, operation.worker, operation.worker);
      found->second = {std::min(found->second.first, operation.worker),
                       std::max(found->second.second, operation.worker)};
    }
    std::vector<Pair> result(graph_.size(), Pair{-1, -1});
    for (size_t i = 0; i < graph_.size(); ++i) {
      const auto found = pairs.find(graph_.operations()[i].meeting);
      if (KindOf(i).role == Role::kTransfer && found != pairs.end()) result[i] = found->second;
    }
    return result;
  }

  Suspect Link() const {
    Suspect suspect = {.cause = SlowCause::kSlowLink};
    const std::vector<Pair> pair_of = PairsOfOperations();
    std::map<Pair, std::vector<double>> times;  // by step
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (pair_of[i].first < 0) continue;
      std::vector<double>& of_steps = times[pair_of[i]];
      of_steps.resize(steps_.size());
      for (size_t s = 0; s < steps_.size(); ++s) of_steps[s] += TimeOf(s, i);
    }
    if (times.size() < 2) return suspect;
    const auto sum = [](const auto& pair) {
      return std::accumulate(pair.second.begin(), pair.second.end(), 0.0);
    };
    const auto slowest = std::max_element(
        times.begin(), times.end(), [&](const auto& a, const auto& b) { return sum(a) < sum(b); });
    std::vector<double> ratios;
    for (size_t s = 0; s < steps_.size(); ++s) {
      std::vector<double> of_others;
      for (const auto& [pair, of_steps] : times) {
        if (pair != slowest->first) of_others.push_back(of_steps[s]);
      }
      ratios.push_back(RatioOf(slowest->second[s], base::UpperMedian(std::move(of_others))));
    }
    suspect.worker = slowest->first.first;
    suspect.peer = slowest->first.second;
    suspect.times_slower = Persistent(std::move(ratios));
    suspect.share = ShareOf([&](size_t i) { return pair_of[i] == slowest->first; });
    return suspect;
  }

  Suspect Collective() const {
    Suspect worst = {.cause = SlowCause::kSlowCollective};
    std::set<std::string> labels;
    for (const OperationKind& kind : graph_.kinds()) {
      if (kind.role == Role::kCollective) labels.insert(kind.label);
    }
    for (const std::string& label : labels) {
      const double share = ShareOf([&](size_t i) {
        return KindOf(i).role == Role::kCollective && KindOf(i).label == label;
      });
      if (!worst.label.empty() && share <= worst.share) continue;
      worst.label = label;
      worst.share = share;
    }
    const auto found =
        std::find(result_.by_kind.names.begin(), result_.by_kind.names.end(), worst.label);
    if (found != result_.by_kind.names.end()) {
      worst.times_slower =
          result_.by_kind.all[static_cast<size_t>(found - result_.by_kind.names.begin())];
    }
    return worst;
  }

  // `machine_of`: by worker; empty: not known.
  Suspect DataWait(const std::vector<int>& machine_of) const {
    Suspect suspect = {.cause = SlowCause::kDataWait};
    const double without = MeanWithout(graph_, steps_, options_,
                                       [&](size_t i) { return KindOf(i).role == Role::kLoad; });
    const double actual = result_.mean_actual();
    if (actual > 0) suspect.share = (actual - without) / actual;
    suspect.times_slower = without > 0 ? actual / without : 1;
    if (suspect.share < kDataWaitMin) return suspect;
    const auto cost_nearly_all = [&](const auto& is_one) {
      const double without_these = MeanWithout(graph_, steps_, options_, [&](size_t i) {
        return KindOf(i).role == Role::kLoad && is_one(graph_.operations()[i].worker);
      });
      return actual - without_these >= kShareOfLoadsMin * (actual - without);
    };
    const auto name = [&](int worker) {
      suspect.worker = worker;
      suspect.stage = graph_.workers()[static_cast<size_t>(worker)].stage;
    };
    const std::vector<int> loaders = LongestLoaders();
    for (const int worker : loaders) {
      if (!cost_nearly_all([&](int other) { return other == worker; })) continue;
      name(worker);
      return suspect;
    }
    // Workers of a machine wait for its loader together. If only one machine loads, it may be the
    // storage as well.
    if (machine_of.size() != graph_.workers().size() || LoadingMachines(machine_of).size() < 2)
      return suspect;
    std::set<int> tried = {-1};
    for (const int loader : loaders) {
      const int machine = machine_of[static_cast<size_t>(loader)];
      if (!tried.insert(machine).second) continue;
      const auto is_here = [&](int other) {
        return machine_of[static_cast<size_t>(other)] == machine;
      };
      if (!cost_nearly_all(is_here)) continue;
      const auto first = std::find(machine_of.begin(), machine_of.end(), machine);
      name(static_cast<int>(std::distance(machine_of.begin(), first)));
      suspect.is_machine = true;
      break;
    }
    return suspect;
  }

  std::set<int> LoadingMachines(const std::vector<int>& machine_of) const {
    std::set<int> machines;
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (KindOf(i).role != Role::kLoad) continue;
      machines.insert(machine_of[static_cast<size_t>(graph_.operations()[i].worker)]);
    }
    return machines;
  }

  // Returns the few workers that load longest, the longest first.
  std::vector<int> LongestLoaders() const {
    std::vector<double> loading(graph_.workers().size());
    for (size_t i = 0; i < graph_.size(); ++i) {
      if (KindOf(i).role != Role::kLoad) continue;
      for (size_t s = 0; s < steps_.size(); ++s) {
        loading[static_cast<size_t>(graph_.operations()[i].worker)] += TimeOf(s, i);
      }
    }
    std::vector<int> order(loading.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return loading[static_cast<size_t>(a)] > loading[static_cast<size_t>(b)];
    });
    order.resize(std::min(order.size(), kLoadersMax));
    return order;
  }

  // All that computes explains the loss together, and the worker that costs most changes from step
  // to step.
  Suspect Jitter() const {
    Suspect suspect = {.cause = SlowCause::kJitter};
    suspect.share = ShareOf([&](size_t i) {
      return KindOf(i).role == Role::kCompute || KindOf(i).role == Role::kOther;
    });
    std::map<size_t, int> times_slowest;
    for (const std::vector<double>& work : work_) {
      ++times_slowest[static_cast<size_t>(
          std::distance(work.begin(), std::max_element(work.begin(), work.end())))];
    }
    int most = 0;
    for (const auto& [worker, count] : times_slowest) most = std::max(most, count);
    const double share = static_cast<double>(most) / static_cast<double>(work_.size());
    suspect.times_slower = share < kPersistentMin ? result_.slowdown : 1;
    return suspect;
  }

  bool Grows() const {
    const std::vector<double>& seconds = result_.measured_seconds;
    const size_t third = seconds.size() / 3;
    if (third == 0) return false;
    const auto mean = [&](size_t begin) {
      return std::accumulate(seconds.begin() + static_cast<int64_t>(begin),
                             seconds.begin() + static_cast<int64_t>(begin + third), 0.0);
    };
    return mean(seconds.size() - third) >= kTimesSlowerMin * mean(0);
  }

  const OperationGraph& graph_;
  const absl::Span<const MeasuredStep> steps_;
  const WhatIfOptions options_;
  const WhatIf& result_;
  std::vector<std::vector<size_t>> workers_of_stage_;
  std::vector<std::vector<double>> work_;             // by step and worker, in seconds
  std::vector<std::vector<double>> median_of_stage_;  // of work_, by step and stage
};

}  // namespace

SlowVerdict ExplainSlowness(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                            const WhatIfOptions& options, const WhatIf& result,
                            const History& history) {
  return SlownessExplanation(graph, steps, options, result).Run(history);
}

}  // namespace megascale::diagnose
