#include "runtime/diagnose/what_if.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"

namespace megascale::diagnose {
namespace {

// The share of workers that M_W fixes, in percent.
constexpr size_t kSlowestPercent = 3;

double Mean(absl::Span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The mean of the two middle values if their number is even.
double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(middle), values.end());
  if (values.size() % 2 == 1) return values[middle];
  const double lower =
      *std::max_element(values.begin(), values.begin() + static_cast<int64_t>(middle));
  return (lower + values[middle]) / 2;
}

double Ratio(double time, double ideal) { return ideal > 0 ? time / ideal : 1; }

double WorkOf(const MeasuredStep& step, const WhatIfOptions& options, size_t operation) {
  return step.times.duration[operation] +
         (options.delays_are_work ? step.times.delay[operation] : 0);
}

// Replays a step in which each operation takes what `seconds_of` says.
double ReplayWith(const OperationGraph& graph, const std::function<double(size_t)>& seconds_of) {
  OperationTimes times;
  times.delay.assign(graph.size(), 0);
  times.duration.resize(graph.size());
  for (size_t i = 0; i < graph.size(); ++i) times.duration[i] = seconds_of(i);
  return graph.Replay(times);
}

class Analysis {
 public:
  Analysis(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
           const WhatIfOptions& options)
      : graph_(graph), steps_(steps), options_(options) {
    MEGASCALE_CHECK(!steps.empty());
    FindIdeal();
  }

  WhatIf Run() && {
    for (size_t s = 0; s < steps_.size(); ++s) {
      result_.steps.push_back(steps_[s].step);
      result_.measured_seconds.push_back(steps_[s].seconds);
      result_.actual_seconds.push_back(ReplayKeeping(s, [](size_t) { return true; }));
      result_.ideal_seconds.push_back(ReplayKeeping(s, [](size_t) { return false; }));
    }
    result_.launch_slowdown = Ratio(Mean(result_.measured_seconds), result_.mean_actual());
    result_.slowdown = Ratio(result_.mean_actual(), result_.mean_ideal());
    DecomposeByKind();
    const std::vector<Worker>& workers = graph_.workers();
    result_.by_replica = DecomposeByPlace([&](size_t w) { return workers[w].replica; });
    result_.by_stage = DecomposeByPlace([&](size_t w) { return workers[w].stage; });
    DecomposeByWorker();
    FixWorkers();
    return std::move(result_);
  }

 private:
  using PlaceOfOperation = std::function<int(size_t operation)>;

  void FindIdeal() {
    std::vector<std::vector<double>> values(graph_.kinds().size());
    for (size_t s = 0; s < steps_.size(); ++s) {
      for (size_t i = 0; i < graph_.size(); ++i) {
        values[static_cast<size_t>(graph_.operations()[i].kind)].push_back(
            WorkOf(steps_[s], options_, i));
      }
    }
    for (size_t kind = 0; kind < values.size(); ++kind) {
      const bool is_mean = graph_.kinds()[kind].ideal == Ideal::kMean;
      result_.ideal_of_kind.push_back(is_mean ? Mean(values[kind])
                                              : Median(std::move(values[kind])));
    }
  }

  // Replays a step in which the operations that `keeps` chooses have their measured times, and the
  // others ideal ones.
  double ReplayKeeping(size_t step, const Choice& keeps) const {
    return ReplayWith(graph_, [&](size_t i) {
      return keeps(i) ? WorkOf(steps_[step], options_, i)
                      : result_.ideal_of_kind[static_cast<size_t>(graph_.operations()[i].kind)];
    });
  }

  Decomposition Decompose(std::vector<std::string> names, const PlaceOfOperation& part_of) const {
    Decomposition result;
    result.names = std::move(names);
    result.per_step.resize(steps_.size());
    for (size_t part = 0; part < result.names.size(); ++part) {
      double sum = 0;
      for (size_t s = 0; s < steps_.size(); ++s) {
        const double seconds =
            ReplayKeeping(s, [&](size_t i) { return part_of(i) == static_cast<int>(part); });
        sum += seconds;
        result.per_step[s].push_back(Ratio(seconds, result_.ideal_seconds[s]));
      }
      result.all.push_back(Ratio(sum / static_cast<double>(steps_.size()), result_.mean_ideal()));
    }
    return result;
  }

  void DecomposeByKind() {
    std::map<std::string, int> numbers;  // of labels
    for (const OperationKind& kind : graph_.kinds()) numbers.emplace(kind.label, 0);
    std::vector<std::string> names;
    for (auto& [label, number] : numbers) {
      number = static_cast<int>(names.size());
      names.push_back(label);
    }
    std::vector<int> part_of_kind;
    for (const OperationKind& kind : graph_.kinds()) part_of_kind.push_back(numbers[kind.label]);
    result_.by_kind = Decompose(std::move(names), [&](size_t i) {
      return part_of_kind[static_cast<size_t>(graph_.operations()[i].kind)];
    });
  }

  size_t WorkerOf(size_t operation) const {
    return static_cast<size_t>(graph_.operations()[operation].worker);
  }

  Decomposition DecomposeByPlace(const std::function<int(size_t worker)>& place_of) const {
    int num_places = 0;
    for (size_t w = 0; w < graph_.workers().size(); ++w) {
      num_places = std::max(num_places, place_of(w) + 1);
    }
    std::vector<std::string> names;
    for (int place = 0; place < num_places; ++place) names.push_back(absl::StrCat(place));
    return Decompose(std::move(names), [&](size_t i) { return place_of(WorkerOf(i)); });
  }

  void DecomposeByWorker() {
    const std::vector<Worker>& workers = graph_.workers();
    std::vector<std::string> names;
    for (const Worker& worker : workers) names.push_back(absl::StrCat(worker.rank));
    result_.has_exact_workers = static_cast<int>(workers.size()) <= options_.exact_workers_max;
    if (result_.has_exact_workers) {
      result_.by_worker =
          Decompose(std::move(names), [&](size_t i) { return graph_.operations()[i].worker; });
      return;
    }
    const auto smaller = [&](const std::vector<double>& by_replica,
                             const std::vector<double>& by_stage) {
      std::vector<double> slowdowns;
      for (const Worker& worker : workers) {
        slowdowns.push_back(std::min(by_replica[static_cast<size_t>(worker.replica)],
                                     by_stage[static_cast<size_t>(worker.stage)]));
      }
      return slowdowns;
    };
    result_.by_worker.names = std::move(names);
    result_.by_worker.all = smaller(result_.by_replica.all, result_.by_stage.all);
    for (size_t s = 0; s < steps_.size(); ++s) {
      result_.by_worker.per_step.push_back(
          smaller(result_.by_replica.per_step[s], result_.by_stage.per_step[s]));
    }
  }

  Recovery Fix(const Choice& chosen) const {
    return FixOperations(graph_, steps_, options_, result_, chosen);
  }

  void FixWorkers() {
    const std::vector<Worker>& workers = graph_.workers();
    std::vector<int> order(workers.size());
    std::iota(order.begin(), order.end(), 0);
    const auto slowdown_of = [&](int w) { return result_.by_worker.all[static_cast<size_t>(w)]; };
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      if (slowdown_of(a) != slowdown_of(b)) return slowdown_of(a) > slowdown_of(b);
      return workers[static_cast<size_t>(a)].rank < workers[static_cast<size_t>(b)].rank;
    });
    order.resize((order.size() * kSlowestPercent + 99) / 100);
    std::vector<bool> is_slowest(workers.size());
    int last_stage = 0;
    for (const int w : order) is_slowest[static_cast<size_t>(w)] = true;
    for (const Worker& worker : workers) last_stage = std::max(last_stage, worker.stage);
    result_.slowest_workers = std::move(order);
    result_.fix_slowest_workers = Fix([&](size_t i) { return is_slowest[WorkerOf(i)]; });
    result_.fix_last_stage =
        Fix([&](size_t i) { return workers[WorkerOf(i)].stage == last_stage; });
  }

  const OperationGraph& graph_;
  const absl::Span<const MeasuredStep> steps_;
  const WhatIfOptions options_;
  WhatIf result_;
};

}  // namespace

double WhatIf::mean_actual() const { return Mean(actual_seconds); }
double WhatIf::mean_ideal() const { return Mean(ideal_seconds); }

WhatIf AnalyzeSteps(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                    const WhatIfOptions& options) {
  return Analysis(graph, steps, options).Run();
}

Recovery FixOperations(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                       const WhatIfOptions& options, const WhatIf& result, const Choice& chosen) {
  const auto share_of = [](double actual, double ideal, double without) {
    return actual > ideal ? (actual - without) / (actual - ideal) : 0;
  };
  Recovery recovery;
  for (size_t s = 0; s < steps.size(); ++s) {
    const double seconds = ReplayWith(graph, [&](size_t i) {
      return chosen(i) ? result.ideal_of_kind[static_cast<size_t>(graph.operations()[i].kind)]
                       : WorkOf(steps[s], options, i);
    });
    recovery.seconds_per_step.push_back(seconds);
    recovery.share_per_step.push_back(
        share_of(result.actual_seconds[s], result.ideal_seconds[s], seconds));
  }
  recovery.seconds_without = Mean(recovery.seconds_per_step);
  recovery.share = share_of(result.mean_actual(), result.mean_ideal(), recovery.seconds_without);
  return recovery;
}

double MeanWithout(const OperationGraph& graph, absl::Span<const MeasuredStep> steps,
                   const WhatIfOptions& options, const Choice& chosen) {
  double sum = 0;
  for (const MeasuredStep& step : steps) {
    sum += ReplayWith(graph, [&](size_t i) { return chosen(i) ? 0.0 : WorkOf(step, options, i); });
  }
  return sum / static_cast<double>(steps.size());
}

}  // namespace megascale::diagnose
