#include "cli/follow.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/live_view.h"
#include "cli/report.h"
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
        view_(DetectTerminal(STDOUT_FILENO), stdout),
        started_at_(Now()),
        first_interrupt_(options.interrupt == nullptr ? 0 : options.interrupt->Count()) {}

  absl::StatusOr<FollowResult> Run() {
    while (true) {
      const absl::Status status = client_.Watch(
          job_id_, {[this](const control::v1::WatchJobResponse& message) { OnMessage(message); },
                    [this] { return ShouldStop(); }});
      if (IsTerminal(result_.job.state())) return std::move(result_);
      if (ShouldStop()) return End(status);
      if (!answered_ || absl::IsNotFound(status)) return status;
      if (Now() - answered_at_ > options_.absence_max) {
        return absl::UnavailableError(absl::StrCat("the driver has not answered for ",
                                                   absl::FormatDuration(options_.absence_max)));
      }
      SayNotes();
      SayAbsent();
      absl::SleepFor(kReconnectDelay);
    }
  }

 private:
  static absl::Duration Now() { return base::RealClock().Monotonic(); }

  bool Interrupted() {
    return options_.interrupt != nullptr && options_.interrupt->Count() > first_interrupt_;
  }
  bool TimedOut() const { return Now() - started_at_ > options_.timeout; }
  bool ShouldStop() { return Interrupted() || TimedOut(); }

  absl::StatusOr<FollowResult> End(const absl::Status& status) {
    if (!answered_ && absl::IsNotFound(status)) return status;
    result_.end = Interrupted() ? FollowResult::End::kInterrupted : FollowResult::End::kTimedOut;
    return std::move(result_);
  }

  void OnMessage(const control::v1::WatchJobResponse& message) {
    result_.job = message.job();
    answered_ = true;
    absent_ = false;
    answered_at_ = Now();
    for (const telemetry::v1::StepRecord& record : message.steps()) {
      // After a rollback steps come again.
      while (!result_.losses.empty() && result_.losses.back().step >= record.step()) {
        result_.losses.pop_back();
      }
      result_.losses.push_back({record.step(), record.loss()});
    }
    SayNotes();
    if (options_.style == FollowStyle::kJson) PrintJson(message, JsonLayout::kOneLine);
    if (options_.style != FollowStyle::kLive) return;
    view_.Show(message.job(), Now());
    if (message.job().state() != control::v1::JOB_STATE_FAILED) return;
    for (const std::string& line : RenderFailure(message.job())) view_.Say(line);
  }

  void SayNotes() {
    if (!options_.take_notes) return;
    for (const std::string& note : options_.take_notes()) {
      if (options_.style == FollowStyle::kLive) view_.Say(note);
    }
  }

  void SayAbsent() {
    if (!absent_ && options_.style == FollowStyle::kLive) {
      view_.Say("the driver cannot be reached; workers go on without it; trying again");
    }
    absent_ = true;
  }

  client::JobClient& client_;
  const std::string job_id_;
  const FollowOptions& options_;
  LiveView view_;
  const absl::Duration started_at_;
  const int first_interrupt_;
  FollowResult result_;
  bool answered_ = false;
  bool absent_ = false;
  absl::Duration answered_at_;
};

}  // namespace

absl::StatusOr<FollowResult> FollowJob(client::JobClient* client, const std::string& job_id,
                                       const FollowOptions& options) {
  return Follower(client, job_id, options).Run();
}

}  // namespace megascale::cli
