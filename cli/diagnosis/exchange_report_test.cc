// Tests of what the evidence of agents becomes: exchange_report.h and stack_report.h.
#include "cli/diagnosis/exchange_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "cli/diagnosis/stack_report.h"
#include "runtime/plan/operation.h"

namespace megascale::cli {
namespace {

using control::v1::StreamEvidenceResponse;

const plan::InstructionId kReduce(plan::OpKind::kReduceGradients, 1, 0, 0);
const std::vector<trace::RankName> kNames = {
    {"rank 0", "a", ""}, {"rank 1", "b", ""}, {"rank 2", "c", ""}};
const std::vector<int> kMachines = {0, 1, 2};

// Ranks 0 to 2 reduce; 0 has sent `arrived` of 4 MiB to 2.
std::vector<StreamEvidenceResponse> Reduce(int64_t arrived) {
  constexpr int64_t kBytes = 4 << 20;
  std::vector<StreamEvidenceResponse> responses(3);
  for (int rank = 0; rank < 3; ++rank) {
    responses[static_cast<size_t>(rank)].set_rank(rank);
    telemetry::v1::Evidence& evidence = *responses[static_cast<size_t>(rank)].mutable_evidence();
    evidence.set_monotonic_nanos(9'000'000'000);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank) continue;
      telemetry::v1::ExchangeState& state = *evidence.add_running();
      state.set_instruction(kReduce.packed());
      state.set_peer(peer);
      state.set_send_bytes(kBytes);
      state.set_transmitted_bytes(kBytes);
      state.set_delivered_bytes(rank == 0 && peer == 2 ? arrived : kBytes);
      state.set_receive_bytes(kBytes);
      state.set_received_bytes(rank == 2 && peer == 0 ? arrived : kBytes);
      state.set_changed_nanos(2'000'000'000);
    }
  }
  return responses;
}

Diagnosis Unknown() {
  Diagnosis diagnosis;
  diagnosis.is_undecided = true;
  diagnosis.findings.cause = "exchange";
  return diagnosis;
}

TEST(ExchangeReportTest, ALinkIsNamedWithWhatStandsStillOnIt) {
  const std::vector<int> members = {0, 1, 2};
  Diagnosis diagnosis = Unknown();
  AddExchange(diagnose::ExplainExchange(ShownCallsOf(Reduce(1 << 20), kReduce, members)), kNames,
              kMachines, &diagnosis);
  EXPECT_EQ(diagnosis.findings.verdict,
            "stuck: the way from rank 0 (node a) to rank 2 (node c); bytes are not delivered");
  EXPECT_EQ(diagnosis.findings.cause, "link");
  EXPECT_FALSE(diagnosis.is_undecided);
  EXPECT_THAT(
      diagnosis.findings.evidence,
      testing::ElementsAre("rank 0 to rank 2: not delivered; 4.0 MiB ready, 4.0 MiB transmitted, "
                           "1.0 MiB arrived, for 7.0 s",
                           "rank 2 is likelier at fault than the way to it: all that it sent has "
                           "arrived, and it does not take these"));
}

// Rank 0 has made 1 of 4 MiB ready for rank 2, and waits for nobody. Rank 1 has left.
TEST(ExchangeReportTest, ADeviceThatIsNotReadyIsItsRankAndNoLink) {
  const std::vector<int> members = {0, 1, 2};
  std::vector<StreamEvidenceResponse> responses = Reduce(1 << 20);
  responses[1].mutable_evidence()->clear_running();
  telemetry::v1::ExchangeState* sent = nullptr;
  for (auto& state : *responses[0].mutable_evidence()->mutable_running()) {
    if (state.peer() == 2) sent = &state;
  }
  ASSERT_NE(sent, nullptr);
  sent->set_send_bytes(1 << 20);
  sent->set_transmitted_bytes(1 << 20);
  Diagnosis diagnosis = Unknown();
  AddExchange(
      diagnose::JoinExchanges(
          {diagnose::ExplainExchange(ShownCallsOf(responses, kReduce, members))}, kMachines),
      kNames, kMachines, &diagnosis);
  EXPECT_EQ(diagnosis.findings.cause, "exchange_rank");
  EXPECT_EQ(diagnosis.rank, 0);
  EXPECT_EQ(diagnosis.peer, -1);
  EXPECT_EQ(diagnosis.findings.verdict,
            "stuck: rank 0 (node a); its device does not produce the rest of what it sends, and "
            "waits for no bytes");
}

// The agents looked every 100 ms while bytes moved, and each second afterwards.
TEST(ExchangeReportTest, SinceWhenTheBytesStandIsSaidAsTheAgentsSawIt) {
  const std::vector<int> members = {0, 1, 2};
  std::vector<StreamEvidenceResponse> responses = Reduce(1 << 20);
  const auto look = [&](int rank, int peer, uint64_t sequence, int64_t millis, int64_t bytes) {
    auto* sample = responses[static_cast<size_t>(rank)].mutable_evidence()->add_in_flight();
    sample->set_seen_nanos(millis * 1'000'000);
    sample->mutable_state()->set_instruction(kReduce.packed());
    sample->mutable_state()->set_sequence(sequence);
    sample->mutable_state()->set_peer(peer);
    sample->mutable_state()->set_received_bytes(bytes);
    sample->mutable_state()->set_delivered_bytes(2 * bytes);
  };
  look(2, 0, 6, 100, 1 << 20);  // of the call before
  for (const auto& [millis, bytes] : {std::pair<int64_t, int64_t>{1600, 0},
                                      {1700, 1 << 18},
                                      {2000, 1 << 20},
                                      {3000, 1 << 20},
                                      {8000, 1 << 20}}) {
    look(2, 0, 7, millis, bytes);
    look(2, 1, 7, millis, 4 << 20);
    look(0, 2, 7, millis, bytes);
  }
  const auto verdict = diagnose::ExplainExchange(ShownCallsOf(responses, kReduce, members));
  Diagnosis diagnosis = Unknown();
  AddStandstill(responses, {kReduce}, verdict, &diagnosis);
  EXPECT_THAT(diagnosis.findings.evidence,
              testing::ElementsAre("the agent of rank 2 saw 1.0 MiB come from rank 0 to rank 2 in "
                                   "0.4 s, and nothing for 7.0 s since"));
  EXPECT_EQ(diagnosis.details["standstill"]["bytes"], 1 << 20);
  EXPECT_EQ(diagnosis.details["standstill"]["seconds"], 7.0);
  // The receiver's agent does not answer: the sender's tells.
  responses[2].set_error("node c did not answer");
  diagnosis = Unknown();
  AddStandstill(responses, {kReduce}, verdict, &diagnosis);
  EXPECT_THAT(diagnosis.findings.evidence,
              testing::ElementsAre(testing::HasSubstr("the agent of rank 0 saw 2.0 MiB come")));
  responses[0].mutable_evidence()->clear_in_flight();
  diagnosis = Unknown();
  AddStandstill(responses, {kReduce}, verdict, &diagnosis);
  EXPECT_THAT(diagnosis.findings.evidence, testing::IsEmpty());
}

TEST(ExchangeReportTest, ARankThatIsNamedStays) {
  const std::vector<int> members = {0, 1, 2};
  Diagnosis diagnosis = Unknown();
  diagnosis.rank = 1;
  diagnosis.findings.verdict = "stuck: rank 1";
  AddExchange(diagnose::ExplainExchange(ShownCallsOf(Reduce(0), kReduce, members)), kNames,
              kMachines, &diagnosis);
  EXPECT_EQ(diagnosis.findings.verdict, "stuck: rank 1");
  EXPECT_EQ(diagnosis.findings.evidence.size(), 1u);
}

TEST(ExchangeReportTest, OtherCallsAndOtherRanksAreLeftOut) {
  const plan::InstructionId other(plan::OpKind::kReduceGradients, 0, 0, 0);
  const std::vector<int> members = {0, 2, 7};
  const std::vector<diagnose::ShownCall> calls = ShownCallsOf(Reduce(0), other, members);
  ASSERT_EQ(calls.size(), 3u);
  EXPECT_TRUE(calls[0].is_known);
  EXPECT_FALSE(calls[0].is_inside);
  EXPECT_FALSE(calls[2].is_known);
  Diagnosis diagnosis = Unknown();
  AddExchange(diagnose::ExplainExchange(calls), kNames, kMachines, &diagnosis);
  EXPECT_TRUE(diagnosis.is_undecided);
  EXPECT_EQ(diagnosis.findings.cause, "exchange");
}

// --- stacks -------------------------------------------------------------------------------------

// Rank 1 reads a file, the others wait for it; the log thread of all does the same.
std::vector<StreamEvidenceResponse> StacksOf(int num_ranks) {
  std::vector<StreamEvidenceResponse> responses(static_cast<size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    StreamEvidenceResponse& response = responses[static_cast<size_t>(rank)];
    response.set_rank(rank);
    const auto add = [&](const std::string& thread, const std::vector<std::string>& functions) {
      telemetry::v1::ThreadStack* stack = response.mutable_evidence()->add_stacks();
      stack->set_name(thread);
      for (const std::string& function : functions) stack->add_frames()->set_function(function);
    };
    add("log", {"futex"});
    if (rank == 1) {
      add("compute",
          {"__inner", "pread64", "megascale::data::Load(int)", "std::__invoke()", "clone"});
    } else {
      add("compute", {"poll", "megascale::comm::Receive(int)"});
    }
  }
  return responses;
}

TEST(StackReportTest, TheStackThatDiffersIsShownAndWhatAllDoIsNot) {
  Diagnosis diagnosis;
  diagnosis.rank = 1;
  AddStacks(StacksOf(4), &diagnosis);
  EXPECT_THAT(diagnosis.findings.stacks,
              testing::ElementsAre("rank 1, thread compute: pread64 < data::Load",
                                   "ranks 0, 2, 3, thread compute: poll < comm::Receive"));
  EXPECT_EQ(diagnosis.details["stacks"].size(), 3u) << "all are in the JSON";
  EXPECT_THAT(ToText(diagnosis.findings), testing::HasSubstr("stacks    rank 1, thread compute"));
}

TEST(StackReportTest, HostileOrMissingStacksAreToldInOneLineEach) {
  std::vector<StreamEvidenceResponse> responses = StacksOf(1);
  responses[0].mutable_evidence()->mutable_stacks(0)->set_name("a\x1b[2J\n");
  responses[0].mutable_evidence()->mutable_stacks(0)->clear_frames();
  responses[0].mutable_evidence()->mutable_stacks(0)->set_error("did not\nstop");
  responses.emplace_back().set_rank(7);
  responses.back().set_error("ptrace is not permitted");
  Diagnosis diagnosis;
  AddStacks(responses, &diagnosis);
  EXPECT_THAT(diagnosis.notes,
              testing::ElementsAre("no stacks of rank 7: ptrace is not permitted"));
  for (const std::string& line : diagnosis.findings.stacks) {
    EXPECT_EQ(line.find_first_of("\n\x1b"), std::string::npos) << line;
  }
  EXPECT_THAT(diagnosis.findings.stacks, testing::Contains(testing::HasSubstr("(did not")));
}

TEST(StackReportTest, TheNamedRankIsReadAndThoseThatDoNotWaitBeforeTheOthers) {
  EXPECT_THAT(RanksToRead(4, 2, {0, 1}), testing::ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(RanksToRead(0, -1, {}), testing::IsEmpty());
  std::vector<int> waiting;
  for (int rank = 0; rank < 90; ++rank) waiting.push_back(rank);
  const std::vector<int> ranks = RanksToRead(100, 95, waiting);
  EXPECT_EQ(ranks.size(), 16u);
  EXPECT_THAT(ranks, testing::IsSupersetOf({90, 91, 95, 99}));
}

}  // namespace
}  // namespace megascale::cli
