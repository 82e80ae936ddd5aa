#include "controlplane/driver/shell/pages.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"

namespace megascale::driver {
namespace {

constexpr size_t kTokenBytesMax = 512;
constexpr char kRanksList[] = "ranks";

// Finds mistakes. It keeps no secret: a token grants nothing.
std::string ChecksumOf(absl::string_view text) { return base::Sha256Hex(text).substr(0, 16); }

}  // namespace

std::string MakePageToken(const std::vector<std::string>& fields) {
  const std::string text = absl::StrJoin(fields, "/");
  return absl::WebSafeBase64Escape(absl::StrCat(text, "/", ChecksumOf(text)));
}

absl::Status BadPageToken(absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(
      name, ": the driver did not make it for this list; leave it out to get the first page"));
}

absl::StatusOr<std::vector<std::string>> ReadPageToken(absl::string_view name,
                                                       absl::string_view token,
                                                       absl::string_view list, size_t num_fields) {
  std::string text;
  if (token.size() > kTokenBytesMax || !absl::WebSafeBase64Unescape(token, &text) ||
      absl::WebSafeBase64Escape(text) != token) {
    return BadPageToken(name);
  }
  const size_t end = text.rfind('/');
  if (end == std::string::npos || text.substr(end + 1) != ChecksumOf(text.substr(0, end))) {
    return BadPageToken(name);
  }
  std::vector<std::string> fields = absl::StrSplit(text.substr(0, end), '/');
  if (fields.size() != num_fields || fields[0] != list) return BadPageToken(name);
  return fields;
}

absl::Status CutToPageOfRanks(const megascale::control::v1::GetJobRequest& request,
                              megascale::control::v1::GetJobResponse* response) {
  if (request.rank_page_size() < 0) {
    return absl::InvalidArgumentError(absl::StrCat("rank_page_size: ", request.rank_page_size(),
                                                   "; expected a number of ranks, or 0 for all"));
  }
  megascale::control::v1::Job* job = response->mutable_job();
  int64_t begin = 0;
  if (!request.rank_page_token().empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> fields,
                     ReadPageToken("rank_page_token", request.rank_page_token(), kRanksList, 4));
    int64_t attempt = 0;
    if (fields[1] != job->job_id() || !absl::SimpleAtoi(fields[2], &attempt) ||
        !absl::SimpleAtoi(fields[3], &begin) || begin < 0) {
      return BadPageToken("rank_page_token");
    }
    if (attempt != job->attempt()) {
      return absl::AbortedError(absl::StrCat(
          "rank_page_token: attempt ", job->attempt(), " of job ", job->job_id(),
          " has begun, and its ranks may be elsewhere; leave it out to get the first page"));
    }
  }
  const int64_t num_ranks = job->ranks_size();
  begin = std::min(begin, num_ranks);
  const int64_t end = request.rank_page_size() == 0
                          ? num_ranks
                          : std::min(num_ranks, begin + request.rank_page_size());
  auto* ranks = job->mutable_ranks();
  ranks->DeleteSubrange(static_cast<int>(end), static_cast<int>(num_ranks - end));
  ranks->DeleteSubrange(0, static_cast<int>(begin));
  if (end < num_ranks) {
    response->set_next_rank_page_token(MakePageToken(
        {kRanksList, job->job_id(), absl::StrCat(job->attempt()), absl::StrCat(end)}));
  }
  return absl::OkStatus();
}

}  // namespace megascale::driver
