#include "runtime/data/dataset/inputs.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/base/checksum.h"
#include "runtime/base/status.h"
#include "runtime/data/corpus.h"
#include "runtime/data/source/byte_stream.h"

namespace megascale::data {
namespace {

constexpr absl::string_view kTokenMagic = "MSTOKENS";

int64_t SizeOf(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_size : -1;
}

std::string BeginOf(const std::string& path) {
  std::string begin(kTokenMagic.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  return begin;
}

std::string IndexOf(absl::string_view path) {
  return absl::ConsumeSuffix(&path, ".bin") ? absl::StrCat(path, ".idx") : "";
}

Input::Kind KindOf(const std::string& path, bool json) {
  const std::string begin = BeginOf(path);
  if (begin == kTokenMagic) return Input::Kind::kTokens;
  if (const std::string index = IndexOf(path); !index.empty() && SizeOf(index) >= 0) {
    return Input::Kind::kMegatron;
  }
  return json || IsPacked(begin) ? Input::Kind::kDocuments : Input::Kind::kPlain;
}

absl::StatusOr<std::string> DigestOf(const Input& input) {
  ASSIGN_OR_RETURN(const std::string digest, base::Sha256OfFile(input.path));
  if (input.kind != Input::Kind::kMegatron) return digest;
  ASSIGN_OR_RETURN(const std::string index, base::Sha256OfFile(IndexOf(input.path)));
  return base::Sha256Hex(absl::StrCat(digest, index));
}

// Says where the training part of each file ends.
void Cut(double held_out_fraction, std::vector<Input>* inputs) {
  int64_t total = 0;
  for (const Input& input : *inputs) total += input.size_bytes;
  const auto held_out = static_cast<int64_t>(static_cast<double>(total) * held_out_fraction);
  int64_t left = total - held_out;
  for (Input& input : *inputs) {
    input.train_bytes = std::clamp<int64_t>(left, 0, input.size_bytes);
    left -= input.train_bytes;
  }
}

}  // namespace

bool IsTokenFile(const std::string& path) {
  const Input::Kind kind = KindOf(path, false);
  return kind == Input::Kind::kTokens || kind == Input::Kind::kMegatron;
}

absl::StatusOr<InputList> ListInputs(const job::v1::DataSpec& spec) {
  // The corpus knows what a directory stands for, and refuses what is no file.
  ASSIGN_OR_RETURN(const auto corpus, Corpus::Open(spec, 0));
  std::set<std::string> indexes;
  std::vector<Input> inputs;
  for (const std::string& path : corpus->paths()) {
    Input input;
    input.path = path;
    input.kind = KindOf(path, !spec.json_field().empty());
    input.size_bytes = SizeOf(path);
    if (input.kind == Input::Kind::kMegatron) indexes.insert(IndexOf(path));
    inputs.push_back(std::move(input));
  }
  inputs.erase(std::remove_if(inputs.begin(), inputs.end(),
                              [&](const Input& input) { return indexes.count(input.path) > 0; }),
               inputs.end());
  for (Input& input : inputs) {
    ASSIGN_OR_RETURN(input.sha256, DigestOf(input));
  }
  Cut(spec.held_out_fraction() == 0 ? 0.1 : spec.held_out_fraction(), &inputs);
  return InputList{std::move(inputs), corpus->folders()};
}

}  // namespace megascale::data
