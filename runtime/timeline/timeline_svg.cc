#include "runtime/timeline/timeline_svg.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/operation.h"

namespace megascale::timeline {
namespace {

using plan::Instruction;
using plan::OpClass;
using plan::RankPlan;
using plan::StreamKind;

constexpr double kLeft = 110;
constexpr double kTop = 48;
constexpr double kWidth = 1400;
constexpr double kBand = 20;      // height of the bar of computing
constexpr double kLine = 5;       // height of the line of another stream
constexpr double kGap = 8;        // between ranks
constexpr double kLabelMin = 11;  // least width for a number
constexpr int kTicks = 8;

constexpr int kGrey = -1;
constexpr char kGreyColor[] = "#8a8f98";
constexpr char kWaitColor[] = "#e3e5e9";

// How a class of operations is drawn: its hue in degrees, or kGrey; its words in the legend, ""
// where a class above it has them.
struct Look {
  OpClass op_class;
  int hue;
  const char* words;
};
// In the order of the legend.
constexpr Look kLooks[] = {
    {OpClass::kForward, 212, "forward"},
    {OpClass::kBackward, 140, "backward"},
    {OpClass::kWeights, 42, "gradients of weights"},
    {OpClass::kLoad, kGrey, "batch, activations, gradients of activations"},
    {OpClass::kSend, kGrey, ""},
    {OpClass::kReceive, kGrey, ""},
    {OpClass::kCollective, 280, "gradients, norm, parameters"},
    {OpClass::kOptimizer, 0, "optimizer"},
};

constexpr const Look* LookOf(OpClass op_class) {
  for (const Look& look : kLooks) {
    if (look.op_class == op_class) return &look;
  }
  return nullptr;
}

constexpr bool EveryClassHasALook() {
  for (int i = static_cast<int>(OpClass::kUnknown) + 1; i < plan::kNumOpClasses; ++i) {
    if (LookOf(static_cast<OpClass>(i)) == nullptr) return false;
  }
  return true;
}
static_assert(EveryClassHasALook());

constexpr int kDarkest = 58;  // per cent
constexpr int kShades = 24;

std::string ColorOf(const Look* look, int light) {
  if (look == nullptr || look->hue == kGrey) return kGreyColor;
  return absl::StrFormat("hsl(%d,62%%,%d%%)", look->hue, light);
}

// Returns a shade of one hue, by chunk from a stage's first to its last.
std::string Color(const Instruction& instruction, const RankPlan& plan) {
  const int stages = plan.mesh.pipeline_size();
  const int chunks = std::max(1, plan.num_chunks / stages);
  const int chunk = instruction.id.chunk() < plan.num_chunks ? instruction.id.chunk() / stages : 0;
  const int light = kDarkest + (chunks > 1 ? kShades * chunk / (chunks - 1) : 0);
  return ColorOf(LookOf(OperationOf(instruction.kind()).op_class), light);
}

// Returns "12.3 ms".
std::string TimeText(double nanos) {
  if (nanos >= 1e9) return absl::StrFormat("%.3g s", nanos / 1e9);
  if (nanos >= 1e6) return absl::StrFormat("%.3g ms", nanos / 1e6);
  if (nanos >= 1e3) return absl::StrFormat("%.3g us", nanos / 1e3);
  return absl::StrFormat("%.3g ns", nanos);
}

std::string Escaped(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

class Drawing {
 public:
  Drawing(absl::Span<const RankPlan> plans, const StepTime& time,
          absl::Span<const std::string> names)
      : plans_(plans), time_(time), names_(names) {}

  std::string Draw(const std::string& title) {
    double top = kTop;
    for (size_t rank = 0; rank < plans_.size(); ++rank) top = DrawRank(rank, top) + kGap;
    DrawAxis(top);
    const double height = top + 52;
    return absl::StrFormat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"%.0f\" y=\"24\" font-size=\"14\">%s</text>\n%s%s</svg>\n",
        kLeft + kWidth + 30, height, kLeft, Escaped(title), body_, Legend(top + 40));
  }

 private:
  // If only the beginning of a step is shown, an instruction may end after it.
  double X(int64_t nanos) const {
    return kLeft + kWidth * static_cast<double>(std::min(nanos, time_.end)) /
                       static_cast<double>(std::max<int64_t>(1, time_.end));
  }

  void Bar(double x, double y, double width, double height, const std::string& fill,
           const std::string& tip) {
    absl::StrAppendFormat(&body_,
                          "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\" "
                          "fill=\"%s\"><title>%s</title></rect>\n",
                          x, y, width, height, fill, tip);
  }

  double DrawRank(size_t rank, double top) {
    const RankPlan& plan = plans_[rank];
    absl::StrAppendFormat(&body_, "<text x=\"8\" y=\"%.1f\">%s</text>\n", top + 14,
                          names_.empty() ? NameOf(plan) : names_[rank]);
    absl::StrAppendFormat(
        &body_, "<rect x=\"%.0f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" fill=\"#f1f2f4\"/>\n",
        kLeft, top, kWidth, kBand);
    double line = top + kBand + 2;
    for (const StreamKind stream : plan::StreamsOf(plan)) {
      const bool computes = stream == StreamKind::kCompute;
      for (size_t i = 0; i < plan.instructions.size(); ++i) {
        const Instruction& instruction = plan.instructions[i];
        const bool begun = time_.ranks[rank][i].state != SpanState::kNotBegun;
        if (instruction.stream != stream || !begun) continue;
        DrawSpan(plan, instruction, time_.ranks[rank][i], computes ? top : line, computes);
      }
      if (!computes) line += kLine + 1;
    }
    return line;
  }

  void DrawSpan(const RankPlan& plan, const Instruction& instruction, const SpanTime& span,
                double y, bool computes) {
    const std::string tip =
        absl::StrCat(instruction.id.ToString(), ", ", TimeText(static_cast<double>(span.begin)),
                     " to ", TimeText(static_cast<double>(span.end)));
    const double height = computes ? kBand : kLine;
    if (span.begin > span.ready) {
      Bar(X(span.ready), y, X(span.begin) - X(span.ready), height, kWaitColor,
          absl::StrCat(instruction.id.ToString(), " waits"));
    }
    if (span.end == span.begin) return;
    const double width = X(span.end) - X(span.begin);
    Bar(X(span.begin), y, width, height, Color(instruction, plan), tip);
    if (!computes || width < kLabelMin) return;
    absl::StrAppendFormat(&body_,
                          "<text x=\"%.2f\" y=\"%.1f\" text-anchor=\"middle\" "
                          "font-size=\"10\">%d</text>\n",
                          X(span.begin) + width / 2, y + 14, instruction.id.microbatch());
  }

  void DrawAxis(double y) {
    for (int tick = 0; tick <= kTicks; ++tick) {
      const int64_t nanos = time_.end / kTicks * tick;
      absl::StrAppendFormat(&body_,
                            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" "
                            "stroke=\"#c9ccd1\" stroke-dasharray=\"2 4\"/>\n"
                            "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n",
                            X(nanos), kTop - 6, X(nanos), y, X(nanos), y + 12,
                            TimeText(static_cast<double>(nanos)));
    }
  }

  static std::string Legend(double y) {
    std::string text;
    double x = kLeft;
    const auto add = [&](const std::string& color, absl::string_view words) {
      absl::StrAppendFormat(&text,
                            "<rect x=\"%.0f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                            "<text x=\"%.0f\" y=\"%.1f\">%s</text>\n",
                            x, y - 10, color, x + 17, y, words);
      x += 40 + 6.2 * static_cast<double>(words.size());
    };
    for (const Look& look : kLooks) {
      if (*look.words != '\0') add(ColorOf(&look, kDarkest), look.words);
    }
    add(kWaitColor, "waiting for peers");
    return text;
  }

  const absl::Span<const RankPlan> plans_;
  const StepTime& time_;
  const absl::Span<const std::string> names_;
  std::string body_;
};

}  // namespace

std::string TimelineSvg(absl::Span<const RankPlan> plans, const StepTime& time,
                        const std::string& title, absl::Span<const std::string> names) {
  return Drawing(plans, time, names).Draw(title);
}

}  // namespace megascale::timeline
