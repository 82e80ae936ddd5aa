#include "runtime/data/token_text.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace megascale::data {

absl::Status ByteText::Read(int64_t begin, absl::Span<int32_t> out) const {
  std::vector<uint8_t> bytes(out.size());
  RETURN_IF_ERROR(part_.Read(begin, absl::MakeSpan(bytes)));
  std::copy(bytes.begin(), bytes.end(), out.begin());
  return absl::OkStatus();
}

JoinedText::JoinedText(const std::vector<const TokenText*>& parts) {
  for (const TokenText* part : parts) {
    if (part->num_tokens() == 0) continue;
    ends_.push_back(num_tokens() + part->num_tokens());
    parts_.push_back(part);
  }
}

absl::Status JoinedText::Read(int64_t begin, absl::Span<int32_t> out) const {
  MEGASCALE_CHECK(begin >= 0 && begin + static_cast<int64_t>(out.size()) <= num_tokens());
  auto part =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (; !out.empty(); ++part) {
    const int64_t first = ends_[part] - parts_[part]->num_tokens();
    const auto count = std::min(out.size(), static_cast<size_t>(ends_[part] - begin));
    RETURN_IF_ERROR(parts_[part]->Read(begin - first, out.first(count)));
    out.remove_prefix(count);
    begin += static_cast<int64_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace megascale::data
