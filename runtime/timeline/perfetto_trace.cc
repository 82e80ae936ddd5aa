#include "runtime/timeline/perfetto_trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace megascale::timeline {
namespace {

using plan::Instruction;
using plan::InstructionId;
using plan::RankPlan;
using plan::StreamKind;

using Json = nlohmann::ordered_json;

double Micros(int64_t nanos) { return static_cast<double>(nanos) / 1e3; }
int Thread(StreamKind stream) { return static_cast<int>(stream) + 1; }

class Trace {
 public:
  Trace(absl::Span<const RankPlan> plans, absl::Span<const std::string> names)
      : plans_(plans), names_(names) {}

  std::string Write(absl::Span<const TimedStep> steps) {
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      NameRank(rank, std::any_of(steps.begin(), steps.end(), [&](const TimedStep& step) {
                 return !step.exchanges.empty() && !step.exchanges[rank].empty();
               }));
    }
    for (const TimedStep& step : steps) AddStep(step);
    absl::StrAppend(&text_, "\n]}\n");
    return std::move(text_);
  }

 private:
  // Events are written at once: collecting them all as a tree would take many times the text's
  // memory.
  void Add(const Json& event) {
    absl::StrAppend(&text_, first_ ? "\n" : ",\n", event.dump());
    first_ = false;
  }

  void NameRank(size_t rank, bool exchanges) {
    const RankPlan& plan = plans_[rank];
    const auto add = [&](const char* what, int thread, Json args) {
      Add({{"ph", "M"},
           {"name", what},
           {"pid", plan.rank},
           {"tid", thread},
           {"args", std::move(args)}});
    };
    add("process_name", 0, {{"name", names_.empty() ? NameOf(plan) : names_[rank]}});
    add("process_sort_index", 0, {{"sort_index", plan.rank}});
    std::vector<StreamKind> streams = plan::StreamsOf(plan);
    if (exchanges) streams.push_back(StreamKind::kTensorParallel);
    for (const StreamKind stream : streams) {
      add("thread_name", Thread(stream), {{"name", std::string(plan::Name(stream))}});
      add("thread_sort_index", Thread(stream), {{"sort_index", Thread(stream)}});
    }
  }

  void AddStep(const TimedStep& step) {
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (size_t i = 0; i < plans_[rank].instructions.size(); ++i) AddSlice(step, rank, i);
      if (!step.exchanges.empty()) {
        for (const ExchangeTime& exchange : step.exchanges[rank]) {
          AddPart(step, rank, StreamKind::kTensorParallel, exchange);
        }
      }
      if (!step.evaluations.empty()) {
        for (const EvaluationTime& part : step.evaluations[rank]) {
          AddPart(step, rank, part.stream, part);
        }
      }
    }
    ends_.clear();
    for (size_t rank = 0; rank < plans_.size(); ++rank) {
      for (size_t i = 0; i < plans_[rank].instructions.size(); ++i) {
        if (HasBegun(step, rank, i)) AddArrows(step, rank, i);
      }
    }
  }

  static const SpanTime& TimeOf(const TimedStep& step, size_t rank, size_t index) {
    return step.time.ranks[rank][index];
  }
  static bool HasBegun(const TimedStep& step, size_t rank, size_t index) {
    return TimeOf(step, rank, index).state != SpanState::kNotBegun;
  }

  // Returns the parts of an id as arguments.
  static Json ArgumentsOf(const TimedStep& step, InstructionId id) {
    Json args = Json::object();
    if (step.step > 0) args["step"] = step.step;
    if (id.microbatch() != InstructionId::kNoMicrobatch) args["microbatch"] = id.microbatch();
    if (id.chunk() != InstructionId::kNoChunk) args["chunk"] = id.chunk();
    return args;
  }

  static Json ArgumentsOf(const TimedStep& step, const Instruction& instruction,
                          const SpanTime& span) {
    Json args = ArgumentsOf(step, instruction.id);
    args["waited_us"] = Micros(span.begin - span.ready);
    if (span.exchange > 0) args["exchange_us"] = Micros(span.exchange);
    if (instruction.bytes > 0) args["bytes"] = instruction.bytes;
    if (instruction.flops > 0) args["flops"] = instruction.flops;
    if (span.state == SpanState::kRuns) args["unfinished"] = true;
    return args;
  }

  void AddSlice(const TimedStep& step, size_t rank, size_t index) {
    const SpanTime& span = TimeOf(step, rank, index);
    if (span.state == SpanState::kNotBegun) return;
    const Instruction& instruction = plans_[rank].instructions[index];
    const auto add = [&](const std::string& name, absl::string_view category, int64_t end,
                         Json args) {
      Add({{"ph", "X"},
           {"name", name},
           {"cat", std::string(category)},
           {"pid", plans_[rank].rank},
           {"tid", Thread(instruction.stream)},
           {"ts", Micros(span.ready)},
           {"dur", Micros(end - span.ready)},
           {"args", std::move(args)}});
    };
    add(instruction.id.ToString(), plan::Name(instruction.stream), span.end,
        ArgumentsOf(step, instruction, span));
    if (span.begin > span.ready) add("waits", "waiting", span.begin, Json::object());
  }

  // `part`: an ExchangeTime or EvaluationTime.
  template <typename Part>
  void AddPart(const TimedStep& step, size_t rank, StreamKind stream, const Part& part) {
    Json args = ArgumentsOf(step, part.id);
    if (part.bytes > 0) args["bytes"] = part.bytes;
    if (part.state == SpanState::kRuns) args["unfinished"] = true;
    Add({{"ph", "X"},
         {"name", part.id.ToString()},
         {"cat", std::string(plan::Name(stream))},
         {"pid", plans_[rank].rank},
         {"tid", Thread(stream)},
         {"ts", Micros(part.begin)},
         {"dur", Micros(part.end - part.begin)},
         {"args", std::move(args)}});
  }

  struct Place {
    size_t rank = 0;
    size_t index = 0;
  };

  void Arrow(const TimedStep& step, const char* category, Place from, Place to) {
    const auto end = [&](const char* phase, Place place) {
      const SpanTime& span = TimeOf(step, place.rank, place.index);
      // The time must lie within the slice, which excludes its end.
      const int64_t at = std::max(span.ready, std::min(span.begin, span.end - 1));
      Json event = {{"ph", phase},
                    {"id", num_arrows_},
                    {"name", "then"},
                    {"cat", category},
                    {"pid", plans_[place.rank].rank},
                    {"tid", Thread(plans_[place.rank].instructions[place.index].stream)},
                    {"ts", Micros(at)}};
      // Binds the arrow to the slice that encloses this time, not to the next one.
      if (*phase == 'f') event["bp"] = "e";
      Add(event);
    };
    ++num_arrows_;
    end("s", from);
    end("f", to);
  }

  void AddArrows(const TimedStep& step, size_t rank, size_t index) {
    const RankPlan& plan = plans_[rank];
    const Instruction& instruction = plan.instructions[index];
    for (const int producer : instruction.depends_on) {
      const auto from = static_cast<size_t>(producer);
      if (plan.instructions[from].stream == instruction.stream) continue;
      if (HasBegun(step, rank, from)) Arrow(step, "dependency", {rank, from}, {rank, index});
    }
    if (!IsTransfer(instruction.kind())) return;
    const Place here = {rank, index};
    const auto [known, is_first] = ends_.try_emplace(MeetingOf(plan, instruction), here);
    if (is_first) return;
    // The message has the id of its send.
    const bool sends = instruction.id == instruction.id.MessageId();
    const Place& send = sends ? here : known->second;
    const Place& receive = sends ? known->second : here;
    // A message that has not arrived has no arrow.
    if (TimeOf(step, receive.rank, receive.index).state == SpanState::kEnded) {
      Arrow(step, "message", send, receive);
    }
  }

  const absl::Span<const RankPlan> plans_;
  const absl::Span<const std::string> names_;
  std::string text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  bool first_ = true;
  std::map<MeetingName, Place> ends_;  // ends of this step's messages that were seen first
  int64_t num_arrows_ = 0;
};

}  // namespace

std::string PerfettoTrace(absl::Span<const RankPlan> plans, absl::Span<const TimedStep> steps,
                          absl::Span<const std::string> names) {
  return Trace(plans, names).Write(steps);
}

}  // namespace megascale::timeline
