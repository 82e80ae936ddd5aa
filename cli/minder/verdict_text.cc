#include "cli/minder/verdict_text.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/base/text/printable.h"

namespace megascale::cli {
namespace {

using nlohmann::ordered_json;

// Bars of one eighth of the height to the whole of it.
constexpr const char* kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

std::string Ago(double seconds) {
  const auto whole = absl::Seconds(static_cast<int64_t>(std::max(0.0, seconds)));
  return absl::StrCat(absl::FormatDuration(whole), " ago");
}

std::string Number(double value) {
  if (std::abs(value) >= 1e9) return absl::StrFormat("%.3gG", value / 1e9);
  if (std::abs(value) >= 1e6) return absl::StrFormat("%.3gM", value / 1e6);
  if (std::abs(value) >= 1e4) return absl::StrFormat("%.3gk", value / 1e3);
  return absl::StrFormat("%.3g", value);
}

std::string Bars(const std::vector<double>& curve, double highest) {
  std::string bars;
  for (const double value : curve) {
    const double share = highest > 0 ? std::clamp(value / highest, 0.0, 1.0) : 0;
    bars += kBars[static_cast<size_t>(std::lround(share * 7))];
  }
  return bars;
}

std::string Difference(const minder::Verdict& verdict) {
  return absl::StrCat(
      "machine ", base::Printable(verdict.machine, 100),
      verdict.lasts ? " differs: " : " differed: ", base::Printable(verdict.metric, 60), " ",
      Number(verdict.value), ", where ", Number(verdict.usual), " is usual");
}

std::string Sentence(const minder::Verdict& verdict, double now) {
  return absl::StrCat(Difference(verdict), ", since ", Ago(now - verdict.begin),
                      verdict.lasts ? "" : absl::StrCat(", for ", Number(verdict.seconds), " s"));
}

std::string Sureness(const minder::Verdict& verdict) {
  return absl::StrFormat(
      "score %.1f of at most %.1f among %d machines; %.0f %% of the metric's range away from the "
      "others",
      verdict.score, verdict.score_max, verdict.num_compared, 100 * verdict.distance);
}

}  // namespace

std::string ExaminedText(const Examined& examined) {
  const minder::Examination& found = examined.examination;
  std::string text = absl::StrCat(base::Printable(examined.subject, 200), ": ");
  if (found.verdict.has_value()) {
    const minder::Verdict& verdict = *found.verdict;
    double highest = 0;
    for (const auto* curve : {&verdict.curve, &verdict.usual_curve}) {
      for (const double value : *curve) highest = std::max(highest, value);
    }
    absl::StrAppend(&text, Sentence(verdict, examined.now), "\n  sure: ", Sureness(verdict),
                    "\n  its ", base::Printable(verdict.metric, 60), " over ", found.num_seconds,
                    " s:\n    ", Bars(verdict.curve, highest), "  this machine\n    ",
                    Bars(verdict.usual_curve, highest), "  median of all\n");
    if (!examined.action.empty()) {
      absl::StrAppend(&text, "  driver: ", base::Printable(examined.action, 300), "\n");
    }
  } else if (found.num_compared == 0) {
    absl::StrAppend(&text, "nothing could be compared\n");
  } else {
    absl::StrAppend(&text, "no machine differs from the others (", found.num_compared,
                    " machines, ", found.num_seconds, " s)\n");
  }
  for (const std::string& note : found.notes) {
    absl::StrAppend(&text, "  note: ", base::Printable(note, 300), "\n");
  }
  return text;
}

std::string ExaminedJson(const Examined& examined) {
  const minder::Examination& found = examined.examination;
  ordered_json object = {{"subject", examined.subject},
                         {"machines_compared", found.num_compared},
                         {"seconds", found.num_seconds},
                         {"verdict", nullptr},
                         {"notes", found.notes}};
  if (found.verdict.has_value()) {
    const minder::Verdict& verdict = *found.verdict;
    object["verdict"] = {{"machine", verdict.machine},
                         {"metric", verdict.metric},
                         {"began_at", verdict.begin},
                         {"began_seconds_ago", examined.now - verdict.begin},
                         {"differed_seconds", verdict.seconds},
                         {"lasts", verdict.lasts},
                         {"score", verdict.score},
                         {"score_max", verdict.score_max},
                         {"distance", verdict.distance},
                         {"value", verdict.value},
                         {"usual", verdict.usual},
                         {"curve_begins_at", verdict.curve_begin},
                         {"curve", verdict.curve},
                         {"usual_curve", verdict.usual_curve}};
  }
  if (!examined.action.empty()) object["driver"] = examined.action;
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

control::v1::ReportSuspectRequest ReportOf(const Examined& examined, const control::v1::Job& job) {
  const minder::Verdict& verdict = *examined.examination.verdict;
  control::v1::ReportSuspectRequest request;
  request.set_job_id(job.job_id());
  request.set_attempt(job.attempt());
  request.set_node_id(verdict.machine);
  request.set_verdict(Difference(verdict));
  request.mutable_began_at()->set_seconds(std::max<int64_t>(0, std::llround(verdict.begin)));
  request.add_evidence(Sureness(verdict));
  const auto line = [&](const char* of, const std::vector<double>& curve) {
    const auto append = [](std::string* out, double value) { absl::StrAppend(out, Number(value)); };
    return absl::StrCat(base::Printable(verdict.metric, 60), " of ", of, " over ",
                        examined.examination.num_seconds,
                        " s: ", absl::StrJoin(curve, " ", append));
  };
  request.add_evidence(line("this machine", verdict.curve));
  request.add_evidence(line("the median machine", verdict.usual_curve));
  return request;
}

}  // namespace megascale::cli
