#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/fd.h"
#include "runtime/data/token_file/megatron_file.h"
#include "runtime/data/token_file/token_file.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {
namespace {

// Ends of documents, in tokens: none before the one before it. Returns the last one.
int64_t CheckEnds(const std::vector<int64_t>& ends) {
  int64_t end_before = 0;
  for (const int64_t end : ends) {
    MEGASCALE_CHECK(end >= end_before);
    end_before = end;
  }
  return end_before;
}

void CheckTokens(const data::TokenSource& source) {
  constexpr int64_t kTokensMax = 1000;
  std::vector<int64_t> ends;
  for (int64_t i = 0; i < source.num_documents(); ++i) ends.push_back(source.DocumentEnd(i));
  MEGASCALE_CHECK(CheckEnds(ends) == source.num_tokens());
  std::vector<int32_t> ids(static_cast<size_t>(std::min(source.num_tokens(), kTokensMax)));
  if (!source.Read(source.num_tokens() - static_cast<int64_t>(ids.size()), absl::MakeSpan(ids))
           .ok()) {
    return;  // an id that is not in the vocabulary
  }
  for (const int32_t id : ids) {
    MEGASCALE_CHECK(id >= 0 && id < source.layout().vocabulary_size);
  }
}

}  // namespace

void RunMegatronIndex(absl::string_view input) {
  const auto read = [input](int64_t offset, absl::Span<char> out) {
    MEGASCALE_CHECK(offset >= 0);
    const auto begin = static_cast<uint64_t>(offset);
    if (begin > input.size() || out.size() > input.size() - begin) {
      return absl::DataLossError("the file ends before");
    }
    std::copy_n(input.begin() + offset, out.size(), out.begin());
    return absl::OkStatus();
  };
  const auto index = data::ReadMegatronIndex(static_cast<int64_t>(input.size()), read);
  if (!index.ok()) return CheckLine(index.status());
  // An entry of the file for each document, and a length for each sequence.
  MEGASCALE_CHECK(index->document_ends.size() <= input.size() / 8);
  const int64_t num_tokens = CheckEnds(index->document_ends);
  MEGASCALE_CHECK(num_tokens / INT32_MAX <= static_cast<int64_t>(input.size()));
}

void RunTokenFile(absl::string_view input) {
  const base::UniqueFd file(::memfd_create("tokens", MFD_CLOEXEC));
  MEGASCALE_CHECK(file.get() >= 0);
  MEGASCALE_CHECK(::write(file.get(), input.data(), input.size()) ==
                  static_cast<ssize_t>(input.size()));
  const std::string path = absl::StrCat("/proc/self/fd/", file.get());
  const auto opened = data::OpenTokenFile(path);
  if (!opened.ok()) return CheckLine(opened.status());
  CheckTokens(*opened->source);
  const absl::Status whole = data::VerifyTokenFile(path);
  if (!whole.ok()) CheckLine(whole);
}

}  // namespace megascale::fuzz
