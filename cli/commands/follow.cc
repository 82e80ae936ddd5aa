#include "cli/commands/follow.h"

#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/command_line/report.h"
#include "cli/view/live_view.h"
#include "runtime/base/clock.h"

namespace megascale::cli {
namespace {

constexpr absl::Duration kReconnectDelay = absl::Milliseconds(200);

class Follower {
 public:
  Follower(client::JobClient* client, std::string job_id, const FollowOptions& options)
      : client_(*client),
        job_id_(std::move(job_id)),
        options_(options),
        first_answer_(RetryOf(options.connection, nullptr)),
        view_([] { return DetectTerminal(STDOUT_FILENO); }, stdout),
        started_at_(Now()) {}

  absl::StatusOr<FollowResult> Run() {
    while (true) {
      const absl::Status status = client_.Watch(
          job_id_,
          {[this](const control::v1::WatchJobResponse& message) { OnMessage(message); },
           [this] { return Poll(); }},
          RanksMax());
      if (IsTerminal(result_.job.state())) return std::move(result_);
      if (ShouldStop()) return End(status);
      if (!answered_ && absl::IsUnavailable(status) &&
          Now() - started_at_ + kReconnectDelay < first_answer_.time) {
        first_answer_.on_retry();
        absl::SleepFor(kReconnectDelay);
        continue;
      }
      if (!answered_ || absl::IsNotFound(status)) return status;
      SayNotes();
      NoteAbsent();
      if (Now() - absent_since_ > options_.absence_max) {
        return absl::UnavailableError(absl::StrCat("the driver has not answered for ",
                                                   absl::FormatDuration(options_.absence_max),
                                                   "; the job may go on without it"));
      }
      absl::SleepFor(kReconnectDelay);
    }
  }

 private:
  static absl::Duration Now() { return base::RealClock().Monotonic(); }

  int RanksMax() const {
    const bool all = options_.needs_ranks || options_.style == FollowStyle::kJson;
    return all ? 0 : LiveView::kWorkersMax;
  }
  bool Interrupted() {
    return options_.interrupt != nullptr && options_.interrupt->Count() > options_.signals_before;
  }
  bool TimedOut() const { return Now() - started_at_ > options_.timeout; }
  bool OutputLost() const { return options_.needs_output && OutputFailed(); }
  bool Stopped() const { return options_.should_stop && options_.should_stop(); }
  bool ShouldStop() { return Interrupted() || TimedOut() || OutputLost() || Stopped(); }

  // Runs in another thread than OnMessage.
  bool Poll() {
    if (options_.style == FollowStyle::kLive) {
      const std::lock_guard<std::mutex> lock(view_mutex_);
      view_.FollowSize();
    }
    return ShouldStop();
  }

  absl::StatusOr<FollowResult> End(const absl::Status& status) {
    if (!answered_ && !Interrupted() && !Stopped()) {
      if (absl::IsNotFound(status) || absl::IsUnavailable(status)) return status;
      if (TimedOut()) {
        return absl::UnavailableError(absl::StrCat("the driver has not answered within ",
                                                   absl::FormatDuration(options_.timeout)));
      }
    }
    result_.end = Interrupted()  ? FollowResult::End::kInterrupted
                  : Stopped()    ? FollowResult::End::kStopped
                  : OutputLost() ? FollowResult::End::kOutputLost
                                 : FollowResult::End::kTimedOut;
    return std::move(result_);
  }

  void OnMessage(const control::v1::WatchJobResponse& message) {
    result_.job = message.job();
    answered_ = true;
    absent_ = false;
    for (const telemetry::v1::StepRecord& record : message.steps()) {
      // After a rollback the same steps arrive again.
      while (!result_.losses.empty() && result_.losses.back().step >= record.step()) {
        result_.losses.pop_back();
      }
      while (!result_.held_out.empty() && result_.held_out.back().step >= record.step()) {
        result_.held_out.pop_back();
      }
      result_.losses.push_back({record.step(), record.loss()});
      if (record.has_held_out_loss()) {
        result_.held_out.push_back({record.step(), record.held_out_loss()});
      }
    }
    SayNotes();
    if (options_.style == FollowStyle::kJson) PrintJson(message, JsonLayout::kOneLine);
    if (options_.style != FollowStyle::kLive) return;
    const std::lock_guard<std::mutex> lock(view_mutex_);
    view_.Show(CompleteCommands(message.job(), options_.connection), Now());
    if (IsTerminal(message.job().state())) SayEnd();
  }

  // Prints what a person needs to know who looks only at the end.
  void SayEnd() {
    if (result_.job.state() == control::v1::JOB_STATE_FAILED) {
      for (const std::string& line : RenderFailure(result_.job)) view_.Say(line);
    }
    for (const std::string& line : WarningLines(result_.job)) view_.Say(line);
  }

  void SayNotes() {
    if (!options_.take_notes) return;
    for (const std::string& note : options_.take_notes()) {
      if (options_.style != FollowStyle::kLive) continue;
      const std::lock_guard<std::mutex> lock(view_mutex_);
      view_.Say(note);
    }
  }

  // A job without changes sends no messages, so the absence begins with the stream's end.
  void NoteAbsent() {
    if (std::exchange(absent_, true)) return;
    absent_since_ = Now();
    constexpr char kAbsent[] =
        "the driver cannot be reached; workers go on without it; trying again";
    if (options_.style == FollowStyle::kLive) {
      view_.Say(kAbsent);
    } else {
      std::fprintf(stderr, "%s\n", kAbsent);
    }
  }

  client::JobClient& client_;
  const std::string job_id_;
  const FollowOptions& options_;
  const client::RetryOptions first_answer_;
  std::mutex view_mutex_;
  LiveView view_;
  const absl::Duration started_at_;
  FollowResult result_;
  bool answered_ = false;
  bool absent_ = false;
  absl::Duration absent_since_;
};

}  // namespace

absl::StatusOr<FollowResult> FollowJob(client::JobClient* client, const std::string& job_id,
                                       const FollowOptions& options) {
  return Follower(client, job_id, options).Run();
}

}  // namespace megascale::cli
