#include "runtime/data/token_file/megatron_file.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/fd.h"
#include "runtime/base/status.h"

namespace megascale::data {
namespace {

constexpr absl::string_view kMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersion = 1;
constexpr size_t kHeaderBytes = 34;
constexpr size_t kIndexBytesMax = size_t{16} << 30;

template <typename Number>
Number At(absl::string_view content, size_t offset) {
  Number number;
  std::memcpy(&number, content.data() + offset, sizeof(number));
  return number;
}

absl::StatusOr<TokenType> TypeOf(uint8_t code) {
  if (code == 1) return TokenType::kUint8;
  if (code == 4) return TokenType::kInt32;
  if (code == 8) return TokenType::kUint16;
  return absl::InvalidArgumentError(absl::StrCat("has tokens of type ", int{code},
                                                 ", expected 1 (uint8), 4 (int32) or 8 (uint16)"));
}

struct Tables {
  uint64_t num_sequences;
  uint64_t num_entries;
  absl::string_view lengths, positions, documents;
};

absl::StatusOr<Tables> FindTables(absl::string_view content) {
  if (content.size() < kHeaderBytes || content.substr(0, kMagic.size()) != kMagic) {
    return absl::InvalidArgumentError("is no index of Megatron-LM; expected MMIDIDX at its begin");
  }
  const auto version = At<uint64_t>(content, 9);
  if (version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("has version ", version, ", expected ", kVersion));
  }
  Tables tables = {};
  tables.num_sequences = At<uint64_t>(content, 18);
  tables.num_entries = At<uint64_t>(content, 26);
  const absl::string_view rest = content.substr(kHeaderBytes);
  // Each number alone first, so that the sum cannot overflow. A byte for each sequence may follow.
  const bool sane = tables.num_sequences <= rest.size() && tables.num_entries <= rest.size();
  const uint64_t expected = sane ? tables.num_sequences * 12 + tables.num_entries * 8 : 0;
  if (!sane || (rest.size() != expected && rest.size() != expected + tables.num_sequences)) {
    return absl::DataLossError(absl::StrCat("has ", content.size(), " bytes, but says ",
                                            tables.num_sequences, " sequences and ",
                                            tables.num_entries, " document entries"));
  }
  tables.lengths = rest.substr(0, tables.num_sequences * 4);
  tables.positions = rest.substr(tables.lengths.size(), tables.num_sequences * 8);
  tables.documents = rest.substr(tables.num_sequences * 12, tables.num_entries * 8);
  return tables;
}

// Walks over the sequences, and notes how many tokens there were where a document ends.
absl::Status FindEnds(const Tables& tables, int64_t token_bytes, std::vector<int64_t>* ends) {
  const auto entry_at = [&](uint64_t i) { return At<int64_t>(tables.documents, i * 8); };
  if (tables.num_entries == 0 || entry_at(0) != 0) {
    return absl::DataLossError("its document entries do not begin with 0");
  }
  int64_t num_tokens = 0;
  uint64_t sequence = 0;
  for (uint64_t entry = 1; entry < tables.num_entries; ++entry) {
    const int64_t end = entry_at(entry);
    if (end < static_cast<int64_t>(sequence) || static_cast<uint64_t>(end) > tables.num_sequences) {
      return absl::DataLossError(absl::StrCat("document entry ", entry, " is ", end, ", expected ",
                                              sequence, " to ", tables.num_sequences));
    }
    for (; sequence < static_cast<uint64_t>(end); ++sequence) {
      const auto length = At<int32_t>(tables.lengths, sequence * 4);
      const auto position = At<int64_t>(tables.positions, sequence * 8);
      if (length < 0 || position != num_tokens * token_bytes) {
        return absl::DataLossError(absl::StrCat(
            "sequence ", sequence, " has ", length, " tokens at byte ", position,
            ", expected byte ", num_tokens * token_bytes, ": right after the sequence before it"));
      }
      num_tokens += length;
    }
    ends->push_back(num_tokens);
  }
  if (sequence == tables.num_sequences) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its documents have ", sequence, " sequences of ",
                                          tables.num_sequences, ", expected all"));
}

}  // namespace

absl::StatusOr<MegatronIndex> ParseMegatronIndex(absl::string_view content) {
  ASSIGN_OR_RETURN(const Tables tables, FindTables(content));
  MegatronIndex index;
  ASSIGN_OR_RETURN(index.type, TypeOf(At<uint8_t>(content, 17)));
  RETURN_IF_ERROR(FindEnds(tables, BytesOf(index.type), &index.document_ends));
  return index;
}

absl::StatusOr<std::unique_ptr<TokenSource>> OpenMegatronFile(const std::string& path) {
  absl::string_view prefix = path;
  if (!absl::ConsumeSuffix(&prefix, ".bin")) absl::ConsumeSuffix(&prefix, ".idx");
  const std::string index_path = absl::StrCat(prefix, ".idx");
  ASSIGN_OR_RETURN(const std::string content, base::ReadFile(index_path, kIndexBytesMax));
  absl::StatusOr<MegatronIndex> index = ParseMegatronIndex(content);
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
