#include "cli/live_view.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace megascale::cli {
namespace {

using control::v1::Job;
using Lines = std::vector<std::string>;

Job RunningJob() {
  Job job;
  job.set_job_id("fortunes-1a2b");
  job.mutable_spec()->mutable_train()->set_steps(800);
  job.mutable_spec()->mutable_train()->set_global_batch_size(16);
  job.mutable_spec()->mutable_train()->set_seq_length(128);
  job.set_state(control::v1::JOB_STATE_RUNNING);
  job.set_attempt(1);
  job.set_last_step(200);
  job.mutable_last_record()->set_step(200);
  job.mutable_last_record()->set_loss(1.91234);
  job.mutable_last_record()->set_grad_norm(0.42);
  job.mutable_last_record()->set_lr(1.8e-3);
  job.set_tokens_per_second(31204);
  job.set_model_flops_per_second(1.77e11);
  job.set_flops_ceiling(4.3e11);
  for (int rank = 0; rank < 2; ++rank) {
    control::v1::RankView& view = *job.add_ranks();
    view.set_node_id("n0");
    view.mutable_status()->set_rank(rank);
    view.mutable_status()->set_phase(telemetry::v1::PHASE_TRAINING);
    view.mutable_status()->set_step(200);
    view.mutable_status()->set_doing(rank == 0 ? "forward 0.3" : "all-gather dp0 #12");
  }
  job.mutable_ranks(1)->mutable_status()->set_progress_age_seconds(7);
  return job;
}

Terminal Plain(int width) { return {true, false, false, width}; }

TEST(LiveViewTest, RendersARunningJob) {
  EXPECT_EQ(
      RenderJob(RunningJob(), Plain(120), 16),
      (Lines{
          "fortunes-1a2b  RUNNING",
          "step 200/800  [##########..............................]   25.0 %   39s left",
          "loss 1.9123   gradient norm 0.420   lr 1.80e-03   31,204 tokens/s, MFU 41.2 % of 430 "
          "GFLOP/s",
          " rank  node         phase           step  doing",
          "    0  n0           training         200  forward 0.3",
          "    1  n0           training         200  for 7s: all-gather dp0 #12",
      }));
}

TEST(LiveViewTest, ShowsFailuresAttemptsAndCheckpoints) {
  Job job = RunningJob();
  job.set_state(control::v1::JOB_STATE_RECOVERING);
  job.set_reason("RankExited");
  job.set_message("rank 1 was killed");
  job.set_attempt(2);
  job.mutable_last_checkpoint()->set_step(100);
  job.mutable_last_checkpoint()->set_directory("/c/step-00000100-attempt-1");
  job.mutable_last_checkpoint()->set_age_seconds(90);
  job.mutable_culprit()->set_node_id("n1");
  job.mutable_culprit()->set_rank(1);
  job.mutable_culprit()->set_attempt(1);
  job.mutable_culprit()->set_failure_class(telemetry::v1::FAILURE_CLASS_EXITED);
  job.mutable_culprit()->set_evidence("killed by signal 9 (Killed)");
  const Lines lines = RenderJob(job, Plain(120), 16);
  EXPECT_EQ(lines[0], "fortunes-1a2b  RECOVERING (RankExited): rank 1 was killed  attempt 2");
  EXPECT_EQ(lines[3], "checkpoint of step 100, 1m30s old, in /c/step-00000100-attempt-1");
  EXPECT_EQ(lines[4], "last failure: rank 1 on n1 exited: killed by signal 9 (Killed) (attempt 1)");
}

TEST(LiveViewTest, ShowsThatStorageFailsAndWhatIsLegalButHurts) {
  Job job = RunningJob();
  job.mutable_spec()->mutable_fault()->mutable_checkpoint_timeout()->set_seconds(3600);
  job.mutable_storage_failure()->set_seconds(125);
  job.add_warnings("node n0: 4 threads share 2 cores");
  const Lines lines = RenderJob(job, Plain(120), 16);
  EXPECT_EQ(lines[3],
            "no checkpoint could be written for 2m05s; training goes on, and the job fails after "
            "1h00m");
  EXPECT_EQ(lines[4], "warning: node n0: 4 threads share 2 cores");
}

TEST(LiveViewTest, LeavesOutWhatIsNotKnown) {
  Job job;
  job.set_job_id("j");
  job.set_state(control::v1::JOB_STATE_PENDING);
  job.set_reason("WaitingForSlots");
  EXPECT_EQ(RenderJob(job, Plain(60), 16), (Lines{
                                               "j  PENDING (WaitingForSlots)",
                                               "step 0/0  [" + std::string(37, '.') + "]    0.0 %",
                                           }));
  EXPECT_EQ(RateText(job), "");
  EXPECT_LT(TimeLeft(job), absl::ZeroDuration());
}

TEST(LiveViewTest, NoLineIsWiderThanTheTerminal) {
  for (const int width : {20, 33, 47, 80}) {
    Terminal terminal = Plain(width);
    terminal.unicode = true;
    Job job = RunningJob();
    job.set_message(std::string(300, 'x') + "\nsecond line \x1b[2J");
    for (const std::string& line : RenderJob(job, terminal, 16)) {
      EXPECT_LE(DisplayWidth(line), width) << line;
      EXPECT_EQ(line.find('\x1b'), std::string::npos);
      EXPECT_EQ(line.find('\n'), std::string::npos);
    }
  }
}

TEST(LiveViewTest, ColoursTheStateOnly) {
  Terminal terminal = Plain(80);
  terminal.color = true;
  EXPECT_EQ(RenderJob(RunningJob(), terminal, 16)[0], "fortunes-1a2b  \x1b[32mRUNNING\x1b[0m");
}

TEST(LiveViewTest, ManyWorkersAreCounted) {
  Job job = RunningJob();
  for (int rank = 2; rank < 100; ++rank) *job.add_ranks() = job.ranks(0);
  const Lines lines = RenderJob(job, Plain(80), 16);
  EXPECT_EQ(lines.size(), 3u + 1 + 16 + 1);
  EXPECT_EQ(lines.back(), "       and 84 more workers");
}

TEST(LiveViewTest, OfManyWorkersThoseWithoutProgressAreShown) {
  Job job = RunningJob();
  job.clear_ranks();
  for (int rank = 0; rank < 100; ++rank) {
    telemetry::v1::RankStatus* status = job.add_ranks()->mutable_status();
    status->set_rank(rank);
    status->set_progress_age_seconds(rank == 70 || rank == 95 ? 60 : 0.1);
  }
  const Lines lines = RenderJob(job, Plain(80), 4);
  Lines ranks;
  for (size_t i = lines.size() - 5; i + 1 < lines.size(); ++i)
    ranks.push_back(lines[i].substr(0, 5));
  EXPECT_EQ(ranks, (Lines{"    0", "    1", "   70", "   95"}));
  EXPECT_EQ(lines.back(), "       and 96 more workers");
}

TEST(LiveViewTest, AnEndedJobShowsNoWorkers) {
  Job job = RunningJob();
  job.set_state(control::v1::JOB_STATE_SUCCEEDED);
  job.set_last_step(800);
  const Lines lines = RenderJob(job, Plain(80), 16);
  EXPECT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1], "step 800/800  [" + std::string(40, '#') + "]  100.0 %");
}

TEST(PlainLogTest, TellsEveryStateOnceAndProgressNowAndThen) {
  PlainLog log;
  Job job = RunningJob();
  job.set_state(control::v1::JOB_STATE_STARTING);
  job.clear_last_record();
  job.set_last_step(0);
  EXPECT_EQ(log.Update(job, absl::Seconds(0)), Lines{"fortunes-1a2b  STARTING"});
  EXPECT_EQ(log.Update(job, absl::Seconds(9)), Lines{});
  job = RunningJob();
  job.set_last_step(1);
  EXPECT_EQ(log.Update(job, absl::Seconds(10)).size(), 2u);
  job.set_last_step(2);
  EXPECT_EQ(log.Update(job, absl::Seconds(11)), Lines{});
  job.set_last_step(3);
  EXPECT_EQ(
      log.Update(job, absl::Seconds(12)),
      Lines{"step 3/800 (0 %)  loss 1.9123  31,204 tokens/s, MFU 41.2 % of 430 GFLOP/s  52s left"});
  job.set_last_step(81);
  EXPECT_EQ(log.Update(job, absl::Seconds(12.5)).size(), 1u);
  job.set_last_step(82);
  EXPECT_EQ(log.Update(job, absl::Seconds(12.6)), Lines{});
}

TEST(PlainLogTest, TellsCheckpointsAndWhyAnAttemptEnded) {
  PlainLog log;
  Job job = RunningJob();
  log.Update(job, absl::Seconds(0));
  job.mutable_last_checkpoint()->set_step(100);
  job.mutable_last_checkpoint()->set_directory("/c");
  EXPECT_EQ(log.Update(job, absl::Seconds(0)), Lines{"checkpoint of step 100 in /c"});
  EXPECT_EQ(log.Update(job, absl::Seconds(0)), Lines{});
  job.set_attempt(2);
  job.mutable_culprit()->set_rank(-1);
  job.mutable_culprit()->set_node_id("n1");
  job.mutable_culprit()->set_failure_class(telemetry::v1::FAILURE_CLASS_UNREACHABLE);
  job.mutable_culprit()->set_attempt(1);
  EXPECT_EQ(log.Update(job, absl::Seconds(0)),
            (Lines{"fortunes-1a2b  RUNNING  attempt 2",
                   "last failure: host on n1 unreachable (attempt 1)"}));
}

TEST(TerminalTest, WritesNumbersForPeople) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(-1234567), "-1,234,567");
  EXPECT_EQ(ShortDuration(absl::Seconds(14)), "14s");
  EXPECT_EQ(ShortDuration(absl::Seconds(125)), "2m05s");
  EXPECT_EQ(ShortDuration(absl::Minutes(62)), "1h02m");
  EXPECT_EQ(CutToWidth("├──┤", 2), "├─");
  EXPECT_EQ(DisplayWidth("├──┤"), 4);
}

TEST(RenderFailureTest, ShowsTheFirstRanksLastLinesWholeAndWhatFollowed) {
  control::v1::Job job;
  EXPECT_TRUE(RenderFailure(job).empty());
  job.mutable_culprit()->set_evidence(
      "killed by signal 9 (Killed)\nits last lines:\n2026-11-21 step 5\n2026-11-21 step 6");
  control::v1::Culprit* consequence = job.add_consequences();
  consequence->set_rank(0);
  consequence->set_node_id("n0");
  consequence->set_failure_class(telemetry::v1::FAILURE_CLASS_ABORTED);
  consequence->set_evidence("rank 1 closed its connection");
  consequence->set_attempt(2);
  job.set_num_consequences(3);
  EXPECT_EQ(RenderFailure(job),
            (std::vector<std::string>{
                "  its last lines:", "  2026-11-21 step 5", "  2026-11-21 step 6",
                "then followed: rank 0 on n0 aborted: rank 1 closed its connection (attempt 2)",
                "and 2 more failures followed"}));
}

}  // namespace
}  // namespace megascale::cli
