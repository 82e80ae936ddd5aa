#include "cli/view/live_view.h"

#include <stdio.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "runtime/telemetry/doing.h"

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

TEST(LiveViewTest, TheAccountOfTimeIsOneLine) {
  Job job;
  EXPECT_EQ(GoodputLine(job), "");
  constexpr int64_t kSecond = 1'000'000'000;
  job.mutable_time_account()->set_wall_nanos(10'000 * kSecond);
  job.mutable_time_account()->set_kept_nanos(9'000 * kSecond);
  job.mutable_time_account()->set_load_nanos(200 * kSecond);
  job.mutable_time_account()->set_recomputation_nanos(795 * kSecond);
  job.mutable_time_account()->set_queue_nanos(5 * kSecond);
  job.mutable_last_hour()->set_wall_nanos(3'600 * kSecond);
  job.mutable_last_hour()->set_kept_nanos(3'600 * kSecond);
  EXPECT_EQ(GoodputLine(job),
            "goodput 90.0 % of 2h46m, 100.0 % of the last hour; lost: recomputation 8.0 %, load "
            "2.0 %");
}

TEST(LiveViewTest, RendersARunningJob) {
  EXPECT_EQ(
      RenderJob(RunningJob(), Plain(120), 16),
      (Lines{
          "fortunes-1a2b  RUNNING",
          "step 200/800  [##########..............................]   25.0 %   39s left",
          "loss 1.9123   gradient norm 0.420   lr 1.80e-03   31,204 tokens/s, MFU 41.2 % of 430 "
          "GFLOP/s",
          " rank  node         phase           step      memory  doing",
          "    0  n0           training         200           -  forward 0.3",
          "    1  n0           training         200           -  for 7s: all-gather dp0 #12",
      }));
}

TEST(LiveViewTest, ShowsTheLossOnHeldOutTextAndTheCheckpointThatIsKeptForTheLowest) {
  Job job = RunningJob();
  job.mutable_held_out()->set_step(200);
  job.mutable_held_out()->set_loss(2.5);
  job.mutable_lowest_held_out()->set_step(120);
  job.mutable_lowest_held_out()->set_loss(2.25);
  job.mutable_last_checkpoint()->set_step(200);
  job.mutable_last_checkpoint()->set_directory("/c/step-200");
  job.mutable_best_checkpoint()->set_step(140);
  job.mutable_best_checkpoint()->set_directory("/c/step-140");
  const Lines lines = RenderJob(job, Plain(120), 16);
  EXPECT_EQ(Lines(lines.begin() + 3, lines.begin() + 6),
            (Lines{"held-out loss 2.5000 at step 200, lowest 2.2500 at step 120",
                   "checkpoint of step 200, 0s old, in /c/step-200",
                   "best checkpoint, of step 140, in /c/step-140"}));
}

TEST(LiveViewTest, ShowsTheDevicesAndTheMemoryThatEachRankHasTaken) {
  Job job = RunningJob();
  const auto add = [&](const char* name, int num_ranks, int64_t memory) {
    control::v1::DeviceKind& kind = *job.add_device_kinds();
    kind.set_name(name);
    kind.set_num_ranks(num_ranks);
    kind.set_memory_bytes(memory);
  };
  add("NVIDIA H100 80GB HBM3", 2, int64_t{80} << 30);
  add("cpu", 1, 0);
  job.mutable_ranks(0)->mutable_status()->mutable_device()->set_used_bytes(int64_t{61} << 30);
  const Lines lines = RenderJob(job, Plain(120), 16);
  EXPECT_EQ(Lines(lines.begin() + 3, lines.begin() + 6),
            (Lines{
                "2 ranks on NVIDIA H100 80GB HBM3 (80.0 GiB), 1 rank on cpu",
                " rank  node         phase           step      memory  doing",
                "    0  n0           training         200    61.0 GiB  forward 0.3",
            }));
  job.set_state(control::v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(RenderJob(job, Plain(120), 16).size(), 3u) << "an ended job holds no device";
}

TEST(LiveViewTest, TheDevicesOfAnOlderDriversRanksAreCounted) {
  Job job = RunningJob();
  for (control::v1::RankView& rank : *job.mutable_ranks()) {
    rank.mutable_status()->mutable_device()->set_name("cpu");
  }
  EXPECT_EQ(RenderJob(job, Plain(120), 16)[3], "2 ranks on cpu");
}

// A large model's weights take minutes: not a hang.
TEST(LiveViewTest, ShowsHowManyOfItsInitialWeightsALoadingRankHasMade) {
  Job job = RunningJob();
  telemetry::v1::RankStatus& status = *job.mutable_ranks(1)->mutable_status();
  status.set_phase(telemetry::v1::PHASE_LOADING);
  status.set_step(0);
  status.set_progress_age_seconds(0);
  telemetry::SetDoing({.activity = telemetry::v1::ACTIVITY_MAKE_WEIGHTS, .done = 37, .total = 100},
                      &status);
  status.set_doing(telemetry::DescribeDoing(status));  // as the driver does
  EXPECT_EQ(RenderJob(job, Plain(120), 16)[5],
            "    1  n0           loading            0           -  making initial weights: 37 %");
}

TEST(LiveViewTest, ShowsTheAgeOfTheMeasurementThatMfuIsGivenAgainst) {
  Job job = RunningJob();
  job.set_flops_ceiling_age_seconds(3 * 3600 + 300);
  EXPECT_EQ(RenderJob(job, Plain(120), 16)[2],
            "loss 1.9123   gradient norm 0.420   lr 1.80e-03   31,204 tokens/s, MFU 41.2 % of 430 "
            "GFLOP/s (measured 3h05m ago)");
  const std::string plain = absl::StrJoin(PlainLog().Update(job, absl::Minutes(1)), "\n");
  EXPECT_TRUE(absl::StrContains(plain, "MFU 41.2 % of 430 GFLOP/s (measured 3h05m ago)")) << plain;
  job.clear_model_flops_per_second();
  EXPECT_EQ(RenderJob(job, Plain(120), 16)[2],
            "loss 1.9123   gradient norm 0.420   lr 1.80e-03   31,204 tokens/s");
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

TEST(LiveViewTest, WhatIsKnownOfAFailureStandsBelowIt) {
  Job job = RunningJob();
  job.set_state(control::v1::JOB_STATE_STARTING);
  job.set_reason("Starting");
  job.set_message("attempt 2 from initial weights");
  job.set_attempt(2);
  job.set_attempt_reason("RankExited");
  job.mutable_culprit()->set_node_id("n0");
  job.mutable_culprit()->set_attempt(1);
  job.mutable_culprit()->set_failure_class(telemetry::v1::FAILURE_CLASS_EXITED);
  job.mutable_culprit()->set_evidence("killed by signal 9 (Killed)\nin R.c0 of step 1");
  const Lines lines = RenderWholeJob(job, Plain(120), 16);
  EXPECT_EQ(
      lines[0],
      "fortunes-1a2b  STARTING (Starting): attempt 2 from initial weights (after RankExited)");
  const auto failure = std::find(lines.begin(), lines.end(),
                                 "last failure: rank 0 on n0 exited: killed by signal 9 (Killed) "
                                 "(attempt 1)");
  ASSERT_NE(failure, lines.end());
  EXPECT_EQ(*(failure + 1), "  in R.c0 of step 1");
  EXPECT_EQ(RenderJob(job, Plain(120), 16).size(), lines.size() - 1);
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

TEST(LiveViewTest, SaysSinceWhenASuspectDiffers) {
  Job job = RunningJob();
  job.mutable_suspicion()->set_verdict("machine n3 differs");
  job.mutable_suspicion()->set_action("told");
  const auto has_line = [&](const std::string& line) {
    const Lines lines = RenderJob(job, Plain(120), 16);
    return std::find(lines.begin(), lines.end(), line) != lines.end();
  };
  EXPECT_TRUE(has_line("suspect: machine n3 differs (told)"));
  const absl::Time began =
      absl::FromCivil(absl::CivilSecond(2026, 11, 26, 9, 8, 7), absl::LocalTimeZone());
  job.mutable_suspicion()->mutable_began_at()->set_seconds(absl::ToUnixSeconds(began));
  EXPECT_TRUE(has_line("suspect: machine n3 differs, since 2026-11-26 09:08:07 (told)"));
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
  EXPECT_EQ(lines.size(), 4u + 1 + 16 + 1);
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

// A watcher asks for no more ranks than its window shows.
TEST(LiveViewTest, WorkersThatTheDriverLeftOutAreCounted) {
  Job job = RunningJob();
  job.set_num_ranks(12288);
  EXPECT_EQ(RenderJob(job, Plain(80), 16).back(), "       and 12286 more workers");
}

TEST(LiveViewTest, AnEndedJobShowsNoWorkers) {
  Job job = RunningJob();
  job.set_state(control::v1::JOB_STATE_SUCCEEDED);
  job.set_last_step(800);
  const Lines lines = RenderJob(job, Plain(80), 16);
  EXPECT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1], "step 800/800  [" + std::string(40, '#') + "]  100.0 %");
}

TEST(LiveViewTest, WhatIsTooWideGoesOnInTheNextLine) {
  Job job = RunningJob();
  job.clear_ranks();
  job.mutable_last_checkpoint()->set_step(100);
  job.mutable_last_checkpoint()->set_directory("/home/somebody/" + std::string(50, 'd'));
  const Lines lines = RenderJob(job, Plain(80), 16);
  EXPECT_EQ(lines,
            (Lines{
                "fortunes-1a2b  RUNNING",
                "step 200/800  [##########..............................]   25.0 %   39s left",
                "loss 1.9123   gradient norm 0.420   lr 1.80e-03",
                "31,204 tokens/s, MFU 41.2 % of 430 GFLOP/s",
                "checkpoint of step 100, 0s old, in",
                "  /home/somebody/" + std::string(50, 'd'),
            }));
}

TEST(LiveViewTest, ALowTerminalShowsFewerWorkers) {
  Job job = RunningJob();
  for (int rank = 2; rank < 100; ++rank) *job.add_ranks() = job.ranks(0);
  for (const int height : {1, 2, 3, 4, 5, 6, 8, 20}) {
    Terminal terminal = Plain(120);
    terminal.height = height;
    const Lines lines = RenderJob(job, terminal, 16);
    EXPECT_LE(lines.size(), static_cast<size_t>(height));
    EXPECT_EQ(lines[0].rfind("fortunes-1a2b  RUNNING", 0), 0u);
    EXPECT_EQ(lines.back().find(" more workers") != std::string::npos, height >= 6) << height;
  }
}

TEST(LiveViewTest, ALowTerminalSaysWhatItHasNoRoomFor) {
  Terminal terminal = Plain(120);
  const auto last = [&](int height, const Job& job) {
    terminal.height = height;
    return RenderJob(job, terminal, 16).back();
  };
  Job job = RunningJob();
  EXPECT_EQ(last(1, job),
            "fortunes-1a2b  RUNNING  (this window has no room for 2 lines and 2 workers)");
  EXPECT_EQ(last(2, job), "(this window has no room for 2 lines and 2 workers)");
  EXPECT_EQ(last(3, job), "(this window has no room for 1 line and 2 workers)");
  EXPECT_EQ(last(4, job), "(this window has no room for 2 workers)");
  EXPECT_EQ(last(6, job), "       and 1 more workers");
  job.clear_ranks();
  EXPECT_EQ(last(2, job), "(this window has no room for 2 lines)");
  EXPECT_EQ(last(3, job).rfind("loss ", 0), 0u) << "all fits";
}

// A terminal that wraps its rows again when it becomes narrower. The cursor cannot reach rows that
// have scrolled off its top. Chinese is two columns wide.
class Screen {
 public:
  Screen() : out_(::open_memstream(&text_, &size_)) {}
  ~Screen() {
    std::fclose(out_);
    std::free(text_);
  }
  std::FILE* out() { return out_; }
  Terminal Look() const { return terminal; }

  // Returns all rows above the cursor, also those that have scrolled off the screen.
  Lines Read() {
    std::fflush(out_);
    Wrap();
    while (read_ < size_) {
      if (!ReadSequence()) ReadCharacter();
    }
    return {rows_.begin(), rows_.begin() + static_cast<std::ptrdiff_t>(cursor_)};
  }
  // Returns how many rows there were in all.
  int NumRows() {
    Read();
    return static_cast<int>(rows_.size());
  }

  Terminal terminal = {true, false, false, 100, 7};

 private:
  static int Columns(const std::string& row) {
    return DisplayWidth(row) + static_cast<int>(std::count_if(row.begin(), row.end(), [](char c) {
             const auto byte = static_cast<unsigned char>(c);
             return byte >= 0xE4 && byte <= 0xE9;
           }));
  }
  void Wrap() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const auto width = static_cast<size_t>(terminal.width);
      if (rows_[i].size() <= width || Columns(rows_[i]) <= terminal.width) continue;
      rows_.insert(rows_.begin() + static_cast<std::ptrdiff_t>(i) + 1, rows_[i].substr(width));
      rows_[i].resize(width);
      if (cursor_ > i) ++cursor_;
    }
  }
  bool ReadSequence() {
    const std::string left(text_ + read_, std::min<size_t>(8, size_ - read_));
    int up = 0;
    size_t length = 0;
    if (std::sscanf(left.c_str(), "\033[%dA", &up) == 1) {
      EXPECT_LT(up, terminal.height) << "beyond the screen's top";
      EXPECT_LE(static_cast<size_t>(up), cursor_);
      cursor_ -= std::min(cursor_, static_cast<size_t>(up));
      length = left.find('A') + 1;
    } else if (left.rfind("\033[K", 0) == 0) {
      rows_[cursor_].clear();
      length = 3;
    } else if (left.rfind("\033[?7", 0) == 0) {
      wraps_ = left[4] == 'h';
      length = 5;
    } else {
      EXPECT_NE(left[0], '\033') << left.substr(1);
    }
    read_ += length;
    return length > 0;
  }
  void ReadCharacter() {
    const char c = text_[read_++];
    if (c == '\r') return;
    if (c == '\n') {
      if (++cursor_ == rows_.size()) rows_.emplace_back();
      return;
    }
    std::string& row = rows_[cursor_];
    row += c;
    if (!wraps_ && Columns(row) > terminal.width) row.pop_back();
  }

  char* text_ = nullptr;
  size_t size_ = 0;
  size_t read_ = 0;
  std::FILE* out_;
  Lines rows_ = {""};
  size_t cursor_ = 0;
  bool wraps_ = true;
};

TEST(LiveViewTest, RedrawingNeverScrolls) {
  for (const int height : {1, 2, 3, 4, 5, 8, 13}) {
    Screen screen;
    screen.terminal.height = height;
    screen.terminal.width = 60;
    LiveView view([&] { return screen.Look(); }, screen.out());
    Job job = RunningJob();
    job.mutable_last_checkpoint()->set_directory("/数据/" + std::string(200, 'd'));
    job.add_warnings("警告警告警告警告警告警告警告警告警告警告警告警告警告警告警告警告警告");
    for (int second = 0; second < 20; ++second) {
      job.set_last_step(second);
      view.Show(job, absl::Seconds(second));
      ASSERT_LE(screen.NumRows(), height) << "after " << second;
    }
  }
}

TEST(LiveViewTest, RedrawsInPlaceOnALowTerminalWhoseSizeChanges) {
  Screen screen;
  LiveView view([&] { return screen.Look(); }, screen.out());
  Job job = RunningJob();
  for (int rank = 2; rank < 100; ++rank) *job.add_ranks() = job.ranks(0);
  for (int second = 0; second < 3; ++second) {
    view.Show(job, absl::Seconds(second));
    EXPECT_EQ(screen.Read().size(), 6u) << "the block, once";
  }
  screen.terminal.width = 40;
  screen.terminal.height = 12;
  view.FollowSize();
  const Lines narrow = screen.Read();
  EXPECT_EQ(narrow.size(), 11u);
  EXPECT_EQ(narrow[0], "fortunes-1a2b  RUNNING");
  view.Say("a note");
  EXPECT_EQ(screen.Read().size(), 12u) << "the note, and the block below it";
  EXPECT_EQ(screen.Read()[0], "a note");
  view.FollowSize();  // no change
  EXPECT_EQ(screen.Read().size(), 12u);
}

TEST(LiveViewTest, TheBlockOfAnEndedJobStaysAndIsWhole) {
  Screen screen;
  screen.terminal.width = 80;
  LiveView view([&] { return screen.Look(); }, screen.out());
  Job job = RunningJob();
  view.Show(job, absl::Seconds(0));
  job.set_state(control::v1::JOB_STATE_FAILED);
  job.mutable_last_checkpoint()->set_directory("/" + std::string(200, 'd'));
  view.Show(job, absl::Seconds(1));
  view.Say("then followed: nothing");
  const Lines lines = screen.Read();
  EXPECT_EQ(lines[0], "fortunes-1a2b  FAILED");
  EXPECT_NE(lines[3].find(std::string(200, 'd')), std::string::npos) << "a path to copy";
  EXPECT_EQ(lines.back(), "then followed: nothing");
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
  EXPECT_EQ(log.Update(job, absl::Seconds(19)), Lines{});
  job.set_last_step(3);
  EXPECT_EQ(
      log.Update(job, absl::Seconds(20)),
      Lines{"step 3/800 (0 %)  loss 1.9123  31,204 tokens/s, MFU 41.2 % of 430 GFLOP/s  52s left"});
  job.set_last_step(700);
  EXPECT_EQ(log.Update(job, absl::Seconds(29)), Lines{});
  job.set_last_step(800);
  EXPECT_EQ(log.Update(job, absl::Seconds(29)).size(), 1u) << "the last step";
}

TEST(PlainLogTest, TellsEveryWarningOnce) {
  PlainLog log;
  Job job = RunningJob();
  log.Update(job, absl::Seconds(0));
  job.add_warnings("node n0: 4 threads share 2 cores");
  job.set_reason("Preflight");
  EXPECT_EQ(log.Update(job, absl::Seconds(0)), Lines{}) << "another node may share it";
  job.clear_reason();
  EXPECT_EQ(log.Update(job, absl::Seconds(0)), Lines{"warning: node n0: 4 threads share 2 cores"});
  EXPECT_EQ(log.Update(job, absl::Seconds(0)), Lines{});
}

TEST(RenderJobTest, NamesOfNodesAreCutBeforeOtherColumnsAre) {
  Job job = RunningJob();
  job.clear_ranks();
  const std::string name = "a-node-with-a-name-as-clouds-give-them.internal";
  for (const char* node : {"n0", name.c_str()}) {
    control::v1::RankView* view = job.add_ranks();
    view->set_node_id(node);
    view->mutable_status()->set_step(200);
    view->mutable_status()->set_doing("trains");
  }
  for (const int width : {80, 120}) {
    Terminal terminal;
    terminal.width = width;
    const std::vector<std::string> lines = RenderJob(job, terminal, 8);
    const std::string& last = lines.back();
    const std::string& before = lines[lines.size() - 2];
    const std::string& heading = lines[lines.size() - 3];
    const size_t doing = heading.find("doing");
    EXPECT_EQ(before.find("trains"), doing) << before;
    EXPECT_EQ(DisplayWidth(last.substr(0, last.find("trains"))), static_cast<int>(doing)) << last;
    EXPECT_EQ(last.find(name) != std::string::npos, width == 120) << last;
    EXPECT_EQ(last.find("…") != std::string::npos, width == 80) << last;
  }
}

TEST(TimeLeftTest, IsNotTakenFromTheFirstSteps) {
  Job job = RunningJob();
  job.set_first_step(job.last_step() - 2);
  EXPECT_LT(TimeLeft(job), absl::ZeroDuration());
  job.set_first_step(job.last_step() - 3);
  EXPECT_GT(TimeLeft(job), absl::ZeroDuration());
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

TEST(TextTest, NumbersAndWidthsAreForPeople) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(-1234567), "-1,234,567");
  EXPECT_EQ(ShortDuration(absl::Seconds(14)), "14s");
  EXPECT_EQ(ShortDuration(absl::Seconds(125)), "2m05s");
  EXPECT_EQ(ShortDuration(absl::Minutes(62)), "1h02m");
  EXPECT_EQ(ShortDuration(absl::Hours(47.5)), "47h30m");
  EXPECT_EQ(ShortDuration(absl::Hours(51)), "2d03h");
  EXPECT_EQ(CutToWidth("├──┤", 2), "├─");
  EXPECT_EQ(ShortenToWidth("├──┤", 4), "├──┤");
  EXPECT_EQ(ShortenToWidth("├──┤", 3), "├─…");
  EXPECT_EQ(ShortenToWidth("two words", 5), "two…") << "no space before it";
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
