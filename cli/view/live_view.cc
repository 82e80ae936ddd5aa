#include "cli/view/live_view.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/process/resource_limit.h"
#include "runtime/base/text/counted.h"
#include "runtime/base/text/printable.h"
#include "runtime/telemetry/shown_ranks.h"

namespace megascale::cli {
namespace {

using control::v1::Job;
using telemetry::v1::RankStatus;

constexpr absl::Duration kPlainInterval = absl::Seconds(10);
constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
constexpr int kBarWidthMax = 40;
constexpr int kNodeWidthMin = 12;      // of a name in the table of workers
constexpr int kOtherWidth = 60;        // of its other columns
constexpr int64_t kTimedStepsMin = 3;  // the first ones take longer
constexpr int kWrappedLinesMax = 4;    // of one text
constexpr int kUnlimitedWidth = 500;
constexpr int kPlainWidthMax = 2000;
constexpr char kClearRow[] = "\033[K";
constexpr char kNoWrap[] = "\033[?7l";  // the terminal cuts lines that are too wide
constexpr char kWrap[] = "\033[?7h";

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

bool ShowsUtilisation(const Job& job) {
  return job.flops_ceiling() > 0 && job.model_flops_per_second() > 0;
}

// Appends one line if there is room, else two.
void AppendLossLine(const Job& job, int width, std::vector<std::string>* lines) {
  const telemetry::v1::StepRecord& record = job.last_record();
  lines->push_back(absl::StrFormat("loss %.4f   gradient norm %.3f   lr %.2e", record.loss(),
                                   record.grad_norm(), record.lr()));
  const std::string rate = RateText(job);
  if (rate.empty()) return;
  if (DisplayWidth(lines->back()) + 3 + DisplayWidth(rate) <= width) {
    absl::StrAppend(&lines->back(), "   ", rate);
  } else {
    lines->push_back(rate);
  }
}

// Appends the losses on training and on held-out text.
void AppendLoss(const Job& job, int width, std::vector<std::string>* lines) {
  AppendLossLine(job, width, lines);
  if (job.has_held_out()) {
    std::string held_out = absl::StrFormat("held-out loss %.4f at step %d", job.held_out().loss(),
                                           job.held_out().step());
    if (job.has_lowest_held_out() && job.lowest_held_out().step() != job.held_out().step()) {
      absl::StrAppendFormat(&held_out, ", lowest %.4f at step %d", job.lowest_held_out().loss(),
                            job.lowest_held_out().step());
    }
    lines->push_back(std::move(held_out));
  } else if (job.has_lowest_held_out()) {  // the newest is not known any more
    lines->push_back(absl::StrFormat("lowest held-out loss %.4f at step %d",
                                     job.lowest_held_out().loss(), job.lowest_held_out().step()));
  }
}

std::string RankName(int rank) { return rank < 0 ? "host" : absl::StrCat("rank ", rank); }

// Returns the culprit in one line.
std::string CulpritText(const control::v1::Culprit& culprit) {
  const std::string what =
      Lower(telemetry::v1::FailureClass_Name(culprit.failure_class()), "FAILURE_CLASS_");
  std::string text = absl::StrCat(RankName(culprit.rank()), " on ", culprit.node_id(), " ");
  if (culprit.failure_class() == telemetry::v1::FAILURE_CLASS_LINK) {
    absl::StrAppend(&text, "got no answer from ", RankName(culprit.peer_rank()), " on ",
                    culprit.peer_node_id(), ", though both machines reach the driver");
  } else {
    absl::StrAppend(&text, what);
  }
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

// Returns what StateLine leaves out of the attempt: its number, unless the job's message begins
// with that, and why the attempt before it ended.
std::string AttemptText(const Job& job) {
  if (job.attempt() <= 1) return "";
  const std::string& why = job.attempt_reason();
  const std::string name = absl::StrCat("attempt ", job.attempt());
  if (absl::StartsWith(job.message(), name + " ")) {
    return why.empty() ? "" : absl::StrCat(" (after ", why, ")");
  }
  return absl::StrCat("  ", name, why.empty() ? "" : absl::StrCat(" (", why, ")"));
}

// Returns "4 ranks on NVIDIA H100 80GB HBM3 (79.6 GiB)" for each kind of device; empty: no rank has
// shown its own yet.
std::string DevicesLine(const Job& job) {
  std::vector<telemetry::DeviceKind> kinds;
  for (const control::v1::DeviceKind& kind : job.device_kinds()) {
    kinds.push_back({kind.name(), kind.memory_bytes(), kind.num_ranks()});
  }
  if (kinds.empty()) {  // an older driver does not count them, and sends all ranks
    for (const control::v1::RankView& rank : job.ranks()) {
      if (rank.status().has_device()) telemetry::CountDevice(rank.status().device(), &kinds);
    }
  }
  return absl::StrJoin(kinds, ", ", [](std::string* out, const telemetry::DeviceKind& kind) {
    absl::StrAppend(out, base::Counted(kind.num_ranks, "rank"), " on ", kind.name);
    if (kind.memory_bytes > 0) {
      absl::StrAppend(out, " (", base::FormatBytes(kind.memory_bytes), ")");
    }
  });
}

std::string MemoryText(const RankStatus& status) {
  return status.has_device() ? base::FormatBytes(status.device().used_bytes()) : "-";
}

// Returns the text, cut or padded to `width` columns.
std::string InColumn(absl::string_view text, int width) {
  std::string cell = ShortenToWidth(text, width);
  cell.append(static_cast<size_t>(width - DisplayWidth(cell)), ' ');
  return cell;
}

std::string WorkerLine(const control::v1::RankView& view, int node_width) {
  const RankStatus& status = view.status();
  const bool started = status.phase() != telemetry::v1::PHASE_UNSPECIFIED;
  const std::string phase =
      started ? Lower(telemetry::v1::Phase_Name(status.phase()), "PHASE_") : "-";
  std::string line = absl::StrFormat("%5d  %s %-11s %8d  %10s  ", status.rank(),
                                     InColumn(view.node_id(), node_width), phase, status.step(),
                                     MemoryText(status));
  if (status.progress_age_seconds() > telemetry::kQuietSeconds) {
    absl::StrAppend(&line, "for ", ShortDuration(absl::Seconds(status.progress_age_seconds())),
                    ": ");
  }
  return absl::StrCat(line, status.doing());
}

// An older driver does not say it, and sends all ranks.
int NumWorkers(const Job& job) { return std::max(job.num_ranks(), job.ranks_size()); }

// Appends the table of workers, except for a job that has ended. A node's name is cut if less than
// kOtherWidth of `width` would be left for the other columns.
void AppendWorkers(const Job& job, int workers_max, int width, std::vector<std::string>* lines) {
  if (job.ranks().empty() || IsTerminal(job.state()) || workers_max <= 0) return;
  const std::vector<int> shown = telemetry::ChooseShownRanks(
      job.ranks_size(), workers_max,
      [&](int i) { return job.ranks(i).status().progress_age_seconds(); });
  int node_width = kNodeWidthMin;
  for (const int i : shown) node_width = std::max(node_width, DisplayWidth(job.ranks(i).node_id()));
  node_width = std::min(node_width, std::max(kNodeWidthMin, width - kOtherWidth));
  lines->push_back(absl::StrFormat("%5s  %s %-11s %8s  %10s  %s", "rank",
                                   InColumn("node", node_width), "phase", "step", "memory",
                                   "doing"));
  for (const int i : shown) lines->push_back(WorkerLine(job.ranks(i), node_width));
  const int left_out = NumWorkers(job) - static_cast<int>(shown.size());
  if (left_out > 0) lines->push_back(absl::StrFormat("       and %d more workers", left_out));
}

// Shortens the block to `room` lines, of which the last says what is left out.
void CutToRoom(int room, int num_workers_left_out, std::vector<std::string>* lines) {
  const int num_lines = static_cast<int>(lines->size());
  if (num_lines <= room && num_workers_left_out == 0) return;
  const int num_kept = std::min(num_lines, std::max(1, room - 1));
  lines->resize(static_cast<size_t>(num_kept));
  const auto counted = [](int count, const char* what) {
    return count == 0 ? "" : base::Counted(count, what);
  };
  const std::string cut = counted(num_lines - num_kept, "line");
  const std::string workers = counted(num_workers_left_out, "worker");
  const std::string left_out =
      absl::StrCat("(this window has no room for ", cut,
                   cut.empty() || workers.empty() ? "" : " and ", workers, ")");
  if (room > 1) {
    lines->push_back(left_out);
  } else {
    absl::StrAppend(&lines->back(), "  ", left_out);
  }
}

int DisplayWidthOfColored(absl::string_view line) {
  int width = DisplayWidth(line);
  for (size_t at = 0; (at = line.find('\033', at)) != absl::string_view::npos; ++at) {
    width -= static_cast<int>(line.find('m', at) - at + 1);
  }
  return width;
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
  if (ShowsUtilisation(job)) {
    absl::StrAppendFormat(&text, ", MFU %.1f %% of %.0f GFLOP/s",
                          100 * job.model_flops_per_second() / job.flops_ceiling(),
                          job.flops_ceiling() / 1e9);
    if (job.flops_ceiling_age_seconds() > 0) {
      absl::StrAppend(&text, " (measured ",
                      ShortDuration(absl::Seconds(job.flops_ceiling_age_seconds())), " ago)");
    }
  }
  return text;
}

absl::Duration TimeLeft(const Job& job) {
  const int64_t steps_left = job.spec().train().steps() - job.last_step();
  const int64_t steps_done = job.last_step() - job.first_step();
  if (job.tokens_per_second() <= 0 || steps_left < 0 || steps_done < kTimedStepsMin) {
    return -absl::InfiniteDuration();
  }
  const double tokens_left = static_cast<double>(steps_left) * TokensPerStep(job);
  return absl::Seconds(tokens_left / job.tokens_per_second());
}

std::string SuspicionText(const control::v1::Suspicion& suspicion) {
  std::string text = base::Printable(suspicion.verdict(), 500);
  if (suspicion.has_began_at()) {
    const absl::Time began = absl::FromUnixSeconds(suspicion.began_at().seconds());
    absl::StrAppend(&text, ", since ",
                    absl::FormatTime("%Y-%m-%d %H:%M:%S", began, absl::LocalTimeZone()));
  }
  return absl::StrCat(text, " (", base::Printable(suspicion.action(), 200), ")");
}

namespace {

// Returns what is shown of a job up to its last failure.
std::vector<std::string> TextsToFailure(const Job& job, const Terminal& terminal) {
  std::vector<std::string> texts;
  texts.push_back(absl::StrCat(job.job_id(), "  ", StateLine(job), AttemptText(job)));
  texts.push_back(CutToWidth(ProgressLine(job, terminal), terminal.width));
  if (job.last_record().step() > 0) AppendLoss(job, terminal.width, &texts);
  if (job.has_last_checkpoint()) {
    const absl::Duration age = absl::Seconds(job.last_checkpoint().age_seconds());
    texts.push_back(absl::StrCat("checkpoint of step ", job.last_checkpoint().step(), ", ",
                                 ShortDuration(age), " old, in ",
                                 job.last_checkpoint().directory()));
  }
  if (job.has_best_checkpoint() && job.best_checkpoint().step() != job.last_checkpoint().step()) {
    texts.push_back(absl::StrCat("best checkpoint, of step ", job.best_checkpoint().step(), ", in ",
                                 job.best_checkpoint().directory()));
  }
  if (job.has_storage_failure()) texts.push_back(StorageLine(job));
  if (!IsTerminal(job.state())) {
    for (std::string& line : WarningLines(job)) texts.push_back(std::move(line));
  }
  for (const control::v1::NumberWarning& warning : job.number_warnings()) {
    texts.push_back(absl::StrCat("warning: ", base::Printable(warning.message(), 400)));
  }
  if (job.has_suspicion() && !IsTerminal(job.state())) {
    texts.push_back(absl::StrCat("suspect: ", SuspicionText(job.suspicion())));
  }
  if (job.has_culprit())
    texts.push_back(absl::StrCat("last failure: ", CulpritText(job.culprit())));
  return texts;
}

// Returns what is shown between a job's last failure and its workers.
std::vector<std::string> TextsAfterFailure(const Job& job) {
  std::vector<std::string> texts;
  for (const control::v1::NodeEvidence& node : job.evidence().nodes()) {
    if (node.quarantine_evidence().empty()) continue;
    texts.push_back(
        absl::StrCat("node ", node.node_id(), " was at fault: ", node.quarantine_evidence()));
  }
  if (!IsTerminal(job.state())) {
    if (std::string devices = DevicesLine(job); !devices.empty()) {
      texts.push_back(std::move(devices));
    }
  }
  return texts;
}

void AppendWrapped(const std::vector<std::string>& texts, int width,
                   std::vector<std::string>* lines) {
  for (const std::string& text : texts) {
    for (std::string& line : WrapToWidth(text, width, kWrappedLinesMax)) {
      lines->push_back(std::move(line));
    }
  }
}

std::vector<std::string> Render(const Job& job, const Terminal& terminal, int workers_max,
                                const std::vector<std::string>& failure) {
  std::vector<std::string> lines;
  AppendWrapped(TextsToFailure(job, terminal), terminal.width, &lines);
  lines.insert(lines.end(), failure.begin(), failure.end());
  AppendWrapped(TextsAfterFailure(job), terminal.width, &lines);
  const int room = terminal.height <= 0 ? INT_MAX : terminal.height;
  const int room_of_workers = room - static_cast<int>(lines.size()) - 2;
  AppendWorkers(job, std::min(workers_max, room_of_workers), terminal.width, &lines);
  const bool lacks_workers = !IsTerminal(job.state()) && workers_max > 0 && room_of_workers <= 0;
  CutToRoom(room, lacks_workers ? NumWorkers(job) : 0, &lines);
  for (std::string& line : lines) line = CutToWidth(line, terminal.width);
  const std::string state = StateName(job.state());
  const size_t at = lines[0].find(state, job.job_id().size());
  if (at != std::string::npos) {
    lines[0].replace(at, state.size(), Colored(terminal, StateColor(job.state()), state));
  }
  return lines;
}

}  // namespace

std::vector<std::string> RenderJob(const Job& job, const Terminal& terminal, int workers_max) {
  return Render(job, terminal, workers_max, {});
}

std::vector<std::string> RenderWholeJob(const Job& job, const Terminal& terminal, int workers_max) {
  return Render(job, terminal, workers_max, RenderFailure(job));
}

std::vector<std::string> WarningLines(const Job& job) {
  std::vector<std::string> lines;
  for (const std::string& warning : job.warnings()) {
    lines.push_back(absl::StrCat("warning: ", warning));
  }
  return lines;
}

std::vector<std::string> RenderFailure(const Job& job) {
  std::vector<std::string> lines;
  if (!job.has_culprit()) return lines;
  for (const absl::string_view line : absl::StrSplit(job.culprit().evidence(), '\n')) {
    lines.push_back(absl::StrCat("  ", CutToWidth(line, kPlainWidthMax)));
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
    lines.push_back(absl::StrCat(job.job_id(), "  ", StateLine(job), AttemptText(job)));
    if (new_attempt && job.has_culprit()) {
      lines.push_back(absl::StrCat("last failure: ", CulpritText(job.culprit())));
    }
  }
  const bool last = job.last_step() == job.spec().train().steps();
  const bool progressed = job.last_step() != step_ && job.last_record().step() > 0;
  if (progressed && (step_ < 0 || last || now - progress_at_ >= kPlainInterval)) {
    lines.push_back(PlainProgress(job));
    step_ = job.last_step();
    progress_at_ = now;
  }
  for (const std::string& warning : job.warnings()) {
    if (job.reason() == "Preflight") break;  // each node may add itself to one
    if (IsTerminal(job.state())) break;      // WarningLines
    if (warnings_.insert(warning).second) lines.push_back(absl::StrCat("warning: ", warning));
  }
  started_ = true;
  state_ = job.state();
  message_ = job.message();
  attempt_ = job.attempt();
  for (std::string& line : lines) line = CutToWidth(line, 500);
  return lines;
}

// Requires: the cursor is where Draw left it. A terminal that became narrower has wrapped its lines
// again. Clears row by row, because tmux keeps what "clear the rest of the screen" removes, if that
// is all of it: the scrollback would get a copy of the block each time.
void LiveView::Erase() {
  if (widths_drawn_.empty()) return;
  int rows = in_one_row_ ? -1 : 0;  // above the cursor
  for (const int width : widths_drawn_) {
    rows += std::max(1, (width + terminal_.width - 1) / terminal_.width);
  }
  if (terminal_.height > 0) rows = std::min(rows, terminal_.height - 1);
  const std::string up = rows > 0 ? absl::StrFormat("\033[%dA", rows) : "";
  std::string clear = absl::StrCat("\r", up);
  for (int row = 0; row < rows; ++row) absl::StrAppend(&clear, kClearRow, "\n");
  absl::StrAppend(&clear, kClearRow, up);
  std::fprintf(out_, "%s", clear.c_str());
  widths_drawn_.clear();
}

// A block that stays is never erased, so the terminal may wrap its lines and scroll it. In another
// block the terminal must not wrap what it shows wider than this program counts, such as Chinese:
// Erase would leave a row of it behind each time.
void LiveView::Draw() {
  Erase();
  const bool stays = IsTerminal(job_.state());
  in_one_row_ = !stays && terminal_.height == 1;
  Terminal room = terminal_;
  room.width = stays ? kUnlimitedWidth : terminal_.width;
  // The cursor needs the row below.
  room.height = stays || terminal_.height <= 0 ? 0 : std::max(1, terminal_.height - 1);
  const std::vector<std::string> lines = RenderJob(job_, room, kWorkersMax);
  std::fprintf(out_, "%s%s%s%s", stays ? "" : kNoWrap, absl::StrJoin(lines, "\n").c_str(),
               in_one_row_ ? "" : "\n", stays ? "" : kWrap);
  if (!stays) {
    for (const std::string& line : lines) widths_drawn_.push_back(DisplayWidthOfColored(line));
  }
  std::fflush(out_);
}

void LiveView::Show(const Job& job, absl::Duration now) {
  if (!terminal_.interactive) {
    for (const std::string& line : plain_.Update(job, now)) {
      std::fprintf(out_, "%s\n", line.c_str());
    }
    std::fflush(out_);
    return;
  }
  if (drawn_ && job.state() == job_.state() && now - drawn_at_ < kRedrawInterval) return;
  job_ = job;
  drawn_ = true;
  drawn_at_ = now;
  terminal_ = look_();
  Draw();
}

void LiveView::FollowSize() {
  if (!terminal_.interactive || widths_drawn_.empty()) return;
  const Terminal seen = look_();
  if (seen.width == terminal_.width && seen.height == terminal_.height) return;
  terminal_ = seen;
  Draw();
}

void LiveView::Say(const std::string& line) {
  const bool has_block = !widths_drawn_.empty();
  Erase();
  std::fprintf(out_, "%s\n", line.c_str());
  if (has_block) Draw();
  std::fflush(out_);
}

}  // namespace megascale::cli
