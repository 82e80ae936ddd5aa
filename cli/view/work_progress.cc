#include "cli/view/terminal.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace megascale::cli {
namespace {

constexpr absl::Duration kLineInterval = absl::Seconds(10);
constexpr absl::Duration kWorkRedrawInterval = absl::Milliseconds(200);

}  // namespace

WorkProgress::WorkProgress(ProgressWords words, const Terminal& terminal, std::FILE* out,
                           absl::Duration now)
    : words_(std::move(words)), terminal_(terminal), out_(out), started_at_(now), shown_at_(now) {}

WorkProgress::~WorkProgress() {
  if (!drawn_) return;
  std::fprintf(out_, "\r\033[K");
  std::fflush(out_);
}

void WorkProgress::Show(int64_t done, int64_t all, absl::Duration now) {
  if (now - shown_at_ < (terminal_.interactive ? kWorkRedrawInterval : kLineInterval)) return;
  shown_at_ = now;
  const absl::Duration left = (now - started_at_) / done * (all - done);
  const std::string line =
      CutToWidth(absl::StrCat(words_.what, ": ", WithCommas(done), " of ", WithCommas(all), " ",
                              words_.units, ", ", ShortDuration(left), " left"),
                 terminal_.width - 1);
  if (terminal_.interactive) {
    std::fprintf(out_, "\r\033[K%s", line.c_str());
    drawn_ = true;
  } else {
    std::fprintf(out_, "%s\n", line.c_str());
  }
  std::fflush(out_);
}

}  // namespace megascale::cli
