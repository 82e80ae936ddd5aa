#include "cli/diagnosis/diagnosis_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace megascale::cli {
namespace {

using diagnose::SlowCause;
using diagnose::StallCause;

const std::vector<trace::RankName>& Names() {
  static const auto* const names = new std::vector<trace::RankName>{
      {"rank 0", "a", "stage 0, data 0"}, {"rank 1", "b", "stage 1, data 0"}};
  return *names;
}

Findings Slow(const diagnose::Suspect& cause, double slowdown, bool grows = false,
              double step_times = 1) {
  const auto graph =
      diagnose::OperationGraph::Create({{"compute", "compute"}}, {{0, 0, 0}, {1, 0, 1}},
                                       {{.kind = 0, .worker = 0}, {.kind = 0, .worker = 1}});
  std::vector<diagnose::MeasuredStep> steps;
  for (int64_t step = 11; step <= 14; ++step) {
    steps.push_back({.step = step, .seconds = 3, .times = {{0, 0}, {1, 3}}});
  }
  const diagnose::WhatIf result = diagnose::AnalyzeSteps(*graph, steps);
  diagnose::SlowVerdict verdict = diagnose::ExplainSlowness(*graph, steps, {}, result);
  verdict.cause = cause;
  verdict.slowdown = slowdown;
  verdict.grows = grows;
  verdict.step_times = step_times;
  return DescribeSlowness(*graph, result, verdict, Names());
}

TEST(DiagnosisTextTest, NamesTheOneRankThatWaitsForData) {
  EXPECT_EQ(Slow({.cause = SlowCause::kDataWait, .share = 0.5}, 1.5).verdict,
            "waiting for data: the ranks load their batches for 50 % of a step");
  EXPECT_EQ(Slow({.cause = SlowCause::kDataWait, .worker = 1, .share = 0.5}, 1.5).verdict,
            "waiting for data: rank 1 (node b, stage 1, data 0) loads its batches for 50 % of a "
            "step");
}

TEST(DiagnosisTextTest, AVerdictOfSlownessNamesRankAndCauseFirst) {
  const Findings findings =
      Slow({.cause = SlowCause::kOneWorker, .worker = 1, .share = 0.9, .times_slower = 2.5}, 1.5);
  EXPECT_EQ(findings.cause, "slow_worker");
  EXPECT_EQ(findings.verdict,
            "slow worker: rank 1 (node b, stage 1, data 0); it takes 2.50 times as long to compute "
            "as ranks with like work");
  const std::string text = ToText(findings);
  EXPECT_TRUE(absl::StartsWith(text, "slow worker: rank 1"));
  EXPECT_TRUE(absl::StrContains(text, "4 steps of 11 to 14, 2 ranks"));
  EXPECT_TRUE(absl::StrContains(text, "33 % of the job's time"));
  EXPECT_TRUE(absl::StrContains(text, "other load"));
  EXPECT_TRUE(absl::StrContains(text, "excluded  "));
}

// Where next to nothing is lost, each share of it is a multiple.
TEST(DiagnosisTextTest, AHealthyJobHasNoSharesOfItsLoss) {
  const Findings healthy = Slow({.cause = SlowCause::kNone, .share = 41.14}, 1.003);
  EXPECT_THAT(ToText(healthy), testing::Not(testing::HasSubstr("M_W")));
  const Findings slow = Slow({.cause = SlowCause::kUnequalStages, .stage = 1, .share = 41.14}, 1.2);
  EXPECT_THAT(ToText(slow), testing::HasSubstr("M_W"));
  EXPECT_THAT(ToText(slow), testing::Not(testing::HasSubstr("4114 %")));
}

TEST(DiagnosisTextTest, JitterThatGrowsSaysThatTheNewestStepsTakeLonger) {
  const diagnose::Suspect jitter = {.cause = SlowCause::kJitter, .share = 0.8, .times_slower = 1.5};
  const Findings calm = Slow(jitter, 1.5);
  EXPECT_EQ(calm.cause, "jitter");
  EXPECT_TRUE(absl::StartsWith(calm.verdict, "jitter")) << calm.verdict;
  EXPECT_FALSE(absl::StrContains(ToText(calm), "longer than the oldest"));
  const std::string text = ToText(Slow(jitter, 1.5, true));
  EXPECT_TRUE(absl::StrContains(text, "the newest steps take 10 % longer than the oldest")) << text;
}

TEST(DiagnosisTextTest, ASlowerStageIsSaidWithTheReasonWhyItsLayersAreNotAtFault) {
  diagnose::Suspect cause = {.cause = SlowCause::kSlowerStage, .stage = 1, .times_slower = 2};
  const std::string begin =
      "slower stage: stage 1 computes 2.00 times as long as the other stages, and not for its "
      "layers: ";
  cause.times_before = 1.01;
  EXPECT_EQ(Slow(cause, 1.5).verdict, begin + "it computed 1.01 times as long before");
  cause.times_before = 0;
  cause.times_planned = 0.5;
  EXPECT_EQ(Slow(cause, 1.5).verdict, begin + "by the plan it has 0.50 times their work");
  cause.times_planned = 0;
  cause.times_usual = 1.75;
  EXPECT_EQ(Slow(cause, 1.5).verdict,
            begin + "steps take 1.75 times as long as they did, with the same layers");
  EXPECT_THAT(ToText(Slow(cause, 1.5)), testing::Not(testing::HasSubstr("fewer layers")));
}

// What has begun now is not in the data.
TEST(DiagnosisTextTest, JitterThatHasBegunIsNotSaidToBeOfUnequalSequences) {
  const diagnose::Suspect jitter = {.cause = SlowCause::kJitter, .share = 0.8, .times_slower = 1.5};
  EXPECT_THAT(ToText(Slow(jitter, 1.5)), testing::HasSubstr("sequences of unequal length"));
  const std::string text = ToText(Slow(jitter, 1.5, false, 1.3));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("sequences")));
  EXPECT_THAT(text, testing::HasSubstr("the newest steps take 1.30 times as long as older ones"));
}

TEST(DiagnosisTextTest, EveryCauseHasItsWordAndItsLine) {
  for (const SlowCause cause :
       {SlowCause::kNone, SlowCause::kOneWorker, SlowCause::kUnequalStages, SlowCause::kSlowerStage,
        SlowCause::kSlowLink, SlowCause::kSlowMachine, SlowCause::kSlowMachineLink,
        SlowCause::kLateWorker, SlowCause::kSlowCollective, SlowCause::kDataWait,
        SlowCause::kJitter}) {
    const Findings findings = Slow({.cause = cause, .worker = 0, .peer = 1, .stage = 0}, 1.5);
    EXPECT_NE(findings.cause, "unknown");
    EXPECT_FALSE(absl::StrContains(findings.verdict, "I do not know"));
  }
  const Findings unknown = Slow({.cause = SlowCause::kUnknown}, 1.5);
  EXPECT_EQ(unknown.cause, "unknown");
  EXPECT_TRUE(absl::StartsWith(unknown.verdict, "I do not know"));
  EXPECT_FALSE(unknown.excluded.empty());
}

diagnose::StallRoot Root(StallCause cause, int rank) {
  return {.cause = cause,
          .rank = rank,
          .instruction = plan::InstructionId(plan::OpKind::kForward, 1, 3),
          .step = 17,
          .members = {0, 1},
          .num_waiting = 1};
}

TEST(DiagnosisTextTest, AVerdictOfAStallNamesRankInstructionAndWhoWaits) {
  diagnose::StallVerdict verdict;
  verdict.root = Root(StallCause::kRuns, 1);
  verdict.is_silent = true;
  verdict.waiting = {{.rank = 0,
                      .instruction = plan::InstructionId(plan::OpKind::kReceiveGradient, 0, 2),
                      .waits_for = {1}}};
  const std::string text = ToText(DescribeStall(verdict, 4.25, Names()));
  EXPECT_TRUE(absl::StartsWith(text,
                               "stuck: rank 1 (node b, stage 1, data 0); it runs forward F.c1.m3 "
                               "of step 17 and does not end "
                               "it\n"));
  EXPECT_TRUE(absl::StrContains(text, "for 4.25 s"));
  EXPECT_TRUE(absl::StrContains(text, "its process shows no life"));
  EXPECT_TRUE(absl::StrContains(text, "1 rank waits for it"));
  EXPECT_TRUE(absl::StrContains(text, "rank 0 waits in receiving a gradient RG.c0.m2 for rank 1"));
}

size_t ColumnsOf(absl::string_view line) {
  return static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u;
  }));
}

// The worst case: each group has more than fits, and each line is too long.
TEST(DiagnosisTextTest, ADiagnosisIsAtMostOneScreen) {
  const std::string long_line = [] {
    std::string line = "rank 1 → rank 2:";
    for (int i = 0; i < 60; ++i) absl::StrAppend(&line, " word", i);
    return line;
  }();
  Findings findings;
  findings.verdict = long_line;
  findings.first_error = long_line;
  for (auto* lines : {&findings.evidence, &findings.stacks, &findings.cost, &findings.done,
                      &findings.advice, &findings.excluded}) {
    lines->assign(40, long_line);
  }
  const std::string text = ToText(findings);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 24u);
  for (const std::string& line : lines) EXPECT_LE(ColumnsOf(line), 120u) << line;
  EXPECT_TRUE(absl::StartsWith(lines[0], "rank 1 → rank 2: word0"));
  EXPECT_TRUE(absl::StartsWith(lines[1], "word")) << "the verdict goes on";
  EXPECT_TRUE(absl::EndsWith(lines[1], " …"));
  for (const char* heading :
       {"evidence ", "its error ", "stacks ", "cost ", "done ", "you can ", "excluded "}) {
    EXPECT_TRUE(absl::StrContains(text, absl::StrCat("\n", heading))) << heading;
  }
  EXPECT_TRUE(absl::StrContains(text, "          and 39 more: -o json\n")) << text;
  // The evidence comes first.
  findings.stacks.clear();
  findings.excluded.clear();
  const std::vector<std::string> fewer = absl::StrSplit(ToText(findings), '\n', absl::SkipEmpty());
  EXPECT_EQ(fewer.size(), 24u);
  EXPECT_EQ(fewer[16], "          and 26 more: -o json");
}

TEST(DiagnosisTextTest, CommandsOfTheAdviceAreCompletedAfterTheirLineIsCut) {
  const std::string flags = absl::StrCat(" --tls-ca /", std::string(200, 'a'));
  Findings findings;
  findings.verdict = "v";
  findings.evidence = {"`megascale nodes`"};
  findings.advice = {"look at `megascale logs j`", std::string(200, 'b')};
  const std::string text = ToText(findings, [&](const std::string& line) {
    return absl::StrReplaceAll(line, {{"logs j`", absl::StrCat("logs j", flags, "`")}});
  });
  EXPECT_TRUE(absl::StrContains(text, "evidence  `megascale nodes`\n")) << text;
  EXPECT_TRUE(absl::StrContains(
      text, absl::StrCat("you can   look at `megascale logs j", flags, "`\n          bbb")))
      << text;
  EXPECT_TRUE(absl::EndsWith(text, "b …\n")) << text;
}

TEST(DiagnosisTextTest, AShortDiagnosisIsShownWhole) {
  Findings findings;
  findings.verdict = "healthy: no rank, stage or link holds the others up";
  findings.evidence = {"a", "b", "c"};
  findings.cost = {"d"};
  EXPECT_EQ(ToText(findings),
            "healthy: no rank, stage or link holds the others up\n"
            "evidence  a\n"
            "          b\n"
            "          c\n"
            "cost      d\n");
}

TEST(DiagnosisTextTest, SaysWhatItDoesNotKnow) {
  diagnose::StallVerdict verdict;
  verdict.root = Root(StallCause::kExchange, -1);
  Findings findings = DescribeStall(verdict, 2, Names());
  EXPECT_TRUE(absl::StrContains(findings.verdict, "between ranks 0, 1"));
  EXPECT_TRUE(absl::StrContains(findings.verdict, "I do not know which"));
  verdict.root = {};
  verdict.other_roots = {Root(StallCause::kRuns, 0), Root(StallCause::kNotBegun, 1)};
  findings = DescribeStall(verdict, 2, Names());
  EXPECT_TRUE(absl::StartsWith(findings.verdict, "I do not know"));
  ASSERT_EQ(findings.excluded.size(), 2u);
  EXPECT_TRUE(absl::StartsWith(findings.excluded[0], "not excluded: rank 0"));
}

}  // namespace
}  // namespace megascale::cli
