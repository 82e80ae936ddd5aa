#include "cli/live_view.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace megascale::cli {
namespace {

using control::v1::Job;
using telemetry::v1::RankStatus;

constexpr absl::Duration kPlainInterval = absl::Seconds(2);
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
constexpr int kWorkersMax = 16;
constexpr int kBarWidthMax = 40;
constexpr double kQuietSeconds = 3;  // longer without progress is worth a word

int64_t TokensPerStep(const Job& job) {
  return int64_t{job.spec().train().global_batch_size()} * job.spec().train().seq_length();
}

double DoneFraction(const Job& job) {
  const int64_t steps = job.spec().train().steps();
  return steps <= 0 ? 0 : std::clamp(static_cast<double>(job.last_step()) / steps, 0.0, 1.0);
}

const char* StateColor(control::v1::JobState state) {
  switch (state) {
    case control::v1::JOB_STATE_RUNNING:
    case control::v1::JOB_STATE_SUCCEEDED:
      return "32";
    case control::v1::JOB_STATE_FAILED:
      return "31";
    default:
      return "33";
  }
}

std::string Lower(absl::string_view enum_name, absl::string_view prefix) {
  absl::ConsumePrefix(&enum_name, prefix);
  std::string text = absl::AsciiStrToLower(enum_name);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string Bar(double fraction, int width, bool unicode) {
  const int eighths = static_cast<int>(fraction * width * 8);
  std::string bar;
  for (int cell = 0; cell < width; ++cell) {
    const int filled = std::clamp(eighths - 8 * cell, 0, 8);
    if (!unicode) {
      bar += filled == 8 ? '#' : '.';
    } else if (filled == 0) {
      bar += "░";
    } else {
      // U+2588 is the full block, U+2589 seven eighths, … U+258F one eighth.
      bar += "\xE2\x96";
      bar += static_cast<char>(0x88 + (8 - filled));
    }
  }
  return unicode ? bar : absl::StrCat("[", bar, "]");
}

std::string ProgressLine(const Job& job, const Terminal& terminal) {
  const std::string step =
      absl::StrFormat("step %d/%d", job.last_step(), job.spec().train().steps());
  std::string end = absl::StrFormat("%5.1f %%", 100 * DoneFraction(job));
  const absl::Duration left = TimeLeft(job);
  if (left >= absl::ZeroDuration() && !IsTerminal(job.state())) {
    absl::StrAppend(&end, "   ", ShortDuration(left), " left");
  }
  const int room = terminal.width - DisplayWidth(step) - DisplayWidth(end) - 8;
  return absl::StrCat(step, "  ",
                      Bar(DoneFraction(job), std::clamp(room, 4, kBarWidthMax), terminal.unicode),
                      "  ", end);
}

std::string LossLine(const Job& job) {
  const telemetry::v1::StepRecord& record = job.last_record();
  std::string line = absl::StrFormat("loss %.4f   gradient norm %.3f   lr %.2e", record.loss(),
                                     record.grad_norm(), record.lr());
  if (const std::string rate = RateText(job); !rate.empty()) absl::StrAppend(&line, "   ", rate);
  return line;
}

std::string RankName(int rank) { return rank < 0 ? "host" : absl::StrCat("rank ", rank); }

// In one line.
std::string CulpritText(const control::v1::Culprit& culprit) {
  const std::string what =
      Lower(telemetry::v1::FailureClass_Name(culprit.failure_class()), "FAILURE_CLASS_");
  std::string text = absl::StrCat(RankName(culprit.rank()), " on ", culprit.node_id(), " ", what);
  const std::string& evidence = culprit.evidence();
  if (!evidence.empty()) absl::StrAppend(&text, ": ", evidence.substr(0, evidence.find('\n')));
  return absl::StrCat(text, " (attempt ", culprit.attempt(), ")");
}

std::string StorageLine(const Job& job) {
  const auto& limit = job.spec().fault().checkpoint_timeout();
  return absl::StrCat(
      "no checkpoint could be written for ",
      ShortDuration(absl::Seconds(job.storage_failure().seconds())),
      "; training goes on, and the job fails after ",
      ShortDuration(absl::Seconds(limit.seconds()) + absl::Nanoseconds(limit.nanos())));
}

std::string AttemptText(const Job& job) {
  const std::string& why = job.attempt_reason();
  return absl::StrCat("  attempt ", job.attempt(), why.empty() ? "" : absl::StrCat(" (", why, ")"));
}

std::string WorkerLine(const control::v1::RankView& view) {
  const RankStatus& status = view.status();
  const bool started = status.phase() != telemetry::v1::PHASE_UNSPECIFIED;
  const std::string phase =
      started ? Lower(telemetry::v1::Phase_Name(status.phase()), "PHASE_") : "-";
  std::string line = absl::StrFormat("%5d  %-12s %-11s %8d  ", status.rank(), view.node_id(), phase,
                                     status.step());
  if (status.progress_age_seconds() > kQuietSeconds) {
    absl::StrAppend(&line, "for ", ShortDuration(absl::Seconds(status.progress_age_seconds())),
                    ": ");
  }
  return absl::StrCat(line, status.doing());
}

// Not all where there are many: those that stand still before others, in the order of their ranks.
std::vector<int> ShownWorkers(const Job& job, int workers_max) {
  std::vector<int> shown(static_cast<size_t>(job.ranks_size()));
  std::iota(shown.begin(), shown.end(), 0);
  if (job.ranks_size() <= workers_max) return shown;
  std::stable_partition(shown.begin(), shown.end(), [&](int i) {
    return job.ranks(i).status().progress_age_seconds() > kQuietSeconds;
  });
  shown.resize(static_cast<size_t>(workers_max));
  std::sort(shown.begin(), shown.end());
  return shown;
}

// The end of a job needs no table of workers.
void AppendWorkers(const Job& job, int workers_max, std::vector<std::string>* lines) {
  if (job.ranks().empty() || IsTerminal(job.state())) return;
  lines->push_back(
      absl::StrFormat("%5s  %-12s %-11s %8s  %s", "rank", "node", "phase", "step", "doing"));
  const std::vector<int> shown = ShownWorkers(job, workers_max);
  for (const int i : shown) lines->push_back(WorkerLine(job.ranks(i)));
  const int left_out = job.ranks_size() - static_cast<int>(shown.size());
  if (left_out > 0) lines->push_back(absl::StrFormat("       and %d more workers", left_out));
}

std::string PlainProgress(const Job& job) {
  std::string line = absl::StrFormat("step %d/%d (%.0f %%)  loss %.4f", job.last_step(),
                                     job.spec().train().steps(), 100 * DoneFraction(job),
                                     job.last_record().loss());
  if (const std::string rate = RateText(job); !rate.empty()) absl::StrAppend(&line, "  ", rate);
  const absl::Duration left = TimeLeft(job);
  if (left >= absl::ZeroDuration()) absl::StrAppend(&line, "  ", ShortDuration(left), " left");
  return line;
}

}  // namespace

std::string StateName(control::v1::JobState state) {
  absl::string_view name = control::v1::JobState_Name(state);
  absl::ConsumePrefix(&name, "JOB_STATE_");
  return name.empty() ? "UNKNOWN" : std::string(name);
}

bool IsTerminal(control::v1::JobState state) {
  return state == control::v1::JOB_STATE_SUCCEEDED || state == control::v1::JOB_STATE_FAILED ||
         state == control::v1::JOB_STATE_CANCELLED;
}

std::string StateLine(const Job& job) {
  std::string line = StateName(job.state());
  if (!job.reason().empty()) absl::StrAppend(&line, " (", job.reason(), ")");
  if (!job.message().empty()) absl::StrAppend(&line, ": ", job.message());
  return line;
}

std::string RateText(const Job& job) {
  if (job.tokens_per_second() <= 0) return "";
  std::string text = absl::StrCat(WithCommas(std::llround(job.tokens_per_second())), " tokens/s");
  if (job.flops_ceiling() > 0 && job.model_flops_per_second() > 0) {
    absl::StrAppendFormat(&text, ", MFU %.1f %% of %.0f GFLOP/s",
                          100 * job.model_flops_per_second() / job.flops_ceiling(),
                          job.flops_ceiling() / 1e9);
  }
  return text;
}

absl::Duration TimeLeft(const Job& job) {
  const int64_t steps_left = job.spec().train().steps() - job.last_step();
  if (job.tokens_per_second() <= 0 || steps_left < 0) return -absl::InfiniteDuration();
  const double tokens_left = static_cast<double>(steps_left) * TokensPerStep(job);
  return absl::Seconds(tokens_left / job.tokens_per_second());
}

std::vector<std::string> RenderJob(const Job& job, const Terminal& terminal, int workers_max) {
  std::vector<std::string> lines;
  lines.push_back(absl::StrCat(job.job_id(), "  ", StateLine(job)));
  if (job.attempt() > 1) absl::StrAppend(&lines.back(), AttemptText(job));
  lines.push_back(ProgressLine(job, terminal));
  if (job.last_record().step() > 0) lines.push_back(LossLine(job));
  if (job.has_last_checkpoint()) {
    const absl::Duration age = absl::Seconds(job.last_checkpoint().age_seconds());
    lines.push_back(absl::StrCat("checkpoint of step ", job.last_checkpoint().step(), ", ",
                                 ShortDuration(age), " old, in ",
                                 job.last_checkpoint().directory()));
  }
  if (job.has_storage_failure()) lines.push_back(StorageLine(job));
  for (const std::string& warning : job.warnings()) {
    if (!IsTerminal(job.state())) lines.push_back(absl::StrCat("warning: ", warning));
  }
  if (job.has_culprit())
    lines.push_back(absl::StrCat("last failure: ", CulpritText(job.culprit())));
  AppendWorkers(job, workers_max, &lines);
  for (std::string& line : lines) line = CutToWidth(line, terminal.width);
  const std::string state = StateName(job.state());
  const size_t at = lines[0].find(state, job.job_id().size());
  if (at != std::string::npos) {
    lines[0].replace(at, state.size(), Colored(terminal, StateColor(job.state()), state));
  }
  return lines;
}

std::vector<std::string> RenderFailure(const Job& job) {
  std::vector<std::string> lines;
  if (!job.has_culprit()) return lines;
  for (const absl::string_view line : absl::StrSplit(job.culprit().evidence(), '\n')) {
    lines.push_back(absl::StrCat("  ", CutToWidth(line, 500)));
  }
  lines.erase(lines.begin());  // `last failure` has the first one
  for (const control::v1::Culprit& consequence : job.consequences()) {
    lines.push_back(absl::StrCat("then followed: ", CutToWidth(CulpritText(consequence), 500)));
  }
  if (job.num_consequences() > job.consequences_size()) {
    lines.push_back(absl::StrCat("and ", job.num_consequences() - job.consequences_size(),
                                 " more failures followed"));
  }
  return lines;
}

std::vector<std::string> PlainLog::Update(const Job& job, absl::Duration now) {
  std::vector<std::string> lines;
  if (job.has_last_checkpoint() && job.last_checkpoint().step() != checkpoint_step_) {
    checkpoint_step_ = job.last_checkpoint().step();
    lines.push_back(absl::StrCat("checkpoint of step ", checkpoint_step_, " in ",
                                 job.last_checkpoint().directory()));
  }
  const bool new_attempt = started_ && job.attempt() != attempt_;
  if (!started_ || job.state() != state_ || job.message() != message_ || new_attempt) {
    lines.push_back(absl::StrCat(job.job_id(), "  ", StateLine(job)));
    if (job.attempt() > 1) absl::StrAppend(&lines.back(), AttemptText(job));
    if (new_attempt && job.has_culprit()) {
      lines.push_back(absl::StrCat("last failure: ", CulpritText(job.culprit())));
    }
  }
  const int64_t steps = std::max<int64_t>(1, job.spec().train().steps());
  const bool tenth = 10 * job.last_step() / steps != 10 * std::max<int64_t>(step_, 0) / steps;
  const bool progressed = job.last_step() != step_ && job.last_record().step() > 0;
  if (progressed && (step_ < 0 || tenth || now - progress_at_ >= kPlainInterval)) {
    lines.push_back(PlainProgress(job));
    step_ = job.last_step();
    progress_at_ = now;
  }
  started_ = true;
  state_ = job.state();
  message_ = job.message();
  attempt_ = job.attempt();
  for (std::string& line : lines) line = CutToWidth(line, 500);
  return lines;
}

void LiveView::Erase() {
  if (lines_drawn_ > 0) std::fprintf(out_, "\033[%dA\r\033[J", lines_drawn_);
  lines_drawn_ = 0;
}

void LiveView::Show(const Job& job, absl::Duration now) {
  std::vector<std::string> lines;
  if (!terminal_.interactive) {
    lines = plain_.Update(job, now);
  } else {
    if (drawn_ && job.state() == drawn_state_ && now - drawn_at_ < kRedrawInterval) return;
    lines = RenderJob(job, terminal_, kWorkersMax);
    Erase();
    lines_drawn_ = static_cast<int>(lines.size());
  }
  for (const std::string& line : lines) std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
  drawn_ = true;
  drawn_at_ = now;
  drawn_state_ = job.state();
}

void LiveView::Say(const std::string& line) {
  Erase();
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace megascale::cli
