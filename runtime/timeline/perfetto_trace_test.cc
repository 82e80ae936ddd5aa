#include "runtime/timeline/perfetto_trace.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/timeline/testing/test_two_stages.h"

namespace megascale::timeline {
namespace {

using nlohmann::json;
using plan::RankPlan;

// A trace, as a viewer reads it.
struct Read {
  std::map<std::string, json> slices;  // "1 F.c1.m0": of rank 1
  std::map<std::string, json> names;   // "1": of process 1; "1.2" of its thread 2
  std::vector<std::pair<json, json>> messages;
  std::vector<std::pair<json, json>> dependencies;
  int num_waits = 0;
};

Read Parse(const std::string& text) {
  Read read;
  std::map<int64_t, json> starts;
  const json trace = json::parse(text);
  for (const json& event : trace["traceEvents"]) {
    const std::string pid = absl::StrCat(event["pid"].get<int>());
    if (event["ph"] == "M" && event["name"] == "process_name") {
      read.names[pid] = event["args"]["name"];
    } else if (event["ph"] == "M" && event["name"] == "thread_name") {
      read.names[absl::StrCat(pid, ".", event["tid"].get<int>())] = event["args"]["name"];
    } else if (event["ph"] == "X" && event["name"] == "waits") {
      ++read.num_waits;
    } else if (event["ph"] == "X") {
      read.slices[absl::StrCat(pid, " ", event["name"].get<std::string>())] = event;
    } else if (event["ph"] == "s") {
      starts[event["id"].get<int64_t>()] = event;
    } else if (event["ph"] == "f") {
      EXPECT_EQ(event["bp"], "e");
      auto& arrows = event["cat"] == "message" ? read.messages : read.dependencies;
      arrows.emplace_back(starts.at(event["id"].get<int64_t>()), event);
    }
  }
  return read;
}

// Whether the end of an arrow lies in a slice.
bool IsIn(const json& end, const json& slice) {
  const double ts = end["ts"];
  return end["pid"] == slice["pid"] && end["tid"] == slice["tid"] &&
         ts >= slice["ts"].get<double>() &&
         ts < slice["ts"].get<double>() + slice["dur"].get<double>();
}

TEST(PerfettoTraceTest, HasASliceForEveryInstructionAndAnArrowForEveryMessage) {
  const std::vector<RankPlan> plans = TwoStages();
  const Read read = Parse(PerfettoTrace(plans, {{TimedStep{.time = Time(plans)}}}));
  EXPECT_EQ(read.slices.size(), plans[0].instructions.size() + plans[1].instructions.size());
  EXPECT_EQ(read.messages.size(), 6u);  // three activations, three gradients
  EXPECT_FALSE(read.dependencies.empty());
  const json& forward = read.slices.at("1 F.c1.m0");
  EXPECT_EQ(forward["ts"], 105.0);  // us: the first stage's forward, then the link
  EXPECT_EQ(forward["dur"], 100.0);
  EXPECT_EQ(forward["args"]["flops"], 100);
  EXPECT_EQ(forward["args"]["chunk"], 1);
  EXPECT_EQ(forward["args"]["microbatch"], 0);
  EXPECT_FALSE(forward["args"].contains("step"));
  EXPECT_EQ(read.names.at("1"), "stage 1");
  EXPECT_EQ(read.names.at("1.1"), "compute");
}

TEST(PerfettoTraceTest, AReceiveThatWaitedSaysSoInsideItself) {
  const std::vector<RankPlan> plans = TwoStages();
  const Read read = Parse(PerfettoTrace(plans, {{TimedStep{.time = Time(plans)}}}));
  const json& receive = read.slices.at("1 RA.c1.m0");
  EXPECT_EQ(receive["ts"], 0.0);
  EXPECT_EQ(receive["dur"], 105.0);
  EXPECT_EQ(receive["args"]["waited_us"], 100.0);
  EXPECT_EQ(receive["args"]["bytes"], 10);
  EXPECT_GT(read.num_waits, 0);
}

TEST(PerfettoTraceTest, AnArrowGoesFromWithinTheSendToWithinItsReceive) {
  const std::vector<RankPlan> plans = TwoStages();
  const Read read = Parse(PerfettoTrace(plans, {{TimedStep{.time = Time(plans)}}}));
  for (const auto& [name, slice] : read.slices) {
    const auto id = plan::InstructionId::Parse(slice["name"].get<std::string>()).value();
    if (!plan::IsTransfer(id.operation()) || id == id.MessageId()) continue;
    const json& send =
        read.slices.at(absl::StrCat(1 - slice["pid"].get<int>(), " ", id.MessageId().ToString()));
    int num_arrows = 0;
    for (const auto& [from, to] : read.messages) {
      num_arrows += IsIn(from, send) && IsIn(to, slice) ? 1 : 0;
    }
    EXPECT_EQ(num_arrows, 1) << name;
  }
}

TEST(PerfettoTraceTest, ShowsStepsNamesAndWhatHasNotEnded) {
  const std::vector<RankPlan> plans = TwoStages();
  TimedStep step{.step = 7, .whole = false, .time = Time(plans)};
  for (SpanTime& span : step.time.ranks[1]) span.state = SpanState::kNotBegun;
  step.time.ranks[0].back().state = SpanState::kRuns;
  const std::vector<std::string> names = {"rank 0, node a", "rank 1, node b"};
  const Read read = Parse(PerfettoTrace(plans, {{step}}, names));
  EXPECT_EQ(read.names.at("1"), "rank 1, node b");
  EXPECT_EQ(read.slices.size(), plans[0].instructions.size());
  EXPECT_TRUE(read.messages.empty());
  const std::string last = plans[0].instructions.back().id.ToString();
  EXPECT_EQ(read.slices.at("0 " + last)["args"]["unfinished"], true);
  EXPECT_EQ(read.slices.at("0 " + last)["args"]["step"], 7);
  EXPECT_FALSE(read.slices.at("0 F.c0.m0")["args"].contains("unfinished"));
}

TEST(PerfettoTraceTest, ExchangesWithinPassesHaveATrackOfTheirOwn) {
  const std::vector<RankPlan> plans = TwoStages();
  TimedStep step{.step = 7, .time = Time(plans), .exchanges = {{}, {}}};
  step.exchanges[1] = {{.id = plan::InstructionId(plan::OpKind::kForward, 1, 2).WithPiece(3),
                        .bytes = 640,
                        .begin = 5000,
                        .end = 7000},
                       {.id = plan::InstructionId(plan::OpKind::kForward, 1, 2).WithPiece(4),
                        .begin = 7000,
                        .end = 7500,
                        .state = SpanState::kRuns}};
  step.time.ranks[0][0].exchange = 1500;
  const Read read = Parse(PerfettoTrace(plans, {{step}}));
  const json& exchange = read.slices.at("1 F.c1.m2.p3");
  EXPECT_EQ(read.names.at(absl::StrCat("1.", exchange["tid"].get<int>())), "tensor-parallel");
  EXPECT_EQ(exchange["ts"], 5.0);
  EXPECT_EQ(exchange["dur"], 2.0);
  EXPECT_EQ(exchange["args"], json({{"step", 7}, {"microbatch", 2}, {"chunk", 1}, {"bytes", 640}}));
  EXPECT_EQ(read.slices.at("1 F.c1.m2.p4")["args"]["unfinished"], true);
  for (const auto& [name, text] : read.names) {
    if (name[0] == '0') {
      EXPECT_NE(text, "tensor-parallel");
    }
  }
  const std::string first = plans[0].instructions[0].id.ToString();
  EXPECT_EQ(read.slices.at("0 " + first)["args"]["exchange_us"], 1.5);
}

TEST(PerfettoTraceTest, ThePassesOfAnEvaluationAreSlicesOfTheComputeStream) {
  const std::vector<RankPlan> plans = TwoStages();
  TimedStep step{.step = 7, .time = Time(plans)};
  step.evaluations = {
      {{.id = plan::InstructionId(plan::OpKind::kEvaluate, 0, 1), .begin = 90'000, .end = 92'000}},
      {{.id = plan::InstructionId(plan::OpKind::kGatherLosses),
        .stream = plan::StreamKind::kDataParallel,
        .bytes = 16,
        .begin = 95'000,
        .end = 96'000,
        .state = SpanState::kRuns}}};
  const Read read = Parse(PerfettoTrace(plans, {{step}}));
  const json& pass = read.slices.at("0 E.c0.m1");
  EXPECT_EQ(read.names.at(absl::StrCat("0.", pass["tid"].get<int>())), "compute");
  EXPECT_EQ(pass["ts"], 90.0);
  EXPECT_EQ(pass["dur"], 2.0);
  EXPECT_EQ(pass["args"], json({{"step", 7}, {"microbatch", 1}, {"chunk", 0}}));
  EXPECT_EQ(read.slices.at("1 EN")["args"]["unfinished"], true);
}

TEST(PerfettoTraceTest, AMessageThatHasNotComeHasNoArrow) {
  const std::vector<RankPlan> plans = TwoStages();
  TimedStep step{.step = 7, .whole = false, .time = Time(plans)};
  for (size_t i = 0; i < plans[1].instructions.size(); ++i) {
    if (plans[1].instructions[i].kind() == plan::OpKind::kReceiveActivation) {
      step.time.ranks[1][i].state = SpanState::kRuns;
    }
  }
  EXPECT_EQ(Parse(PerfettoTrace(plans, {{step}})).messages.size(), 3u);  // the gradients
}

TEST(PerfettoTraceTest, MessagesOfTwoStepsAreNotMixedUp) {
  const std::vector<RankPlan> plans = TwoStages();
  std::vector<TimedStep> steps = {{.step = 1, .time = Time(plans)},
                                  {.step = 2, .time = Time(plans)}};
  for (auto& rank : steps[1].time.ranks) {
    for (SpanTime& span : rank) {
      span.ready += 10'000'000;
      span.begin += 10'000'000;
      span.end += 10'000'000;
    }
  }
  const Read read = Parse(PerfettoTrace(plans, steps));
  EXPECT_EQ(read.messages.size(), 12u);
  for (const auto& [from, to] : read.messages) {
    EXPECT_EQ(from["ts"].get<double>() < 10'000, to["ts"].get<double>() < 10'000);
  }
}

}  // namespace
}  // namespace megascale::timeline
