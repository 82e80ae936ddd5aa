// Traces of running jobs, with real processes, read as Perfetto would.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/fd.h"
#include "runtime/plan/instruction.h"
#include "tests/e2e/cluster.h"

namespace megascale::e2e {
namespace {

using nlohmann::json;
using plan::InstructionId;

struct Slice {
  int rank = 0;
  int thread = 0;
  int64_t step = 0;
  std::string name;
  double begin = 0;  // us
  double end = 0;
  double begins_to_move = 0;  // after waiting
  bool unfinished = false;
};

struct Arrow {
  json from;
  json to;
};

struct Trace {
  std::map<int, std::string> ranks;
  std::map<std::pair<int, int>, std::string> threads;
  std::vector<Slice> slices;
  std::vector<Arrow> messages;
  std::vector<Arrow> dependencies;
};

Trace Parse(const std::string& path) {
  const json file = json::parse(base::ReadFile(path, 1 << 28).value_or(""));
  Trace trace;
  std::map<int64_t, json> starts;
  for (const json& event : file["traceEvents"]) {
    const int rank = event["pid"];
    const int thread = event["tid"];
    if (event["ph"] == "M" && event["name"] == "process_name") {
      trace.ranks[rank] = event["args"]["name"];
    } else if (event["ph"] == "M" && event["name"] == "thread_name") {
      trace.threads[{rank, thread}] = event["args"]["name"];
    } else if (event["ph"] == "X" && event["cat"] != "waiting") {
      const double begin = event["ts"];
      trace.slices.push_back({.rank = rank,
                              .thread = thread,
                              .step = event["args"]["step"],
                              .name = event["name"],
                              .begin = begin,
                              .end = begin + event["dur"].get<double>(),
                              .begins_to_move = begin + event["args"].value("waited_us", 0.0),
                              .unfinished = event["args"].contains("unfinished")});
    } else if (event["ph"] == "s") {
      starts[event["id"]] = event;
    } else if (event["ph"] == "f") {
      auto& arrows = event["cat"] == "message" ? trace.messages : trace.dependencies;
      arrows.push_back({starts.at(event["id"]), event});
    }
  }
  return trace;
}

// Returns the slice in which an end of an arrow lies.
const Slice* SliceAt(const Trace& trace, const json& end) {
  const double at = end["ts"];
  for (const Slice& slice : trace.slices) {
    if (slice.rank == end["pid"] && slice.thread == end["tid"] && slice.begin <= at &&
        at < slice.end) {
      return &slice;
    }
  }
  return nullptr;
}

class TraceTest : public ::testing::Test {
 protected:
  void Start(std::vector<std::string> sets = {}) {
    cluster_.StartDriver();
    cluster_.StartAgent(0, 2);
    cluster_.StartAgent(1, 2);
    sets.push_back("train.steps=1000000");
    cluster_.Submit("job", sets);
    ASSERT_TRUE(cluster_.WaitForStep("job", 10));
  }
  std::string path() const { return cluster_.directory() + "/trace.json"; }
  // Traces the newest `steps` steps.
  Trace Take(int steps) {
    result_ = cluster_.Megascale({"trace", "job", "--steps", absl::StrCat(steps), "-o", path()});
    EXPECT_EQ(result_.exit_code, 0) << result_.err;
    return Parse(path());
  }

  // Returns the instructions of the job's plan, by the rank that represents its stage.
  std::map<int, std::multiset<std::string>> Planned() {
    const std::string file = cluster_.directory() + "/plan.json";
    const CommandResult plan =
        cluster_.Megascale({"plan", cluster_.directory() + "/job.yaml", "--trace", file});
    EXPECT_EQ(plan.exit_code, 0) << plan.err;
    const json trace = json::parse(base::ReadFile(file, 1 << 28).value_or(""));
    std::map<int, std::multiset<std::string>> names;
    for (const json& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["cat"] == "waiting") continue;
      names[event["pid"]].insert(event["name"]);
    }
    return names;
  }

  Cluster cluster_;
  CommandResult result_;
};

TEST_F(TraceTest, EveryRankAndStreamHasItsStepsAndEveryMessageItsArrow) {
  Start();
  const Trace trace = Take(3);
  ASSERT_EQ(trace.ranks.size(), 4u);
  for (const auto& [rank, name] : trace.ranks) {
    const std::string node = cluster_.Status("job").ranks(rank).node_id();
    EXPECT_EQ(name, absl::StrCat("rank ", rank, ": node ", node, ", stage ", rank / 2, ", data ",
                                 rank % 2));
  }
  // A step is whole if every rank has its end.
  std::map<int64_t, std::set<int>> ended;
  std::map<std::pair<int, int>, std::set<int64_t>> steps_of;
  for (const Slice& slice : trace.slices) {
    const auto operation = InstructionId::Parse(slice.name).value().operation();
    if (operation == plan::OpKind::kOptimizerStep && !slice.unfinished) {
      ended[slice.step].insert(slice.rank);
    }
    steps_of[{slice.rank, slice.thread}].insert(slice.step);
  }
  std::set<int64_t> whole;
  for (const auto& [step, ranks] : ended) {
    if (ranks.size() == 4) whole.insert(step);
  }
  ASSERT_GE(whole.size(), 3u);
  const std::set<int64_t> first_three(whole.begin(), std::next(whole.begin(), 3));
  EXPECT_EQ(*first_three.rbegin(), *first_three.begin() + 2);
  EXPECT_GE(*first_three.begin(), 1);
  for (const auto& [thread, name] : trace.threads) {
    for (const int64_t step : first_three) {
      EXPECT_EQ(steps_of[thread].count(step), 1u) << thread.first << " " << name << " " << step;
    }
  }
  // The spans are exactly the instructions of the plan.
  const auto planned = Planned();
  for (const int64_t step : first_three) {
    std::map<int, std::multiset<std::string>> seen;
    for (const Slice& slice : trace.slices) {
      if (slice.step == step) seen[slice.rank].insert(slice.name);
    }
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(seen[rank], planned.at(rank / 2 * 2)) << rank;
  }
  EXPECT_EQ(trace.threads.size(), 4u * 6u);  // compute, batch, two of messages, data, optimizer
  EXPECT_EQ(trace.threads.at({0, 1}), "compute");
  // Four micro-batches, both ways, over two replicas.
  std::map<int64_t, int> num_messages;
  for (const Arrow& arrow : trace.messages) {
    const Slice* const send = SliceAt(trace, arrow.from);
    const Slice* const receive = SliceAt(trace, arrow.to);
    ASSERT_NE(send, nullptr) << arrow.from;
    ASSERT_NE(receive, nullptr) << arrow.to;
    EXPECT_EQ(send->step, receive->step);
    EXPECT_EQ(InstructionId::Parse(receive->name)->MessageId().ToString(), send->name);
    EXPECT_NE(receive->name, send->name);
    EXPECT_EQ(std::abs(send->rank - receive->rank), 2);  // the other stage of the same replica
    EXPECT_LE(send->begin, receive->end + 0.001) << send->name << ": one machine, one clock";
    EXPECT_GE(receive->begins_to_move, send->begin - 0.001);  // sums of doubles
    ++num_messages[send->step];
  }
  for (const int64_t step : first_three) EXPECT_EQ(num_messages[step], 4 * 2 * 2) << step;
  EXPECT_FALSE(trace.dependencies.empty());
  for (const Arrow& arrow : trace.dependencies) {
    const Slice* const producer = SliceAt(trace, arrow.from);
    const Slice* const consumer = SliceAt(trace, arrow.to);
    ASSERT_TRUE(producer != nullptr && consumer != nullptr);
    EXPECT_LE(producer->end, consumer->begin + 0.001) << producer->name << consumer->name;
  }
}

TEST_F(TraceTest, WhatAStepWentForAddsUpToIt) {
  Start();
  const Trace trace = Take(5);
  const CommandResult table = cluster_.Megascale({"trace", "job", "--table", "-"});
  EXPECT_EQ(table.out.rfind("dp_rank,tp_rank,stage,rank,step,optype,", 0), 0u) << table.out;
  EXPECT_NE(table.out.find(",forward-compute,"), std::string::npos) << table.out;
  const std::vector<std::string> lines = absl::StrSplit(result_.out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 5u) << result_.out;  // what, header, two stages, the file
  EXPECT_EQ(lines[0].rfind("4 ranks, steps ", 0), 0u) << lines[0];
  for (int stage = 0; stage < 2; ++stage) {
    const std::vector<std::string> words =
        absl::StrSplit(lines[2 + static_cast<size_t>(stage)], ' ', absl::SkipEmpty());
    // STAGE RANKS STEP "ms" and seven shares, each with its "%".
    ASSERT_EQ(words.size(), 4u + 14u) << result_.out;
    EXPECT_EQ(words[0], absl::StrCat(stage));
    EXPECT_EQ(words[1], "2");
    double milliseconds = 0;
    ASSERT_TRUE(absl::SimpleAtod(words[2], &milliseconds));
    double sum = 0;
    for (size_t i = 4; i < words.size(); i += 2) {
      double share = 0;
      ASSERT_TRUE(absl::SimpleAtod(words[i], &share)) << words[i];
      sum += share;
    }
    EXPECT_NEAR(sum, 100, 7 * 0.05 + 1e-9) << result_.out;
    double compute = 0;
    ASSERT_TRUE(absl::SimpleAtod(words[4], &compute));
    EXPECT_GT(compute, 0);
    // The means of the trace over that stage's first five steps.
    std::map<std::pair<int, int64_t>, std::pair<double, double>> spans;
    for (const Slice& slice : trace.slices) {
      if (slice.rank / 2 != stage) continue;
      auto [it, is_new] =
          spans.try_emplace({slice.rank, slice.step}, std::pair(slice.begin, slice.end));
      it->second.first = std::min(it->second.first, slice.begin);
      it->second.second = std::max(it->second.second, slice.end);
    }
    const int64_t first = spans.begin()->first.second;
    double total = 0;
    for (const auto& [key, span] : spans) {
      if (key.second < first + 5) total += span.second - span.first;
    }
    EXPECT_NEAR(milliseconds, total / 10 / 1000, 0.001);
  }
}

TEST_F(TraceTest, StatusTellsWhatTheNewestStepsWentFor) {
  Start();
  const CommandResult text = cluster_.Megascale({"status", "job"});
  EXPECT_NE(text.out.find("\nSTAGE  RANKS  STEP"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\n3 steps up to "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\ndiagnosis "), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("\ngoodput "), std::string::npos) << text.out;
  // On a busy machine an agent may answer too late to be shown.
  json stages;
  const auto has_both = [&] {
    const CommandResult result = cluster_.Megascale({"status", "job", "--times", "-o", "json"});
    stages = json::parse(result.out)["stage_times"];
    return stages.size() == 2;
  };
  ASSERT_TRUE(WaitUntil(has_both, 60)) << stages;
  for (const json& stage : stages) {
    EXPECT_EQ(stage["num_ranks"], 2);
    EXPECT_EQ(stage["num_steps"], 3);
    const double sum =
        stage["compute_seconds"].get<double>() + stage["optimizer_seconds"].get<double>() +
        stage["tensor_parallel_seconds"].get<double>() + stage["pipeline_seconds"].get<double>() +
        stage["data_parallel_seconds"].get<double>() + stage["data_wait_seconds"].get<double>() +
        stage["bubble_seconds"].get<double>();
    EXPECT_NEAR(sum, stage["step_seconds"].get<double>(), 1e-9);
    EXPECT_GT(stage["compute_seconds"].get<double>(), 0);
  }
  const CommandResult diagnosis =
      cluster_.Megascale({"diagnose", "job", "-o", "json", "--svg", path()});
  ASSERT_EQ(diagnosis.exit_code, 0) << diagnosis.err;
  EXPECT_GE(json::parse(diagnosis.out)["blocking_slowdown"].get<double>(), 0.9) << diagnosis.out;
  EXPECT_NE(base::ReadFile(path(), 1 << 20).value_or("").find("rank 3"), std::string::npos);
  const CommandResult plain = cluster_.Megascale({"status", "job", "-o", "json"});
  EXPECT_TRUE(json::parse(plain.out)["stage_times"].empty()) << plain.out;
}

TEST_F(TraceTest, AJobThatStandsStillShowsWhereItsRanksAre) {
  Start({"fault.heartbeat_timeout=300s", "fault.progress_timeout=300s"});
  const pid_t stopped = cluster_.Status("job").ranks(3).status().pid();
  ASSERT_GT(stopped, 0);
  ASSERT_EQ(::kill(stopped, SIGSTOP), 0);
  const auto wait_for_it = [&] {
    const Trace trace = Take(1);
    std::set<int> waiting;
    for (const Slice& slice : trace.slices) {
      if (slice.unfinished && slice.end - slice.begin > 500'000) waiting.insert(slice.rank);
    }
    return waiting.count(0) + waiting.count(1) + waiting.count(2) == 3;
  };
  EXPECT_TRUE(WaitUntil(wait_for_it, 60)) << result_.out;
  // `diagnose` names the rank and its node, and shows the others as waiting.
  json diagnosis;
  const auto is_named = [&] {
    const CommandResult result = cluster_.Megascale({"diagnose", "job", "-o", "json"});
    diagnosis = json::parse(result.out, nullptr, false);
    return diagnosis.is_object() && diagnosis["verdict"].value("rank", -1) == 3;
  };
  EXPECT_TRUE(WaitUntil(is_named, 60)) << diagnosis;
  EXPECT_EQ(diagnosis["verdict"]["node"], "n1") << diagnosis;
  std::set<int> waiting;
  for (const json& rank : diagnosis["waiting"]) waiting.insert(rank["rank"].get<int>());
  EXPECT_EQ(waiting, (std::set<int>{0, 1, 2})) << diagnosis;
  // The stacks of all, the stopped one's too, which stays stopped.
  std::set<int> in_main;
  for (const json& stack : diagnosis["stacks"]) {
    const std::vector<std::string> functions = stack["functions"];
    if (std::count(functions.begin(), functions.end(), "actors::RunWorker") == 0) continue;
    for (const json& rank : stack["ranks"]) in_main.insert(rank.get<int>());
  }
  EXPECT_EQ(in_main, (std::set<int>{0, 1, 2, 3})) << diagnosis;
  EXPECT_EQ(::kill(stopped, SIGCONT), 0);
}

TEST_F(TraceTest, SeveralChunksOnARankHaveAllTheirMessages) {
  Start({"parallel.virtual_pipeline_model_parallel_size=2"});
  const Trace trace = Take(1);
  std::map<int, std::set<int>> chunks_of;  // by rank
  for (const Slice& slice : trace.slices) {
    const auto id = InstructionId::Parse(slice.name).value();
    if (id.operation() == plan::OpKind::kForward) chunks_of[slice.rank].insert(id.chunk());
  }
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(chunks_of[rank], (std::set<int>{rank / 2, rank / 2 + 2})) << rank;
  }
  const int64_t step = trace.slices.front().step;
  int num_messages = 0;
  for (const Arrow& arrow : trace.messages) {
    const Slice* const send = SliceAt(trace, arrow.from);
    const Slice* const receive = SliceAt(trace, arrow.to);
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    EXPECT_EQ(InstructionId::Parse(receive->name)->MessageId().ToString(), send->name);
    num_messages += send->step == step ? 1 : 0;
  }
  EXPECT_EQ(num_messages, 3 * 4 * 2 * 2);  // between 4 chunks, micro-batches, ways, replicas
}

TEST_F(TraceTest, WhatTensorRanksExchangeIsATrackOfItsOwnAndNoComputing) {
  Start({"parallel.tensor_model_parallel_size=2", "parallel.data_parallel_size=1"});
  const Trace trace = Take(2);
  const int64_t step = trace.slices.front().step;
  for (int rank = 0; rank < 4; ++rank) {
    std::map<std::string, const Slice*> passes;
    std::vector<const Slice*> exchanges;
    for (const Slice& slice : trace.slices) {
      if (slice.rank != rank || slice.step != step) continue;
      const auto id = InstructionId::Parse(slice.name).value();
      if (plan::IsExchangeOfPass(id)) {
        EXPECT_EQ(trace.threads.at({rank, slice.thread}), "tensor-parallel");
        exchanges.push_back(&slice);
      } else {
        passes[slice.name] = &slice;
      }
    }
    EXPECT_FALSE(exchanges.empty()) << "rank " << rank;
    for (const Slice* exchange : exchanges) {
      const auto id = InstructionId::Parse(exchange->name).value();
      const Slice& pass = *passes.at(id.WithPiece(0).ToString());
      EXPECT_GE(exchange->begin, pass.begin - 0.001) << exchange->name;
      EXPECT_LE(exchange->end, pass.end + 0.001) << exchange->name;
    }
  }
  const CommandResult result = cluster_.Megascale({"status", "job", "--times", "-o", "json"});
  const json status = json::parse(result.out);
  for (const json& stage : status["stage_times"]) {
    EXPECT_GT(stage["tensor_parallel_seconds"].get<double>(), 0) << result.out;
    EXPECT_GT(stage["compute_seconds"].get<double>(), 0) << result.out;
  }
}

// The second machine has another name, and a monotonic clock that is 5000 s ahead.
TEST_F(TraceTest, MachinesWhoseClocksDifferAreShownOnOne) {
  const std::vector<std::string> elsewhere = {"/usr/bin/unshare",
                                              "--time",
                                              "--monotonic",
                                              "5000",
                                              "--uts",
                                              "sh",
                                              "-c",
                                              "hostname ms-elsewhere && exec \"$@\"",
                                              "sh"};
  std::vector<std::string> probe = elsewhere;
  probe.push_back("true");
  if (e2e::Run(probe).exit_code != 0) GTEST_SKIP() << "this user may not make a time namespace";
  cluster_.StartDriver();
  cluster_.StartAgent(0, 2);
  cluster_.RunAgentsUnder(elsewhere);
  cluster_.StartAgent(1, 2);
  cluster_.Submit("job", {"train.steps=1000000"});
  ASSERT_TRUE(cluster_.WaitForStep("job", 10));
  const Trace trace = Take(5);
  const std::string says = "the clocks of 2 machines agree to ";
  const size_t at = result_.out.find(says);
  ASSERT_NE(at, std::string::npos) << result_.out;
  const double error = std::stod(result_.out.substr(at + says.size())) * 1000;
  EXPECT_GT(error, 0);
  EXPECT_LT(error, 1e6) << "half a second at most, for each of the two";
  ASSERT_GE(trace.messages.size(), 5u * 4 * 2 * 2);
  for (const Arrow& arrow : trace.messages) {
    const Slice* const send = SliceAt(trace, arrow.from);
    const Slice* const receive = SliceAt(trace, arrow.to);
    ASSERT_TRUE(send != nullptr && receive != nullptr);
    EXPECT_NE(send->rank / 2, receive->rank / 2);  // the stages are on different machines
    EXPECT_LE(send->begin, receive->end + error) << send->name;
    EXPECT_LE(receive->begin - send->end, 5e6) << send->name;
  }
}

TEST_F(TraceTest, MistakesAndJobsThatDoNotRunSaySo) {
  Start();
  struct Mistake {
    std::vector<std::string> arguments;
    int exit_code = 0;
    std::string says;
  };
  cluster_.Submit("waits");
  const std::vector<Mistake> mistakes = {
      {{"trace", "nobody"}, 4, "nobody"},
      {{"trace", "waits"}, 1, "none of its ranks has begun"},
      {{"trace", "job", "--steps", "0"}, 2, "expected 1 to 1000"},
      {{"trace", "job", "-o", "json"}, 2, "expected the file for the trace"},
      {{"trace", "job", "-o", "/nowhere/trace.json"}, 4, "/nowhere/trace.json"},
      {{"trace", "job", "--retry-for", "0s", "--address", "unix:/tmp/ms-nobody/d.sock"},
       3,
       "unix:/tmp/ms-nobody/d.sock"},
  };
  for (const Mistake& mistake : mistakes) {
    const CommandResult result = cluster_.Megascale(mistake.arguments);
    EXPECT_EQ(result.exit_code, mistake.exit_code) << mistake.says << "\n" << result.err;
    EXPECT_NE(result.err.find(mistake.says), std::string::npos) << result.err;
  }
  EXPECT_EQ(cluster_.Megascale({"cancel", "job"}).exit_code, 0);
  cluster_.WaitForEnd("job");
  // Its last steps are kept soon after its end.
  const bool is_kept = WaitUntil(
      [&] {
        return cluster_.Megascale({"trace", "job"}).exit_code == 0;
      },
      60);
  EXPECT_TRUE(is_kept) << cluster_.Megascale({"trace", "job"}).err;
}

TEST_F(TraceTest, WorksOverMutualTlsAndAfterARestartOfTheRanks) {
  cluster_.UseTls();
  Start();
  ::kill(cluster_.Status("job").ranks(1).status().pid(), SIGKILL);
  const bool again = WaitUntil(
      [&] {
        const control::v1::Job job = cluster_.Status("job");
        return job.attempt() == 2 && job.state() == control::v1::JOB_STATE_RUNNING;
      },
      60);
  ASSERT_TRUE(again);
  const bool traced = WaitUntil(
      [&] {
        return cluster_.Megascale({"trace", "job", "-o", path()}).exit_code == 0;
      },
      30);
  ASSERT_TRUE(traced);
  EXPECT_EQ(Parse(path()).ranks.size(), 4u);
}

}  // namespace
}  // namespace megascale::e2e
