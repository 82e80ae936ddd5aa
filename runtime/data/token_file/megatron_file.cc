#include "runtime/data/token_file/megatron_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/status.h"
#include "runtime/base/work/counted_work.h"

namespace megascale::data {
namespace {

constexpr absl::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kMegatronVersion = 1;
constexpr int64_t kHeaderBytes = 34;
constexpr int64_t kIndexBytesMax = int64_t{16} << 30;
constexpr uint64_t kBlockEntries = 64 << 10;

template <typename Number>
Number At(absl::string_view content, size_t offset) {
  Number number;
  std::memcpy(&number, content.data() + offset, sizeof(number));
  return number;
}

// Reads a table from its begin to its end, a block at a time.
template <typename Number>
class Table {
 public:
  Table(const ReadAt& read, int64_t offset, uint64_t size)
      : read_(read), offset_(offset), left_(size) {}

  // Requires: it was called fewer times than the table has entries.
  absl::StatusOr<Number> Next() {
    if (at_ == block_.size()) {
      block_.resize(std::min(left_, kBlockEntries));
      const size_t bytes = block_.size() * sizeof(Number);
      RETURN_IF_ERROR(
          read_(offset_, absl::MakeSpan(reinterpret_cast<char*>(block_.data()), bytes)));
      offset_ += static_cast<int64_t>(bytes);
      left_ -= block_.size();
      at_ = 0;
    }
    return block_[at_++];
  }

 private:
  const ReadAt& read_;
  int64_t offset_;
  uint64_t left_;
  std::vector<Number> block_;
  size_t at_ = 0;
};

absl::StatusOr<TokenType> TypeOf(uint8_t code) {
  if (code == 1) return TokenType::kUint8;
  if (code == 4) return TokenType::kInt32;
  if (code == 8) return TokenType::kUint16;
  return absl::InvalidArgumentError(absl::StrCat("has tokens of type ", int{code},
                                                 ", expected 1 (uint8), 4 (int32) or 8 (uint16)"));
}

struct Sizes {
  uint64_t num_sequences;
  uint64_t num_entries;
};

absl::StatusOr<Sizes> FindSizes(absl::string_view header, int64_t size_bytes) {
  const auto version = At<uint64_t>(header, 9);
  if (version != kMegatronVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("has version ", version, ", expected ", kMegatronVersion));
  }
  const Sizes sizes = {At<uint64_t>(header, 18), At<uint64_t>(header, 26)};
  const auto rest = static_cast<uint64_t>(size_bytes - kHeaderBytes);
  // Each number alone first, so that the sum cannot overflow. A byte for each sequence may follow.
  const bool sane = sizes.num_sequences <= rest && sizes.num_entries <= rest;
  const uint64_t expected = sane ? sizes.num_sequences * 12 + sizes.num_entries * 8 : 0;
  if (sane && (rest == expected || rest == expected + sizes.num_sequences)) return sizes;
  return absl::DataLossError(absl::StrCat("has ", size_bytes, " bytes, but says ",
                                          sizes.num_sequences, " sequences and ", sizes.num_entries,
                                          " document entries"));
}

// Walks over the sequences, and notes how many tokens there were where a document ends.
absl::Status FindEnds(const ReadAt& read, const Sizes& sizes, int64_t token_bytes,
                      std::vector<int64_t>* ends) {
  const auto num_sequences = static_cast<int64_t>(sizes.num_sequences);
  Table<int32_t> lengths(read, kHeaderBytes, sizes.num_sequences);
  Table<int64_t> positions(read, kHeaderBytes + num_sequences * 4, sizes.num_sequences);
  Table<int64_t> entries(read, kHeaderBytes + num_sequences * 12, sizes.num_entries);
  int64_t first = -1;
  if (sizes.num_entries > 0) {
    ASSIGN_OR_RETURN(first, entries.Next());
  }
  if (first != 0) return absl::DataLossError("its document entries do not begin with 0");
  int64_t num_tokens = 0;
  int64_t sequence = 0;
  for (uint64_t entry = 1; entry < sizes.num_entries; ++entry) {
    ASSIGN_OR_RETURN(const int64_t end, entries.Next());
    if (end < sequence || end > num_sequences) {
      return absl::DataLossError(absl::StrCat("document entry ", entry, " is ", end, ", expected ",
                                              sequence, " to ", num_sequences));
    }
    base::CountWork(static_cast<size_t>(end - sequence) + 1);
    for (; sequence < end; ++sequence) {
      ASSIGN_OR_RETURN(const int32_t length, lengths.Next());
      ASSIGN_OR_RETURN(const int64_t position, positions.Next());
      if (length < 0 || position != num_tokens * token_bytes) {
        return absl::DataLossError(absl::StrCat(
            "sequence ", sequence, " has ", length, " tokens at byte ", position,
            ", expected byte ", num_tokens * token_bytes, ": right after the sequence before it"));
      }
      num_tokens += length;
    }
    ends->push_back(num_tokens);
  }
  if (sequence == num_sequences) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its documents have ", sequence, " sequences of ",
                                          num_sequences, ", expected all"));
}

}  // namespace

absl::StatusOr<MegatronIndex> ReadMegatronIndex(int64_t size_bytes, const ReadAt& read) {
  std::string header(kHeaderBytes, '\0');
  if (size_bytes >= kHeaderBytes) {
    RETURN_IF_ERROR(read(0, absl::MakeSpan(header.data(), header.size())));
  }
  if (header.compare(0, kMegatronMagic.size(), kMegatronMagic.data(), kMegatronMagic.size()) != 0) {
    return absl::InvalidArgumentError("is no index of Megatron-LM; expected MMIDIDX at its begin");
  }
  ASSIGN_OR_RETURN(const Sizes sizes, FindSizes(header, size_bytes));
  MegatronIndex index;
  ASSIGN_OR_RETURN(index.type, TypeOf(At<uint8_t>(header, 17)));
  RETURN_IF_ERROR(FindEnds(read, sizes, BytesOf(index.type), &index.document_ends));
  return index;
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenMegatronFile(const std::string& path) {
  absl::string_view prefix = path;
  if (!absl::ConsumeSuffix(&prefix, ".bin")) absl::ConsumeSuffix(&prefix, ".idx");
  const std::string index_path = absl::StrCat(prefix, ".idx");
  ASSIGN_OR_RETURN(const OpenedFile opened, OpenRegular(index_path));
  if (opened.size_bytes > kIndexBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(index_path, ": has ", opened.size_bytes,
                                                     " bytes, expected at most ", kIndexBytesMax));
  }
  const auto read = [&](int64_t offset, absl::Span<char> out) {
    return ReadExactly(opened.fd.get(), "its content", offset, out);
  };
  absl::StatusOr<MegatronIndex> index = ReadMegatronIndex(opened.size_bytes, read);
  if (!index.ok()) return base::Annotate(index.status(), index_path);
  TokenLayout layout;
  layout.path = absl::StrCat(prefix, ".bin");
  layout.type = index->type;
  layout.num_tokens = index->document_ends.empty() ? 0 : index->document_ends.back();
  ASSIGN_OR_RETURN(OpenedFile file, OpenRegular(layout.path));
  if (file.size_bytes < layout.num_tokens * BytesOf(layout.type)) {
    return absl::DataLossError(absl::StrCat(layout.path, ": has ", file.size_bytes,
                                            " bytes, but its index says ", layout.num_tokens,
                                            " tokens of ", BytesOf(layout.type), " bytes"));
  }
  return std::make_unique<TokenSource>(std::move(layout), std::move(file.fd),
                                       std::move(index->document_ends));
}

}  // namespace megascale::data
